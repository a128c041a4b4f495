"""Rates of topics: the differences of their counters between two looks."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rmq_spark.client.broker import Broker
from rmq_spark.client.overview import Row, look


class Rate(NamedTuple):
    """The messages that a group accepted and committed per second, up to a time.

    at_s: the time of a monotonic clock.
    """

    at_s: float
    came: float
    went: float


class Rates:
    """The rates of consumer groups, from their counters.

    keep: how many rates of a group to keep. least_s: counters that come earlier after the last ones
    make no rate of their own.
    """

    def __init__(self, keep: int = 1, least_s: float = 0.0) -> None:
        self._keep = keep
        self._least_s = least_s
        self._before: dict[tuple[str, str], tuple[float, Mapping[str, int]]] = {}
        self._rates: dict[tuple[str, str], deque[Rate]] = {}

    def note(self, topic: str, group: str, counters: Mapping[str, int]) -> Rate:
        """Note the counters of a group. Returns its rate since the last ones, at first zero."""
        at, key = time.monotonic(), (topic, group)
        then, before = self._before.setdefault(key, (at, counters))
        rates = self._rates.setdefault(key, deque(maxlen=self._keep))
        spent = at - then
        if spent <= 0 or (rates and spent < self._least_s):
            return rates[-1] if rates else Rate(at, 0.0, 0.0)
        came, went = (counters[name] - before[name] for name in ("accepted", "committed"))
        rates.append(Rate(at, max(0, came) / spent, max(0, went) / spent))
        self._before[key] = (at, counters)
        return rates[-1]

    def line(self, topic: str, group: str) -> list[Rate]:
        """Return the rates of a group that are kept, the oldest first."""
        return list(self._rates.get((topic, group), ()))


class Snapshots:
    """Successive snapshots of topics. Rates are differences of counters between two of them."""

    def __init__(
        self,
        broker: Broker,
        names: Sequence[str] | None = None,
    ) -> None:
        """Raise UnknownTopic for a name that does not exist."""
        self._broker = broker
        self._names = names
        for name in names or ():
            broker.definition(name)  # fails at once for a topic that does not exist
        self._rates = Rates()

    def next(self) -> tuple[list[Row], dict[tuple[str, str], Rate]]:
        """Take a snapshot. Returns its rows, and its rates by topic and group."""
        rows = look(self._broker, self._names)
        rates = {
            (row.topic, row.group): self._rates.note(row.topic, row.group, row.figures.counters)
            for row in rows
        }
        return rows, rates
