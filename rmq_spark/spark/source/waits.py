"""When a query that has found nothing due asks Redis again, and what wakes it before that."""

import time
from collections.abc import Callable, Iterable, Sequence

from rmq_spark.client.queue import Queue
from rmq_spark.protocol.claims import SlotDue
from rmq_spark.redis.notifications import Notifications
from rmq_spark.redis.server import Server
from rmq_spark.topics.keys import Keys

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


class Bell:
    """The wake-ups of all slots of some topics; none before ``listen``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._heard: set[tuple[Keys, range]] = set()
        self._notifications: Notifications | None = None

    def listen(self, queues: Iterable[Queue]) -> None:
        # Without the names of all stores: an idle query of 65 536 slots would do nothing else.
        heard = {(queue.keys, queue.slots) for queue in queues}
        if heard != self._heard:
            self.close()
            self._heard = heard
            stores = (keys.store(slot) for keys, slots in heard for slot in slots)
            self._notifications = Notifications(self._server, stores)

    def close(self) -> None:
        if self._notifications is not None:
            self._notifications.close()
            self._notifications = None
            self._heard = set()

    @property
    def hears_all(self) -> bool:
        return self._notifications is not None and self._notifications.hears_all

    def wait(self, timeout_s: float) -> None:
        if self._notifications is None:
            time.sleep(timeout_s)
        else:
            self._notifications.wait(timeout_s)

    def first(self) -> float | None:
        """Take the wake-ups that came, and return when the first message falls due; or None."""
        if self._notifications is None:
            return None
        woken, fresh = self._notifications.take()
        return min([0.0] if fresh else woken.values(), default=None)


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
        self, poll_interval_s: float, bell: Bell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.bell = bell
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
        return self._misses < MISSES and self.bell.hears_all

    def sleep_if_early(self) -> bool:
        """Sleep up to 0.1 s, in an idle query, if it is too early. Return whether it still is."""
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
        """Leave Redis alone for a pollInterval, doubled so often, up to 10 s if it is shorter.

        No wake-up ends a doubled rest.
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
        """Rest, as all slots have nothing due, until one may have by these replies."""
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

        A batch that was planned may leave due messages behind, and new slots may have some.
        """
        self._rests_until = self._all_again = 0.0
        self._wakes_at = _NEVER

    def note_missed(self) -> None:
        """Note a batch that only a look into the stores has found, not a wake-up."""
        self._misses += 1
