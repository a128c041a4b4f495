"""How long the calls of a listener's function take, and how late they begin."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

# Bounds in s: of the quickest functions to those that take half an hour, and up to a day. All are
# floats, which are compared with floats in a third of the time.
_DURATIONS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_LATENESSES_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)


class Histogram:
    """Counts values by the first of some ascending bounds that they do not exceed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)

    def add_all(self, counts: Iterable[int], total: float) -> None:
        """Add values that were counted elsewhere by the same bounds. total: their sum."""
        self.sum += total
        self.counts = [mine + its for mine, its in zip(self.counts, counts, strict=True)]

    def told(self) -> tuple[list[int], float]:
        """Return what ``add_all`` of another one takes."""
        return self.counts, self.sum

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each bound, as a text, and how many values do not exceed it; the last is +Inf."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


class Timings:
    """Of the calls of one function: how long they took, and how late they began, in s.

    Only one thread may add, so that no call needs a lock. A message is late by the time from when
    it was due to the call. A retry, and a message of a Priority topic, are due at once, and are not
    counted there.
    """

    __slots__ = ("durations", "latenesses")

    def __init__(self) -> None:
        self.durations = Histogram(_DURATIONS_S)
        self.latenesses = Histogram(_LATENESSES_S)

    def add(
        self, duration_s: float, due_ms: int | None, claimed_ms: int, since_claim_s: float
    ) -> None:
        """Add a call. since_claim_s: from the answer of its claim, made at claimed_ms, to it."""
        durations = self.durations
        durations.counts[bisect_left(durations.bounds, duration_s)] += 1
        durations.sum += duration_s
        if due_ms is not None:
            lateness_s = max(0.0, (claimed_ms - due_ms) / 1000 + since_claim_s)
            latenesses = self.latenesses
            latenesses.counts[bisect_left(latenesses.bounds, lateness_s)] += 1
            latenesses.sum += lateness_s

    @staticmethod
    def sum_of(several: Iterable["Timings"]) -> "Timings":
        total = Timings()
        for each in several:
            total.durations.add_all(*each.durations.told())
            total.latenesses.add_all(*each.latenesses.told())
        return total
