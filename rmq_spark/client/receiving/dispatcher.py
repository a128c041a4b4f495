"""The dispatcher of a listener: finds slots with due messages, and hands them to the workers."""

import math
import queue as queues
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.callers import Caller
from rmq_spark.client.receiving.consumer_run import IN_TURN_EVERY, begin_run, highest_first
from rmq_spark.client.receiving.listener_settings import ListenerSettings
from rmq_spark.client.receiving.slot_claims import SlotClaims
from rmq_spark.client.receiving.waits import Waiter
from rmq_spark.client.receiving.work_in_process import IN_PROCESS
from rmq_spark.client.receiving.workers import Workers
from rmq_spark.errors import (
    PASSING,
    Fenced,
    InvalidOption,
    RmqError,
    ServerUnavailable,
    UnknownTopic,
)
from rmq_spark.process import UnfailingLog
from rmq_spark.protocol import returning
from rmq_spark.protocol.claims import SlotDue

_log = UnfailingLog(__name__)

# How long a stop takes a Redis to be away after it was found to be.
_AWAY_S = 5.0
# How long a worker's write that was refused counts, if nobody writes again: longer than its tries.
_REFUSED_S = 60.0
# How often the topic's definition is read again.
_LOOK_EVERY_S = 1.0
# How often the log repeats that Redis is away.
_TELL_EVERY_S = 60.0
# How long what a look has found is handed out without another one.
_LOOK_LASTS_S = 0.1
# How often a listener that holds back looks whether it may go on.
_HELD_BACK_S = 0.02
# The fewest slots to ask at once what is due, if so many may have messages.
_SLOTS_A_LOOK = 64


