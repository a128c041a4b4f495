"""Waiting for messages: Redis wakes readers, who also look now and then for what it missed."""

import heapq
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import cycle, islice

from rmq_spark.client.queue import Queue
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import SlotDue
from rmq_spark.redis.notifications import Notifications

_log = logging.getLogger(__name__)

# How often a reader looks into slots that it was not woken for.
LOOK_EVERY_S = 1.0
# How many slots such a look takes: an idle reader should cost Redis less than 50 commands a second.
# It counts those within scripts: two a slot and two a call; a cluster needs a call for each slot.
SLOTS_A_LOOK, SLOTS_A_LOOK_IN_A_CLUSTER = 20, 10
# What others hold back may become free without a wake-up, such as by the commit of their batch.
HELD_AGAIN_S = 1.0
# Redis' clock and ours may drift apart by so much until a message is due that waits for long.
NEAR_S = 60.0
# So many times that no longer hold may lie between the others: to drop them takes a while.
_STALE = 100


class Waiter:
    """The waiting of one reader for messages of a topic, in one consumer group.

    ::

        while not found:
            waiter.wait(queue, until_s)
            found = take(waiter.ripe())  # which calls waiter.looked

    Each second, it looks into some of the slots, so that a wake-up that was missed delays a message
    by a second, or with many slots by some more. Once that has happened, or while Redis sends no
    wake-ups, all slots are ripe each second. A waiter belongs to one thread; another may close it.

    at_work: the slots that have begun and not ended.
    """

    def __init__(self, queue: Queue) -> None:
        self.slots = queue.slots
        self._slot_of = {queue.keys.store(slot): slot for slot in queue.slots}
        self._notifications = Notifications(queue.server, self._slot_of)
        self._slots = SlotWaits(queue.slots)
        self._read: Collection[int] = queue.slots
        self.at_work: set[int] = set()
        self._turns = cycle(queue.slots)
        self._look_again_s = time.monotonic() + LOOK_EVERY_S
        # Slots with due messages of which no wake-up has told, unless it is still on its way.
        self._suspects: set[int] = set()
        self._misses = self._has_warned = False
        self._woken: set[int] = set()  # slots in which a message is due by a wake-up
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._notifications.close()

    def ripe(self) -> list[int]:
        self._hear()
        return self._slots.ripe()

    def sure_of(self, ripe: Sequence[int]) -> int | None:
        """Return the ripe slot, if it is one alone and a wake-up has just announced its message.

        Does so once: somebody else may take the message first.
        """
        is_sure = len(ripe) == 1 and ripe[0] in self._woken
        self._woken.difference_update(ripe)
        return ripe[0] if is_sure else None

    def begin(self, slot: int) -> None:
        self.at_work.add(slot)
        self._slots.begin(slot)

    def end(self, slot: int, after_s: float = 0.0) -> None:
        self.at_work.discard(slot)
        if slot in self._read:
            self._slots.end(slot, after_s)

    def read_only(self, slots: Collection[int]) -> None:
        """Let only these slots become ripe from now on. At first, all of them may."""
        before, self._read = self._read, slots
        if before is slots:
            return
        for slot in before:
            if slot not in slots:
                self._slots.begin(slot)
        for slot in slots:
            if slot not in before and slot not in self.at_work:
                self._slots.end(slot)

    def poke(self) -> None:
        self._notifications.poke()

    def looked(self, found: list[SlotDue]) -> None:
        self._slots.looked(found)

    def wait(self, queue: Queue, until_s: float) -> None:
        """Wait until a slot is ripe, for a poke, a close, or until a time of time.monotonic."""
        while not self._closed and not self.ripe():
            now = time.monotonic()
            if now >= until_s:
                return
            if self.look_if_time(queue):
                continue
            times = [until_s, self._look_again_s, self._slots.next_s() or until_s]
            if queue.server.run_in_thread(partial(self._notifications.wait, min(times) - now)):
                return

    def look_if_time(self, queue: Queue) -> bool:
        """Look into some slots, once a second, for what wake-ups have missed.

        Return whether. Call it also while there is work: it might never end.
        """
        if time.monotonic() < self._look_again_s:
            return False
        self._hear()
        self._look(queue)
        self._look_again_s = time.monotonic() + LOOK_EVERY_S
        return True

    def _hear(self) -> None:
        woken, fresh = self._notifications.take()
        if woken:
            self._misses = False
        self._slots.ripen(self._slot_of[store] for store in fresh)
        for store, at_s in woken.items():
            self._suspects.discard(self._slot_of[store])
            self._slots.wake(self._slot_of[store], at_s)
            if at_s <= time.monotonic():
                self._woken.add(self._slot_of[store])

    def _look(self, queue: Queue) -> None:
        """Look into the next slots; without wake-ups to rely on, let all of them be ripe."""
        if self._suspects:
            self._misses = True
        self._suspects.clear()
        if self._misses and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "rmq: a sender to topic %s does not wake readers, so messages may be found a "
                "second late. Its Redis user may not publish "
                "(docs/security.md).",
                queue.definition.name,
            )
        if self._misses or not self._notifications.hears_all:
            self._slots.ripen(self._slot_of.values())
            return
        in_cluster = queue.server.is_cluster
        most = SLOTS_A_LOOK_IN_A_CLUSTER if in_cluster else SLOTS_A_LOOK
        slots = list(islice(self._turns, min(most, len(self._slot_of))))
        found = queue.ask(reading.stirred, slots, one_node=not in_cluster)
        for slot, stir in found.items():
            if stir is reading.Stir.DUE and self._slots.expects_nothing(slot):
                self._suspects.add(slot)
            if stir is reading.Stir.DUE or (
                stir is reading.Stir.LATER and not self._slots.is_ripe_soon(slot)
            ):
                self._slots.ripen([slot])


