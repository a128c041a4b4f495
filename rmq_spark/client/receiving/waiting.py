"""Waiting for messages: Redis wakes readers, who also look now and then for what it missed."""

import logging
import time
from collections.abc import Collection, Sequence
from functools import partial
from itertools import cycle, islice

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.slot_waits import SlotWaits
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import SlotDue
from rmq_spark.transport.wakeups import Wakeups

_log = logging.getLogger(__name__)

# How often a reader looks into slots that it was not woken for.
LOOK_EVERY_S = 1.0
# How many slots such a look takes: an idle reader should cost Redis less than 50 commands a second.
# It counts those within scripts: two a slot and two a call; a cluster needs a call for each slot.
SLOTS_A_LOOK, SLOTS_A_LOOK_IN_A_CLUSTER = 20, 10


class Waiter:
    """The waiting of one reader for messages of a topic, in one consumer group.

    ::

        while not found:
            waiter.wait(until)
            found = take(waiter.ripe())  # which calls waiter.looked

    Each second, it looks into some of the slots, so that a wake-up that was missed delays a message
    by a second, or with many slots by some more. Once that has happened, or while Redis sends no
    wake-ups, all slots are ripe each second. A waiter belongs to one thread; another may close it.

    at_work: the slots that have begun and not ended.
    """

    def __init__(self, queue: Queue) -> None:
        self.slots = queue.slots
        self._slot_of = {queue.keys.store(slot): slot for slot in queue.slots}
        self._wakeups = Wakeups(queue.server, self._slot_of)
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
        """Stop waiting, in whatever thread."""
        self._closed = True
        self._wakeups.close()

    def ripe(self) -> list[int]:
        """Return the slots that may have messages to take."""
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
        """Note that a slot is in work, so that it is not ripe until that ends."""
        self.at_work.add(slot)
        self._slots.begin(slot)

    def end(self, slot: int, after_s: float = 0.0) -> None:
        """Note that a slot is no longer in work. It is ripe, now or after a time."""
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
        """End a wait. Any thread can call it."""
        self._wakeups.poke()

    def looked(self, found: list[SlotDue]) -> None:
        """Note what a look into ripe slots has found."""
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
            if queue.server.aside(partial(self._wakeups.wait, min(times) - now)):
                return

    def look_if_time(self, queue: Queue) -> bool:
        """Look into some slots, once a second, for what wake-ups have missed.

        Call it also while there is work: it might never end. Returns whether it was time.
        """
        if time.monotonic() < self._look_again_s:
            return False
        self._hear()
        self._look(queue)
        self._look_again_s = time.monotonic() + LOOK_EVERY_S
        return True

    def _hear(self) -> None:
        woken, fresh = self._wakeups.take()
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
                "second late. It is an earlier version, or its Redis user may not publish "
                "(docs/security.md).",
                queue.definition.name,
            )
        if self._misses or not self._wakeups.hears_all:
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
