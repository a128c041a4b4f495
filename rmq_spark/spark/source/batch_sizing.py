"""How much of each topic a batch takes so that it lasts as long as it should; no server.

What a message of a topic costs is learnt from how long whole batches take, which is all that a
source is told: duration = overhead + messages of A * cost of A + messages of B * cost of B + ... A
Kalman filter keeps overhead and costs, and how sure it is of each. As long as it is not sure, it
lets the mixture of topics vary from batch to batch: in batches that are all mixed alike nobody
could tell a slow kind of message from a fast one.

The time that is wanted is shared among topics, not the messages: where one kind is a hundred times
as slow, a hundredth of its messages take as long. What a topic does not need goes to the others.

For one topic, a moving average of seconds a message does as well. For several it does not: in a
simulated query with 20 us for a message of one topic and 100 ms for one of the other (target 2 s,
noise 10 %), the fast topic gets 23 000 messages a second with this filter, 9 with one moving
average, and 7 000 with an average for each topic, corrected by that topic's share of the batch.
"""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np

# The first batch of a run takes Spark seconds, whatever is in it, so nothing is learnt from it.
FIRST_MESSAGES = 10
# What is known from so many messages of a topic says little about many times as many.
GROWTH = 4
# Batches of equal work differ about so much, and what a message costs changes so much in a batch.
NOISE = 0.15
DRIFT = 0.1
# An estimate of a cost that may be so much off is not sure enough.
UNSURE = 0.3
# Spark's own share of a batch, at the start; seconds.
OVERHEAD_S = 0.2
LEAST_COST_S = 1e-7


class FlowControl:
    """What one run has learnt. target_s: how long a batch should last."""

    def __init__(self, target_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._target_s = target_s
        self._clock = clock
        self._names: list[str] = []
        # Overhead first, then the cost of a message of each topic; and their covariance.
        self._state = np.array([OVERHEAD_S])
        self._covariance = np.array([[OVERHEAD_S**2]])
        self._most: dict[str, int] = {}
        self._begun: float | None = None
        self._batches = 0

    @property
    def overhead_s(self) -> float:
        """What a batch takes whatever is in it, in seconds."""
        return float(self._state[0])

    def knows(self, topic: str) -> bool:
        """Whether it has an idea of what a message of that topic takes."""
        return topic in self._most

    def forget(self, topic: str) -> None:
        """That topic is not read any more."""
        if topic not in self._names:
            return
        at = 1 + self._names.index(topic)
        self._names.remove(topic)
        self._most.pop(topic, None)
        self._state = np.delete(self._state, at)
        self._covariance = np.delete(np.delete(self._covariance, at, 0), at, 1)

    def cost_s(self, topic: str) -> float:
        """What a message of that topic takes, in seconds."""
        return float(self._state[1 + self._names.index(topic)])

    def begin(self) -> None:
        """A batch is handed out."""
        self._begun = self._clock()

    def done(self, taken: Mapping[str, int]) -> None:
        """It is done: that many messages of each topic were in it."""
        if self._begun is None:
            return
        duration_s, self._begun = self._clock() - self._begun, None
        self._batches += 1
        for topic, messages in taken.items():
            self._know(topic)
            self._most[topic] = max(self._most.get(topic, 0), messages)
        if self._batches > 1:
            self._learn(duration_s, taken)

    def limits(self, due: Mapping[str, int]) -> dict[str, int]:
        """How many messages of each topic the next batch may take, at least one of each."""
        for topic in due:
            self._know(topic)
        wanted = {topic: min(count, self._trusted(topic)) for topic, count in due.items()}
        seconds = {topic: count * self.cost_s(topic) for topic, count in wanted.items()}
        left_s = max(self._target_s - self.overhead_s, self._target_s / 10)
        limits = {}
        for at, topic in enumerate(sorted(seconds, key=lambda topic: seconds[topic])):
            share_s = min(seconds[topic], left_s / (len(seconds) - at))
            left_s -= share_s
            limits[topic] = min(wanted[topic], max(1, round(share_s / self.cost_s(topic))))
        return self._varied(limits)

    def _know(self, topic: str) -> None:
        """A topic that is new costs as much as makes a first small batch, or anything else."""
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

    def _trusted(self, topic: str) -> int:
        known = self._most.get(topic, 0)
        return GROWTH * known if known and self._batches > 1 else FIRST_MESSAGES

    def _varied(self, limits: dict[str, int]) -> dict[str, int]:
        """Of the topics whose cost is not known well, every second in turn gives half as much."""
        unsure = sorted(topic for topic in limits if self._is_unsure(topic))
        if len(limits) < 2 or not unsure:
            return limits
        fewer = unsure[self._batches % len(unsure)]
        return {**limits, fewer: max(1, limits[fewer] // 2)}

    def _is_unsure(self, topic: str) -> bool:
        at = 1 + self._names.index(topic)
        return bool(np.sqrt(self._covariance[at, at]) > UNSURE * self._state[at])

    def _learn(self, duration_s: float, taken: Mapping[str, int]) -> None:
        counts = np.array([1.0, *(float(taken.get(topic, 0)) for topic in self._names)])
        drift = np.where(counts > 0, DRIFT * self._state, 0.0)
        covariance = self._covariance + np.diag(drift**2)
        expected = counts @ self._state
        # Noise in proportion to the expected time would let one batch that hangs count for as much
        # as many; in proportion to the duration, it would hide that messages have become slow.
        noise_s = NOISE * max(math.sqrt(duration_s * expected), OVERHEAD_S)
        gain = covariance @ counts
        gain /= counts @ gain + noise_s**2
        self._state = np.maximum(self._state + gain * (duration_s - expected), LEAST_COST_S)
        self._covariance = covariance - np.outer(gain, counts @ covariance)
