"""Batch sizing: how many messages of each topic make a batch of the target duration.

This module contacts no server. A source sees only how long whole batches take, so it learns the
cost of a message from that: duration = overhead + messages of A * cost of A + messages of B * cost
of B + ... A Kalman filter estimates the overhead and the costs, each with its uncertainty. While a
cost is uncertain, the mixture of topics varies from batch to batch. If all batches had the same
mixture, slow messages could not be distinguished from fast ones.

Topics share the target duration, not the messages: if the messages of one topic are a hundred times
as slow, a hundredth of them takes as long. Time that one topic does not need goes to the others.

For one topic, a moving average of the seconds for a message is as good. For several topics it is
not. Take a simulated query with 20 us for a message of one topic and 100 ms for one of the other
(target 2 s, noise 10 %). The fast topic gets 23 000 messages a second with this filter, 9 with one
moving average, and 7 000 with an average for each topic, corrected by the topic's share of the
batch.
"""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np

# The limit of a topic before its cost is known. It is small because Spark takes seconds for the
# first batch of a run, whatever its size, so that nothing can be learned from it.
FIRST_MESSAGES = 10
# A limit is at most so many times the largest batch of the topic: a cost that was learned from a
# few messages says little about many more.
GROWTH = 4
# The relative difference between the durations of two batches with the same work.
NOISE = 0.15
# The relative change of the cost of a message from batch to batch.
DRIFT = 0.1
# A cost is uncertain if its relative standard deviation exceeds this.
UNSURE = 0.3
# Spark's own share of a batch: the first estimate of the overhead, and its standard deviation, or
# else a quarter of the target if that is more. Slow commits of a sink can make the overhead long.
OVERHEAD_S, OVERHEAD_DEVIATION_S = 0.2, 0.5
# The lowest overhead or cost in seconds, so that noise makes none zero or negative.
LEAST_COST_S = 1e-7


class BatchSizer:
    """The batch sizes of one run, by the costs of messages, learned from batch to batch."""

    def __init__(self, target_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._target_s = target_s
        self._clock = clock
        self._names: list[str] = []
        # The overhead, then the cost of a message of each topic, in seconds; and their covariance.
        self._state = np.array([OVERHEAD_S])
        self._covariance = np.array([[max(OVERHEAD_DEVIATION_S, target_s / 4) ** 2]])
        self._most: dict[str, int] = {}  # messages in the largest batch of each topic
        self._begun: float | None = None
        self._batches = 0

    @property
    def overhead_s(self) -> float:
        return float(self._state[0])

    def knows(self, topic: str) -> bool:
        """Return whether a batch has had messages of the topic. If not, its cost is a guess."""
        return self._most.get(topic, 0) > 0

    def forget(self, topic: str) -> None:
        if topic not in self._names:
            return
        at = 1 + self._names.index(topic)
        self._names.remove(topic)
        self._most.pop(topic, None)
        self._state = np.delete(self._state, at)
        self._covariance = np.delete(np.delete(self._covariance, at, 0), at, 1)

    def cost_s(self, topic: str) -> float:
        return float(self._state[1 + self._names.index(topic)])

    def begin(self) -> None:
        self._begun = self._clock()

    def note_committed(self, taken: Mapping[str, int]) -> None:
        """Learn from a finished batch, except from the first one of the run."""
        if self._begun is None:
            return
        duration_s, self._begun = self._clock() - self._begun, None
        self._batches += 1
        for topic, messages in taken.items():
            self._add_topic(topic)
            self._most[topic] = max(self._most.get(topic, 0), messages)
        if self._batches > 1:
            self._update_estimates(duration_s, taken)

    def limits(self, due: Mapping[str, int]) -> dict[str, int]:
        """Choose how many messages of each topic the next batch may take, at least one of each."""
        for topic in due:
            self._add_topic(topic)
        wanted = {topic: min(count, self._trusted_limit(topic)) for topic, count in due.items()}
        seconds = {topic: count * self.cost_s(topic) for topic, count in wanted.items()}
        # Half of the target at least, or a target shorter than the overhead would leave nothing.
        left_s = max(self._target_s - self.overhead_s, self._target_s / 2)
        limits = {}
        for at, topic in enumerate(sorted(seconds, key=lambda topic: seconds[topic])):
            share_s = min(seconds[topic], left_s / (len(seconds) - at))
            left_s -= share_s
            limits[topic] = min(wanted[topic], max(1, round(share_s / self.cost_s(topic))))
        return self._with_variation(limits, wanted)

    def _add_topic(self, topic: str) -> None:
        """Add a topic, at a cost by which FIRST_MESSAGES messages fill the target duration.

        The standard deviation is as large as the cost, so that the first batches correct it
        quickly.
        """
        if topic in self._names:
            return
        self._names.append(topic)
        cost_s = self._target_s / FIRST_MESSAGES
        self._state = np.append(self._state, cost_s)
        size = len(self._state)
        covariance = np.zeros((size, size))
        covariance[:-1, :-1] = self._covariance
        covariance[-1, -1] = cost_s**2
        self._covariance = covariance

    def _trusted_limit(self, topic: str) -> int:
        known = self._most.get(topic, 0)
        return GROWTH * known if known and self._batches > 1 else FIRST_MESSAGES

    def _with_variation(self, limits: dict[str, int], wanted: dict[str, int]) -> dict[str, int]:
        """Halve the limit of one topic whose cost is uncertain, of each in turn.

        If it is the only topic, double its limit every other time: batches that are all alike do
        not show what is overhead.
        """
        unsure = sorted(topic for topic in limits if self._is_uncertain(topic))
        if not unsure:
            return limits
        if len(limits) == 1:
            factor = 1 + self._batches % 2
            return {topic: min(wanted[topic], factor * limit) for topic, limit in limits.items()}
        fewer = unsure[self._batches % len(unsure)]
        return {**limits, fewer: max(1, limits[fewer] // 2)}

    def _is_uncertain(self, topic: str) -> bool:
        at = 1 + self._names.index(topic)
        return bool(np.sqrt(self._covariance[at, at]) > UNSURE * self._state[at])

    def _update_estimates(self, duration_s: float, taken: Mapping[str, int]) -> None:
        """Correct overhead and costs by one step of the Kalman filter."""
        counts = np.array([1.0, *(float(taken.get(topic, 0)) for topic in self._names)])
        drift = np.where(counts > 0, DRIFT * self._state, 0.0)
        covariance = self._covariance + np.diag(drift**2)
        expected = counts @ self._state
        # The noise is proportional to the geometric mean of both durations. If it were proportional
        # to the expected one, a single batch that hangs would weigh as much as many batches. If it
        # were proportional to the actual one, messages that become slow would go unnoticed.
        noise_s = NOISE * max(math.sqrt(duration_s * expected), OVERHEAD_S)
        gain = covariance @ counts
        gain /= counts @ gain + noise_s**2
        self._state = np.maximum(self._state + gain * (duration_s - expected), LEAST_COST_S)
        self._covariance = covariance - np.outer(gain, counts @ covariance)
