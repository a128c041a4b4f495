"""Polling: when a query that has found nothing due asks Redis again, and how much it asks."""

import time
from collections.abc import Callable, Sequence

from rmq_spark.protocol.claims import SlotDue

# The most slots that an idle query asks in a second. A slot costs Redis and the reader about 10 us
# each; a look into its store alone costs 1 us.
SLOTS_A_SECOND = 128
# The time between two requests to all slots, if there are few slots.
SHORTEST_S = 1.0
# The longest sleep in one call: the rest of the query and query.stop() wait for the source.
LONGEST_WAIT_S = 0.1
# The longest rest of a query whose batches nobody reads, unless its pollInterval is longer.
LONGEST_REST_S = 10.0
# An idle Spark asks again 10 ms after the last answer. If it asks later than this, it has run a
# batch of other sources in between.
IDLE_WITHIN_S = 0.05


class Watch:
    """The schedule of an idle query's requests to Redis: one for each pollInterval.

    An idle Spark asks the source for the next offset every 10 ms. If that is too early, the source
    sleeps before it answers. This also saves work in Spark, which does little else while idle. In a
    query with other, busy sources, Spark asks after each of their batches; there the source answers
    at once.

    Most requests only look into the stores. A request to all slots also shows when the next wait of
    a retry or the next lease ends; at that time, all slots are asked again. To find waits and
    leases that began later, all slots are asked once a second anyway, or less often if that would
    exceed 128 slots a second.
    """

    def __init__(
        self,
        poll_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._poll_interval_s = poll_interval_s
        self._clock = clock
        self._sleep = sleep
        # Times of the clock, in seconds.
        self._rests_until = 0.0
        self._all_again = 0.0
        self._answered = 0.0

    def sleep_if_early(self) -> bool:
        """Sleep up to 0.1 s if it is too early to ask Redis. Return whether it still is.

        Only an idle query sleeps.
        """
        asked = self._clock()
        left_s = self._rests_until - asked
        if left_s > 0 and asked - self._answered < IDLE_WITHIN_S:
            self._sleep(min(left_s, LONGEST_WAIT_S))
        self._answered = self._clock()
        return self._answered < self._rests_until

    def pause_asking(self, doublings: int = 0) -> None:
        """Leave Redis alone for a pollInterval, doubled ``doublings`` times.

        Doubling ends at 10 s, or at the pollInterval if that is longer.
        """
        self._answered = self._clock()
        longest_s = max(LONGEST_REST_S, self._poll_interval_s)
        rest_s = min(self._poll_interval_s * 2 ** min(doublings, 30), longest_s)
        self._rests_until = self._answered + rest_s

    def knows_too_little(self) -> bool:
        """Return whether the next request must ask all slots, not only look into the stores."""
        return self._clock() >= self._all_again

    def found_nothing(self, slots: Sequence[SlotDue]) -> None:
        """Rest after a request to all slots has found nothing due.

        slots: the replies; they show when the next wait or lease ends.
        """
        self.pause_asking()
        waits_s = [slot.next_ms / 1000 for slot in slots if slot.next_ms is not None]
        longest_s = max(SHORTEST_S, len(slots) / SLOTS_A_SECOND)
        self._all_again = self._clock() + min([longest_s, *waits_s])

    def found_something(self) -> None:
        """Let the next request ask all slots at once.

        Call this when a batch is planned: its effect on the slots is unknown, and it may leave due
        messages behind. Call it also when the query gains slots.
        """
        self._rests_until = self._all_again = 0.0
