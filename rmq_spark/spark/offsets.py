"""The offset that Spark keeps in the checkpoint.

Spark compares offsets as text, so the keys are always written in the same order.
"""

from dataclasses import dataclass
from typing import Any

from rmq_spark.queue.errors import CheckpointRefused

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """Everything up to batch ``seq`` of a consumer; the consumer's name lives in the checkpoint."""

    consumer: str
    seq: int
    topic: str

    def to_dict(self) -> dict[str, Any]:
        """The form that Spark writes down."""
        return {
            "consumer": self.consumer,
            "seq": self.seq,
            "topic": self.topic,
            "version": VERSION,
        }

    def next(self) -> "Offset":
        """The offset one batch later."""
        return Offset(self.consumer, self.seq + 1, self.topic)

    @staticmethod
    def from_dict(fields: dict[str, Any], topic: str) -> "Offset":
        """Reads what to_dict wrote for this topic. Raises CheckpointRefused."""
        if fields.get("version") != VERSION:
            raise CheckpointRefused(
                f"The checkpoint's offset has version {fields.get('version')!r}; this rmq-spark "
                f"reads version {VERSION}. Use the version that wrote it, or a new "
                "checkpointLocation."
            )
        if fields.get("topic") != topic:
            raise CheckpointRefused(
                f"The checkpoint belongs to the topic {fields.get('topic')!r}, not to {topic!r}. "
                "Give each topic its own checkpointLocation."
            )
        return Offset(str(fields["consumer"]), int(fields["seq"]), topic)
