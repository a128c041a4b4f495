"""How long the calls of a listener's function take, and how late they begin."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# Bounds in s. They are powers of a few numbers, so that quick and slow functions are told apart.
_DURATIONS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
_LATENESSES_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 7200, 43_200, 86_400)


class Histogram:
    """Counts values by the first of some ascending bounds that they do not exceed."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def copy(self) -> "Histogram":
        copied = Histogram(self._bounds)
        copied.sum, copied._counts = self.sum, self._counts.copy()
        return copied

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each bound, as a text, and how many values do not exceed it; the last is +Inf."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class Timings:
    """Of the calls of one function: how long they took, and how late they began, in s.

    A message is late by the time from when it was due to the call. A retry, and a message of a
    Priority topic, are due at once, and are not counted there.
    """

    def __init__(self) -> None:
        self.durations = Histogram(_DURATIONS_S)
        self.latenesses = Histogram(_LATENESSES_S)

    def add(self, duration_s: float, lateness_s: float | None) -> None:
        self.durations.add(duration_s)
        if lateness_s is not None:
            self.latenesses.add(max(0.0, lateness_s))

    def copy(self) -> "Timings":
        copied = Timings()
        copied.durations, copied.latenesses = self.durations.copy(), self.latenesses.copy()
        return copied