class SlotWaits:
    """The slots that are ripe: a look into them may find messages to take. At first, all of them.

    A slot stays ripe until a look finds nothing to take in it. It becomes ripe again when a message
    falls due, by what that look has shown or by a wake-up. Times are in seconds, of ``clock``.
    """

    def __init__(self, slots: Iterable[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ripe = set(slots)
        self._times: dict[int, float] = {}  # of the slots that are not ripe, if known
        self._order: list[tuple[float, int]] = []  # these, and times that no longer hold
        self._held: set[int] = set()
        self._begun: set[int] = set()

    def ripe(self) -> list[int]:
        now = self._clock()
        while self._order and self._order[0][0] <= now:
            at, slot = heapq.heappop(self._order)
            if self._times.get(slot) == at:
                self.ripen([slot])
        return sorted(self._ripe)

    def next_s(self) -> float | None:
        if self._ripe:
            return self._clock()
        while self._order and self._times.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def ripen(self, slots: Iterable[int]) -> None:
        for slot in slots:
            if slot not in self._begun:
                self._ripe.add(slot)
                self._times.pop(slot, None)

    def begin(self, slot: int) -> None:
        """Note that a slot is in work: it is not ripe until that ends."""
        self._begun.add(slot)
        self._ripe.discard(slot)
        self._times.pop(slot, None)

    def end(self, slot: int, after_s: float = 0.0) -> None:
        """Note that a slot is no longer in progress. It is ripe, now or after a time."""
        self._begun.discard(slot)
        if after_s:
            self._set_time(slot, self._clock() + after_s)
        else:
            self.ripen([slot])

    def wake(self, slot: int, at_s: float) -> None:
        if not self._is_ripe_or_begun(slot) and at_s < self._times.get(slot, at_s + 1):
            self._set_time(slot, at_s)

    def looked(self, found: Iterable[SlotDue]) -> None:
        now = self._clock()
        for slot in found:
            self._held.discard(slot.slot)
            if slot.due:
                continue
            self._ripe.discard(slot.slot)
            self._times.pop(slot.slot, None)
            if slot.next_ms is not None:
                self._set_time(slot.slot, now + slot.next_ms / 1000)
            if slot.held:
                self._held.add(slot.slot)
                self.wake(slot.slot, now + HELD_AGAIN_S)

    def is_ripe_soon(self, slot: int) -> bool:
        is_near = self._times.get(slot, float("inf")) <= self._clock() + NEAR_S
        return is_near or self._is_ripe_or_begun(slot)

    def _is_ripe_or_begun(self, slot: int) -> bool:
        return slot in self._ripe or slot in self._begun  # a union would take 0.7 ms

    def expects_nothing(self, slot: int) -> bool:
        return slot not in self._held and not self.is_ripe_soon(slot)

    def _set_time(self, slot: int, at_s: float) -> None:
        self._times[slot] = at_s
        heapq.heappush(self._order, (at_s, slot))
        if len(self._order) > 2 * len(self._times) + _STALE:
            self._order = [(at_s, slot) for slot, at_s in self._times.items()]
            heapq.heapify(self._order)
