"""How many messages a batch may hold: in all, and of each topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.spark.even_shares import evenly


@dataclass(frozen=True)
class Limits:
    """total: of the batch; None for no limit. of_topic: of some topics. of_others: of the rest."""

    total: int | None = None
    of_topic: Mapping[str, int] = field(default_factory=dict)
    of_others: int | None = None

    def bound(self, due: Mapping[str, int]) -> dict[str, int]:
        """What is due of each topic, as far as the topic's own limit goes."""
        return {topic: min(count, self._most(topic, count)) for topic, count in due.items()}

    def shares(self, due: Mapping[str, int], seq: int) -> dict[str, int]:
        """What each topic gives to the batch ``seq``, of what is due of it.

        Topics share evenly; what one does not need goes to the others.
        """
        return evenly(due, sum(due.values()) if self.total is None else self.total, seq)

    def _most(self, topic: str, count: int) -> int:
        others = count if self.of_others is None else self.of_others
        return self.of_topic.get(topic, others)
