"""When a query that found nothing to do asks Redis again, and how much."""

import time
from collections.abc import Callable, Sequence

from rmq_spark.protocol.claims import SlotDue

# Asking a slot what is due costs Redis and the reader about 10 us each; a store alone costs 1 us.
SLOTS_A_SECOND = 128
SHORTEST_S = 1.0
# Nothing else in the query goes on while its source waits, and query.stop() waits too.
LONGEST_WAIT_S = 0.1
# A query whose batches nobody reads is not asked to plan the next one more often than this.
LONGEST_REST_S = 10.0
# Spark asks again 10 ms after the last answer, unless it has had a batch of other sources between.
IDLE_WITHIN_S = 0.05


class Watch:
    """An idle Spark asks for the next offset every 10 ms; Redis is asked once a pollInterval.

    Who asks sooner is kept waiting, which spares Spark, too: most of what it does while idle is to
    ask. A query with other, busy sources asks after each of their batches, which do not wait.

    Then it is enough to look into the stores, until something that time alone brings about is to be
    expected: a wait or a lease ends. Those that began since all slots were asked are found a little
    later: all are asked again once a second, or as often as keeps it below 128 slots a second.
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
        self._rests_until = 0.0
        self._all_again = 0.0
        self._answered = 0.0

    def rests(self) -> bool:
        """Whether Redis is not to be asked yet; an idle query waits for that, up to 0.1 s."""
        asked = self._clock()
        left_s = self._rests_until - asked
        if left_s > 0 and asked - self._answered < IDLE_WITHIN_S:
            self._sleep(min(left_s, LONGEST_WAIT_S))
        self._answered = self._clock()
        return self._answered < self._rests_until

    def rest(self, doublings: int = 0) -> None:
        """Do not ask Redis for a pollInterval, doubled this often, up to 10 s."""
        self._answered = self._clock()
        longest_s = max(LONGEST_REST_S, self._poll_interval_s)
        rest_s = min(self._poll_interval_s * 2 ** min(doublings, 30), longest_s)
        self._rests_until = self._answered + rest_s

    def knows_too_little(self) -> bool:
        """Whether all slots are to be asked."""
        return self._clock() >= self._all_again

    def found_nothing(self, slots: Sequence[SlotDue]) -> None:
        """All slots were asked, and nothing is due."""
        self.rest()
        waits_s = [slot.next_ms / 1000 for slot in slots if slot.next_ms is not None]
        longest_s = max(SHORTEST_S, len(slots) / SLOTS_A_SECOND)
        self._all_again = self._clock() + min([longest_s, *waits_s])

    def found_something(self) -> None:
        """A batch is planned; what it changes is not known, nor whether it took all there was."""
        self._rests_until = self._all_again = 0.0
