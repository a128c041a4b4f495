"""Polling: when a query that has found nothing due asks Redis again, and how much it asks."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rmq_spark.protocol.claims import SlotDue

# The most slots that an idle query asks in a second. A slot costs Redis and the reader about 10 us
# each; a look into its store alone costs 1 us.
SLOTS_A_SECOND = 128
# The same, and the time between looks into the stores, while Redis wakes the query.
SLOTS_A_SECOND_IF_WOKEN = 16
LOOK_EVERY_S = 1.0
# The time between two requests to all slots, if there are few slots.
SHORTEST_S = 1.0
SHORTEST_IF_WOKEN_S = 10.0
# The longest sleep in one call: the rest of the query and query.stop() wait for the source.
LONGEST_WAIT_S = 0.1
# The longest rest of a query whose batches nobody reads, unless its pollInterval is longer.
LONGEST_REST_S = 10.0
# An idle Spark asks again 10 ms after the last answer. If it asks later than this, it has run a
# batch of other sources in between.
IDLE_WITHIN_S = 0.05
# So many batches in a row that no wake-up has told of show that wake-ups cannot be relied on.
MISSES = 3
_NEVER = float("inf")


class Bell(Protocol):
    """The wake-ups of a query. Times are those of the clock of its Watch."""

    @property
    def hears_all(self) -> bool:
        """Whether Redis sends the wake-ups of all slots."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until a wake-up comes, at most so long."""

    def first(self) -> float | None:
        """Take the wake-ups that came, and return when the first message falls due; or None."""


class NoBell:
    """No wake-ups: the query only polls."""

    hears_all = False

    def wait(self, timeout_s: float) -> None:
        """Sleep."""
        time.sleep(timeout_s)

    def first(self) -> float | None:
        """Return None."""
        return None


class Watch:
    """The schedule of an idle query's requests to Redis.

    An idle Spark asks the source for the next offset every 10 ms. If that is too early, the source
    sleeps before it answers. This also saves work in Spark, which does little else while idle. In a
    query with other, busy sources, Spark asks after each of their batches; there the source answers
    at once.

    While Redis wakes the query, it looks into the stores once a second, to find what a wake-up has
    missed; without wake-ups, once a pollInterval. A request to all slots also shows when the next
    message falls due, and the next wait of a retry or the next lease ends; at that time, or when a
    wake-up comes, all slots are asked again. To find leases that began later, all slots are asked
    now and then anyway: at most 128 slots a second, or 16 with wake-ups.
    """

    def __init__(
        self,
        poll_interval_s: float,
        bell: Bell | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bell: Bell = bell or NoBell()
        self._poll_interval_s = poll_interval_s
        self._clock = clock
        # Times of the clock, in seconds.
        self._rests_until = 0.0
        self._all_again = 0.0
        self._answered = 0.0
        self._wakes_at = _NEVER
        self._sound = True  # whether a wake-up ends the rest
        self._misses = 0

    @property
    def _is_woken(self) -> bool:
        """Whether wake-ups announce all messages."""
        return self._misses < MISSES and self.bell.hears_all

    def sleep_if_early(self) -> bool:
        """Sleep up to 0.1 s if it is too early to ask Redis. Return whether it still is.

        Only an idle query sleeps.
        """
        asked = self._clock()
        if asked - self._answered < IDLE_WITHIN_S:
            while (left_s := min(self._rest_end(), asked + LONGEST_WAIT_S) - self._clock()) > 0:
                self.bell.wait(left_s)
        end_s = self._rest_end()
        self._answered = self._clock()
        return self._answered < end_s

    def _rest_end(self) -> float:
        first = self.bell.first()
        if first is not None:
            self._misses = 0
            self._wakes_at = min(self._wakes_at, first)
        return min(self._rests_until, self._wakes_at) if self._sound else self._rests_until

    def pause_asking(self, doublings: int = 0) -> None:
        """Leave Redis alone for a pollInterval, doubled ``doublings`` times.

        Doubling ends at 10 s, or at the pollInterval if that is longer. No wake-up ends a doubled
        rest.
        """
        self._answered = self._clock()
        self._sound = not doublings
        longest_s = max(LONGEST_REST_S, self._poll_interval_s)
        rest_s = min(self._poll_interval_s * 2 ** min(doublings, 30), longest_s)
        self._rests_until = self._answered + rest_s

    def rest(self) -> None:
        """Leave Redis alone until the next look into the stores, or until a message falls due."""
        self._answered = self._clock()
        self._sound = True
        rest_s = max(self._poll_interval_s, LOOK_EVERY_S if self._is_woken else 0.0)
        self._rests_until = min(self._answered + rest_s, self._all_again)

    def knows_too_little(self) -> bool:
        """Return whether the next request must ask all slots, not only look into the stores."""
        return self._clock() >= min(self._all_again, self._wakes_at)

    def found_nothing(self, slots: Sequence[SlotDue]) -> None:
        """Rest after a request to all slots has found nothing due.

        slots: the replies; they show when the next message falls due, or the next wait or lease
        ends.
        """
        waits_s = [slot.next_ms / 1000 for slot in slots if slot.next_ms is not None]
        if self._is_woken:
            longest_s = max(SHORTEST_IF_WOKEN_S, len(slots) / SLOTS_A_SECOND_IF_WOKEN)
        else:
            longest_s = max(SHORTEST_S, len(slots) / SLOTS_A_SECOND)
        self._all_again = self._clock() + min([longest_s, *waits_s])
        self._wakes_at = _NEVER
        self.rest()

    def found_something(self) -> None:
        """Let the next request ask all slots at once.

        Call this when a batch is planned: its effect on the slots is unknown, and it may leave due
        messages behind. Call it also when the query gains slots.
        """
        self._rests_until = self._all_again = 0.0
        self._wakes_at = _NEVER

    def note_missed(self) -> None:
        """Note a batch that only a look into the stores has found, not a wake-up."""
        self._misses += 1
