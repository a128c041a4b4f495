"""Limits on the number of messages in a batch, in total and for each topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.spark.even_shares import share_evenly


@dataclass(frozen=True)
class Limits:
    """The limits of one query, in messages per batch. None means no limit.

    total: limit of the whole batch. of_topic: limits of single topics. of_others: limit of each
    topic that of_topic does not name.
    """

    total: int | None = None
    of_topic: Mapping[str, int] = field(default_factory=dict)
    of_others: int | None = None

    def bound(self, due: Mapping[str, int]) -> dict[str, int]:
        """Cap the number of due messages of each topic at the limit of that topic.

        due: messages by topic. ``shares`` applies the total limit.
        """
        return {topic: min(count, self._limit_of(topic, count)) for topic, count in due.items()}

    def shares(self, due: Mapping[str, int], seq: int) -> dict[str, int]:
        """Divide a batch of at most ``total`` messages among topics. Returns messages by topic.

        due: messages by topic. seq: the number of the batch. Topics share evenly; a share that one
        topic does not need goes to the others.
        """
        return share_evenly(due, sum(due.values()) if self.total is None else self.total, seq)

    def _limit_of(self, topic: str, otherwise: int) -> int:
        """Return the limit of a topic, or ``otherwise`` if it has no limit."""
        others = otherwise if self.of_others is None else self.of_others
        return self.of_topic.get(topic, others)