class Dispatcher:
    """One run of a listener, from its first claim to its last.

    One thread calls ``run``, and any thread ``note`` and ``wake``. came_round_s: when the loop last
    came round, by the monotonic clock. error: the one that has ended it. left_s: returns how long a
    stop still waits for running calls.
    """

    def __init__(
        self,
        listener: str,
        open_queue: Callable[[], Queue],
        name: str,
        settings: ListenerSettings,
        open_caller: Callable[[], Caller],
        stopping: threading.Event,
        left_s: Callable[[], float],
    ) -> None:
        """Begin a run of the consumer ``name``. listener: for logs."""
        self._listener = listener
        self._open_queue = open_queue
        self._stopping = stopping
        self._left_s = left_s
        self._queue = queue = open_queue()
        run = begin_run(queue, name, settings.lease_ms, settings.ensemble)
        self._ownership = run.ownership
        self._claims = SlotClaims(queue, run, settings.delay_ms)
        self._name = name
        self._slots_a_look = max(settings.workers, _SLOTS_A_LOOK)
        self.error: RmqError | None = None
        self.came_round_s = time.monotonic()
        # When Redis was last found to be away, and how.
        self._away: tuple[float, RmqError] | None = None
        # The last line of the log about an error that passes.
        self._told_s, self._told = -math.inf, RmqError
        self._refreshed_s = 0.0
        self._last_slot = -1  # the one that was handed out last
        self._due: deque[SlotDue] = deque()  # those that the last look has found, not handed out
        self._looked_s, self._looks = 0.0, 0
        # Since when it is alone with a suspect message, and until when the next one waits, so that
        # others have as much of the time.
        self._alone_since_s: float | None = None
        self._no_suspects_until_s = 0.0
        self._ended: queues.SimpleQueue[tuple[int, float]] = queues.SimpleQueue()
        self._waiter = Waiter(queue)
        try:
            self.workers = Workers(
                self._claims, settings, open_caller, self._end, self.note, stopping
            )
        except BaseException:  # such as of a process that may start no more threads
            self._waiter.close()
            self._ownership.stop()
            raise

    @property
    def is_away(self) -> bool:
        """Whether Redis did not answer when it was last asked."""
        return self._away is not None

    def run(self) -> None:
        """Have messages worked on until ``stopping`` is set, and then end what is in progress."""
        try:
            while not self._stopping.is_set():
                self.came_round_s = time.monotonic()
                self._dispatch()
        finally:
            self._finish()
            self._ownership.stop()

    def wake(self) -> None:
        """End the wait for messages, after ``stopping`` was set."""
        self._waiter.close()

    def note(self, error: RmqError) -> None:
        """Note an error: one that passes, or one that ends the listener."""
        if isinstance(error, PASSING):
            now = time.monotonic()
            if isinstance(error, ServerUnavailable):
                self._away = now, error
            if now > self._told_s + _TELL_EVERY_S or type(error) is not self._told:
                self._told_s, self._told = now, type(error)
                _log.warning("rmq: listener %s waits for Redis: %s", self._listener, error)
            return
        self.error = self.error or error
        self._stopping.set()
        self.wake()

    def _end(self, slot: int, rest_s: float) -> None:
        """Let a slot be handed out again after a rest. Called in the threads of the workers."""
        self._ended.put((slot, rest_s))
        self._waiter.poke()

    def _dispatch(self) -> None:
        is_reserved, handed = self.workers.reserve(_LOOK_EVERY_S), 0
        try:
            self._refresh_if_time()
            self._claims.give_back_failed(self._waiter.at_work)
            if is_reserved:
                handed = self._hand_out()
                if not handed:
                    self._waiter.wait(self._queue, time.monotonic() + _LOOK_EVERY_S)
        except PASSING as error:
            self.note(error)
            self._stopping.wait(_LOOK_EVERY_S)
        except RmqError as error:
            self.note(error)
        if is_reserved and not handed:
            self.workers.cancel()

    def _refresh_if_time(self) -> None:
        while not self._ended.empty():
            self._waiter.end(*self._ended.get())
        now = time.monotonic()
        if now < self._refreshed_s + _LOOK_EVERY_S:
            return
        slots = self._queue.slots
        self._queue, self._refreshed_s = self._open_queue(), now
        if self._away is not None and now > self.workers.refused_s + _REFUSED_S:
            self._away, self._told_s = None, -math.inf
            _log.warning("rmq: listener %s: Redis answers again", self._listener)
        self._ownership.check(self._queue.definition)
        if self._queue.slots != slots:
            raise UnknownTopic(
                f"The topic {self._queue.definition.name} was deleted and created again with "
                "another number of slots. Start the listener again."
            )
        self._claims.queue = self._queue
        self._claims.epochs = self._ownership.between_batches(self._waiter.at_work)
        self._waiter.read_only(self._claims.epochs)

    def _hand_out(self) -> int:
        """Hand slots to the workers that are free, the first of which is reserved. Return how many.

        A suspect message is handed out alone.
        """
        self._waiter.look_if_time(self._queue)
        self._look_if_needed()
        if not self._waiter.at_work:
            IN_PROCESS.end(self)
        suspect = self._suspect()
        if suspect is not None:
            self._due.clear()
            self._hand(suspect)
            return 1
        if self._due and not self._may_begin():
            self._stopping.wait(_HELD_BACK_S)
            return 0
        handed = 0
        while self._due and (not handed or self.workers.reserve()):
            self._hand(replace(self._due.popleft(), alone=False))
            handed += 1
        return handed

    def _hand(self, slot: SlotDue) -> None:
        self._waiter.begin(slot.slot)
        self._last_slot = slot.slot
        self.workers.hand(slot)

    def _look_if_needed(self) -> None:
        ripe = self._waiter.ripe()
        if time.monotonic() < self._looked_s + _LOOK_LASTS_S:
            still_ripe = set(ripe)
            self._due = deque(slot for slot in self._due if slot.slot in still_ripe)
        else:
            self._due.clear()
        if self._due:
            return
        behind = bisect_right(ripe, self._last_slot)  # so that no slot starves the others
        asked = [*ripe[behind:], *ripe[:behind]][: self._slots_a_look]
        due, _ = self._queue.ask(returning.look, asked, self._name, epochs=self._claims.epochs)
        self._waiter.looked(due)
        found = [slot for slot in due if slot.due]
        self._looks += 1
        if self._queue.definition.type.descending and self._looks % IN_TURN_EVERY:
            found = highest_first(found)
        self._due.extend(found)
        self._looked_s = time.monotonic()

    def _suspect(self) -> SlotDue | None:
        """Return a slot with a suspect message to be alone with, if nothing else is in progress."""
        now = time.monotonic()
        if self._alone_since_s is not None:
            if self._waiter.at_work:
                return None
            self._no_suspects_until_s = 2 * now - self._alone_since_s
            self._alone_since_s = None
        suspect = next((slot for slot in self._due if slot.alone), None)
        if suspect is None or now < self._no_suspects_until_s:
            return None
        if not IN_PROCESS.begin_alone(self, not self._waiter.at_work):
            return None
        self._alone_since_s = now
        return suspect

    def _may_begin(self) -> bool:
        """Return whether to begin messages: not beside a suspect one, here or at another reader."""
        is_held_back = self._alone_since_s is not None or IN_PROCESS.is_wished_by(self)
        return not is_held_back and IN_PROCESS.begin(self)

    def _finish(self) -> None:
        self._stopping.set()
        self.wake()
        given_up = self.workers.finish(self._left_s, lambda: self._away_error() is not None)
        IN_PROCESS.end(self)
        try:
            if error := self._away_error():
                raise error
            self._open_queue()  # without its topic, a bar against late claims would stay for ever
            self._claims.give_back()
            if given_up:
                _log.warning(
                    "rmq: listener %s stops before its function has ended. Messages that are given "
                    "back, which costs each a retry: %d",
                    *(self._listener, given_up),
                )
        # Of a removed group; or another process has taken over the name, and has the messages.
        except (UnknownTopic, InvalidOption, Fenced) as error:
            _log.info("rmq: %s has nothing to give back: %s", self._name, error)
        except RmqError as error:
            _log.warning("rmq: %s keeps its messages until the lease ends: %s", self._name, error)

    def _away_error(self) -> RmqError | None:
        """Return the error of a Redis that was away just now: a stop does not wait for it again."""
        if self._away is None or time.monotonic() - self._away[0] > _AWAY_S:
            return None
        return self._away[1]
