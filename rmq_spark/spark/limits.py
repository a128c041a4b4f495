"""How many messages of each topic make a batch, and max-min fair sharing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T", int, str)


def share_evenly(wanted: Mapping[_T, int], limit: int, seq: int) -> dict[_T, int]:
    """Divide ``limit`` evenly among the keys of ``wanted``. Returns the shares above 0.

    wanted: the most that each key can take. A share that one key does not need goes to the others.
    seq: the number of the batch. A remainder that cannot be divided evenly goes to different keys
    from batch to batch.
    """
    given: dict[_T, int] = {}
    left = limit
    by_need = sorted(wanted, key=lambda one: (wanted[one], one))
    for at, one in enumerate(by_need):
        share, extra = divmod(left, len(by_need) - at)
        if wanted[one] > share:
            hungry = sorted(by_need[at:])
            given |= dict.fromkeys(hungry, share)
            for step in range(extra):
                given[hungry[(seq * extra + step) % len(hungry)]] += 1
            break
        given[one] = wanted[one]
        left -= wanted[one]
    return {one: count for one, count in given.items() if count}


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
        others = otherwise if self.of_others is None else self.of_others
        return self.of_topic.get(topic, others)
