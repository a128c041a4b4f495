"""The offset, which Spark stores in the checkpoint."""

from dataclasses import dataclass
from typing import Any

from rmq_spark.errors import CheckpointRefused
from rmq_spark.protocol.names import ConsumerName
from rmq_spark.spark.subscription import Subscription
from rmq_spark.topics.definition import group_text

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """The position of a consumer: everything up to batch ``seq`` is done.

    consumer: a random name that the first run of the query has chosen; later runs take it from the
    checkpoint. topic: the topics that it reads, as Subscription.text writes them.
    """

    consumer: str
    seq: int
    topic: str

    def to_dict(self) -> dict[str, Any]:
        """Convert the offset to the form that Spark stores.

        The keys always have the same order, because Spark compares offsets as text.
        """
        return {
            "consumer": self.consumer,
            "seq": self.seq,
            "topic": self.topic,
            "version": VERSION,
        }

    @staticmethod
    def from_dict(fields: dict[str, Any], subscription: Subscription) -> "Offset":
        """Read an offset that ``to_dict`` wrote.

        Raises CheckpointRefused if its version, topics or consumer group are not those of this
        query. Raises InvalidOption if its consumer is not a valid name.
        """
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
                "remove them. With a new checkpoint, messages that the old query had in work are "
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
