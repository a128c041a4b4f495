"""The offset of a query, which Spark stores in its checkpoint."""

from dataclasses import dataclass
from typing import Any

from rmq_spark.errors import CheckpointRefused, quoted
from rmq_spark.protocol.names import ConsumerName
from rmq_spark.spark.options import Subscription
from rmq_spark.topics.definition import group_text

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """The position of a consumer: everything up to batch ``seq`` is done.

    consumer: a random name that the first run has chosen. topic: as Subscription.text writes it.
    """

    consumer: str
    seq: int
    topic: str

    def to_dict(self) -> dict[str, Any]:
        """Convert it. Spark compares offsets as text, so the keys always have this order."""
        return {"consumer": self.consumer, "seq": self.seq, "topic": self.topic, "version": VERSION}

    @staticmethod
    def from_dict(fields: Any, subscription: Subscription) -> "Offset":
        """Read an offset. Refuses that of another source, version or subscription.

        Some sources have offsets that are no dict, such as Spark's source ``rate`` a number.
        """
        if not isinstance(fields, dict) or "consumer" not in fields:
            raise CheckpointRefused(
                f"The checkpoint belongs to another source, which is at the offset "
                f"{quoted(fields)}. Use a new checkpointLocation."
            )
        if fields.get("version") != VERSION:
            raise CheckpointRefused(
                f"The checkpoint's offset has version {fields.get('version')!r}; this rmq-spark "
                f"reads version {VERSION}. Use the version that wrote it, or a new "
                "checkpointLocation."
            )
        topic, consumer = str(fields.get("topic")), str(fields["consumer"])
        if not subscription.continues(topic):
            raise CheckpointRefused(
                f"The checkpoint belongs to the topic {topic!r}, not to {subscription.text!r}. "
                "Give each its own checkpointLocation. You can add topics to a list, but not "
                "remove them. With a new checkpoint, messages that the old query had claimed are "
                "delivered again."
            )
        group = ConsumerName.parse(consumer).group
        if group != subscription.group:
            raise CheckpointRefused(
                f"The checkpoint belongs to the consumer group {group_text(group)!r} of "
                f"{topic}, not to {group_text(subscription.group)!r}. Give each group its own "
                "checkpointLocation."
            )
        return Offset(consumer, int(fields["seq"]), topic)
