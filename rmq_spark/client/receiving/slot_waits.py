"""When a reader that waits must look into each slot again."""

import heapq
import time
from collections.abc import Callable, Iterable

from rmq_spark.protocol.claims import SlotDue

# What others hold back may become free without a wake-up, such as by the commit of their batch.
HELD_AGAIN_S = 1.0
# Redis' clock and ours may drift apart by so much until a message is due that waits for long.
NEAR_S = 60.0


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
        """Return the slots to look into now, in order."""
        now = self._clock()
        while self._order and self._order[0][0] <= now:
            at, slot = heapq.heappop(self._order)
            if self._times.get(slot) == at:
                self.ripen([slot])
        return sorted(self._ripe)

    def next_s(self) -> float | None:
        """Return when the next slot becomes ripe; None if that is unknown."""
        if self._ripe:
            return self._clock()
        while self._order and self._times.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def ripen(self, slots: Iterable[int]) -> None:
        """Note that messages may have come into slots."""
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
        """Note that a slot is no longer in work. It is ripe, now or after a time."""
        self._begun.discard(slot)
        if after_s:
            self._set_time(slot, self._clock() + after_s)
        else:
            self.ripen([slot])

    def wake(self, slot: int, at_s: float) -> None:
        """Note that a message of a slot falls due at a time."""
        if slot not in self._ripe | self._begun and at_s < self._times.get(slot, at_s + 1):
            self._set_time(slot, at_s)

    def looked(self, found: Iterable[SlotDue]) -> None:
        """Note what a look into ripe slots has found."""
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
        """Return whether a slot is in work, or is ripe now or about now."""
        is_near = self._times.get(slot, float("inf")) <= self._clock() + NEAR_S
        return slot in self._ripe | self._begun or is_near

    def expects_nothing(self, slot: int) -> bool:
        """Return whether nothing was to fall due in a slot about now."""
        return slot not in self._held and not self.is_ripe_soon(slot)

    def _set_time(self, slot: int, at_s: float) -> None:
        self._times[slot] = at_s
        heapq.heappush(self._order, (at_s, slot))
