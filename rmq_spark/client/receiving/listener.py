"""The listener for plain Python: calls a function for every message."""

import queue as queues
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rmq_spark.client.ownership import Ownership
from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.callers import ListenerSettings, place_of
from rmq_spark.client.receiving.session import open_session
from rmq_spark.client.receiving.slot_claims import SlotClaims
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.client.receiving.waits import Waiter
from rmq_spark.client.receiving.work_in_process import IN_PROCESS
from rmq_spark.client.receiving.workers import Workers
from rmq_spark.errors import (
    PASSING,
    ConsumerMisused,
    RmqError,
    ServerUnavailable,
    UnknownTopic,
)
from rmq_spark.process import UnfailingLog, stopped_by_signals
from rmq_spark.protocol import returning
from rmq_spark.protocol.claims import Delivered, SlotDue
from rmq_spark.topics.definition import group_text, refuse_exclusive
from rmq_spark.topics.parsing import Duration, parse_wait_ms

_log = UnfailingLog(__name__)

HAS_RUN = "This listener has run. Make another one with broker.listen."
# How long a stop waits for messages in work.
DEFAULT_GRACE = "30s"
# How long a stop takes a Redis to be away after it was found to be.
_AWAY_S = 5.0
# How often the topic's definition is read again.
_LOOK_EVERY_S = 1.0
# How long what a look has found is handed out without another one.
_LOOK_LASTS_S = 0.1
# How often a listener that holds back looks whether it may go on.
_HELD_BACK_S = 0.02
# A loop that has not come round for so long is stuck. A Redis that is away holds it up for less.
_STUCK_AFTER_S = 120.0
# The fewest slots to ask at once what is due, if so many may have messages.
_SLOTS_A_LOOK = 64


class Counts:
    """What the calls of a listener have come to until now; all 0 before it runs."""

    @property
    def _counting(self) -> object:
        """Who counts, or None before it runs."""
        raise NotImplementedError

    @property
    def succeeded(self) -> int:
        """The number of messages for which the function has succeeded."""
        return getattr(self._counting, "succeeded", 0)

    @property
    def failed(self) -> int:
        """The number of messages for which the function has failed, Retry and Bury included."""
        return getattr(self._counting, "failed", 0)

    @property
    def snoozed(self) -> int:
        """The number of messages for which the function has raised Snooze."""
        return getattr(self._counting, "snoozed", 0)

    @property
    def left_alone(self) -> int:
        """The number of failed or snoozed messages whose lease ended: they come again anyway."""
        return getattr(self._counting, "left_alone", 0)

    @property
    def at_work(self) -> int:
        """The number of workers at work."""
        return getattr(self._counting, "at_work", 0)


class Listener(Counts):
    """Calls a function for every message of a topic. From ``broker.listen``.

    ::

        broker.listen("Orders", "billing", bill, workers=8, timeout="30s").run()

    ``run`` returns when ``stop`` is called or, in the main thread, at SIGTERM or SIGINT. Or use the
    listener in a ``with`` statement, which runs it in a thread of its own::

        with broker.listen("Orders", "billing", bill):
            serve()

    ``topic``, ``group`` and ``name`` say what it reads.
    """

    def __init__(
        self, open_queue: Callable[[], Queue], name: str, settings: ListenerSettings
    ) -> None:
        """Take nothing yet. Raises InvalidOption, UnknownTopic, ExclusiveSlot.

        open_queue: opens the queue with the topic's current definition.
        """
        self.name = name
        self._settings = settings
        self._open_queue = open_queue
        self._queue = open_queue()
        if settings.ensemble is None:
            refuse_exclusive(self._queue.definition)
        self._open_caller = settings.callers(self._queue.keys.group)
        self._stopping, self._begun = threading.Event(), threading.Event()
        self._running = threading.Lock()
        self._is_stopped = False  # at once, even if the event is set in another thread
        self._grace_s = _seconds(DEFAULT_GRACE)
        self._stopped_s: float | None = None
        # When Redis was last found to be away, and how.
        self._away: tuple[float, RmqError] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._refreshed_s = 0.0
        self._came_round_s = time.monotonic()
        self._last_slot = -1  # the one that was handed out last
        self._due: deque[SlotDue] = deque()  # those that the last look has found, not handed out
        self._looked_s = 0.0
        # Since when it is alone with a suspect message, and until when the next one waits, so that
        # others have as much of the time.
        self._alone_since_s: float | None = None
        self._no_suspects_until_s = 0.0
        self._finished: queues.SimpleQueue[tuple[int, float]] = queues.SimpleQueue()
        # Set by run:
        self._waiter: Waiter | None = None
        self._workers: Workers | None = None

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._queue.definition.name

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._queue.keys.group

    def __repr__(self) -> str:
        return f"Listener({self})"

    def __str__(self) -> str:
        return f"{self.name} of {self.topic}, group {group_text(self.group)}"

    def __enter__(self) -> "Listener":
        if self._thread is not None:
            raise ConsumerMisused(HAS_RUN)
        self._thread = threading.Thread(target=self._run_quietly, name="rmq-listener")
        try:
            self._thread.start()
            self._begun.wait()
        except BaseException:  # such as of a Ctrl-C: nobody will call __exit__
            self.stop()
            # Before it has begun it takes nothing, and may wait for a Redis that does not answer.
            if self._begun.is_set():
                self._thread.join()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_running:  # else it has stopped with a grace of its own, or by an error
            self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error[0] is None:
            raise self._error

    @property
    def is_running(self) -> bool:
        """Whether it takes messages: it has begun, and neither a stop nor an error has ended it."""
        return self._begun.is_set() and not (self._is_stopped or self._stopping.is_set())

    @property
    def is_ready(self) -> bool:
        """Whether it takes messages, and Redis answers it."""
        return self.is_running and self._away is None

    @property
    def is_stuck(self) -> bool:
        """Whether it should take messages, or wait for Redis, but hangs or has ended by an error.

        A supervisor should start the program again.
        """
        if self._error is not None:
            return True
        return self.is_running and time.monotonic() - self._came_round_s > _STUCK_AFTER_S

    @property
    def function(self) -> Callable[[Delivered], Any]:
        """The function that it calls."""
        return self._settings.function

    @property
    def workers(self) -> int:
        """The number of its workers."""
        return self._settings.workers

    def timings(self) -> Timings:
        """Return how long the calls of the function took until now, and how late they began."""
        return Timings() if self._workers is None else self._workers.timings()

    @property
    def _counting(self) -> Workers | None:
        return self._workers

    def stop(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Let ``run`` take nothing more, finish what is in work, and return.

        grace: how long it waits for messages in work. After that they are given back, and come
        again. Messages of a claim that are not yet in work are given back at no cost. A second call
        can shorten the grace. Any thread or signal handler can call it.
        """
        grace_s = _seconds(grace)
        self._grace_s = min(grace_s, self._grace_s) if self._is_stopped else grace_s
        self._is_stopped = True
        self._stopped_s = self._stopped_s or time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            self._take_no_more()
            return
        # A signal handler may have interrupted this thread while it has a lock that this needs.
        try:
            threading.Thread(target=self._take_no_more, daemon=True).start()
        except RuntimeError:  # the program ends: no thread can begin, and no handler interrupts
            self._take_no_more()

    def _take_no_more(self) -> None:
        self._stopped_s = self._stopped_s or time.monotonic()
        self._stopping.set()
        if self._waiter is not None:
            self._waiter.close()

    def run(self, *, grace: Duration = DEFAULT_GRACE) -> None:
        """Call the function for messages until ``stop`` is called, or a signal comes.

        grace: how long a stop by a signal waits for messages in work. A second signal ends the
        program.

        Raises Fenced if another process takes over the name, UnknownTopic if the topic is
        deleted, and other errors of Redis that do not pass by themselves. A Redis that cannot be
        reached is waited for. Raises ConsumerMisused for a second call.
        """
        _seconds(grace)  # a bad one is refused now
        if self._waiter is not None or not self._running.acquire(blocking=False):
            raise ConsumerMisused(HAS_RUN)
        try:
            self._run(grace)
        finally:
            self._running.release()
        if self._error is not None:
            raise self._error

    def _run(self, grace: Duration) -> None:
        settings, queue = self._settings, self._queue
        session = open_session(queue, self.name, settings.lease_ms, settings.ensemble)
        claims = SlotClaims(queue, session, settings.delay_ms)
        self._waiter = Waiter(queue)
        try:
            self._workers = Workers(
                claims, settings, self._open_caller, self._ended, self._note, self._stopping
            )
        except BaseException:  # such as of a process that may start no more threads
            self._waiter.close()
            session.ownership.stop()
            raise
        with stopped_by_signals(lambda _: self.stop(grace)):
            _log.info(
                "rmq: listening to %s as %s, group %s, with %s",
                *(self.topic, self.name, group_text(self.group), place_of(settings.function)),
            )
            self._begun.set()
            try:
                self._dispatch(claims, session.ownership, self._waiter, self._workers)
            finally:
                self._finish(claims, self._waiter, self._workers)
                session.ownership.stop()

    def _dispatch(
        self, claims: SlotClaims, ownership: Ownership, waiter: Waiter, workers: Workers
    ) -> None:
        while not self._stopping.is_set():
            self._came_round_s = time.monotonic()
            is_reserved, handed = workers.reserve(_LOOK_EVERY_S), 0
            try:
                self._refresh_if_time(claims, ownership, waiter)
                claims.give_back_failed(waiter.at_work)
                if is_reserved:
                    handed = self._hand_out(claims, waiter, workers)
                    if not handed:
                        waiter.wait(self._queue, time.monotonic() + _LOOK_EVERY_S)
            except PASSING as error:
                self._note(error)
                self._stopping.wait(_LOOK_EVERY_S)
            except RmqError as error:
                self._note(error)
            if is_reserved and not handed:
                workers.cancel()

    def _hand_out(self, claims: SlotClaims, waiter: Waiter, workers: Workers) -> int:
        waiter.look_if_time(self._queue)
        self._look_if_needed(claims, waiter)
        if not waiter.at_work:
            IN_PROCESS.end(self)
        suspect = self._suspect(waiter)
        if suspect is None and self._due and not self._may_begin(waiter):
            self._stopping.wait(_HELD_BACK_S)
            return 0
        handed = 0
        while self._due and (not handed or workers.reserve()):
            slot = suspect or replace(self._due.popleft(), alone=False)
            waiter.begin(slot.slot)
            self._last_slot = slot.slot
            workers.hand(slot)
            handed += 1
            if suspect is not None:
                self._due.clear()
        return handed

    def _suspect(self, waiter: Waiter) -> SlotDue | None:
        """Return a slot with a suspect message to be alone with, if nothing else is in work."""
        now = time.monotonic()
        if self._alone_since_s is not None:
            if waiter.at_work:
                return None
            self._no_suspects_until_s = 2 * now - self._alone_since_s
            self._alone_since_s = None
        suspect = next((slot for slot in self._due if slot.alone), None)
        if suspect is None or now < self._no_suspects_until_s:
            return None
        if not IN_PROCESS.begin_alone(self, not waiter.at_work):
            return None
        self._alone_since_s = now
        return suspect

    def _may_begin(self, waiter: Waiter) -> bool:
        """Return whether to begin messages: not beside a suspect one, here or at another reader."""
        is_held_back = self._alone_since_s is not None or IN_PROCESS.is_wished_by(self)
        return not is_held_back and IN_PROCESS.begin(self)

    def _refresh_if_time(self, claims: SlotClaims, ownership: Ownership, waiter: Waiter) -> None:
        while not self._finished.empty():
            waiter.end(*self._finished.get())
        now = time.monotonic()
        if now < self._refreshed_s + _LOOK_EVERY_S:
            return
        slots = self._queue.slots
        self._queue, self._refreshed_s = self._open_queue(), now
        self._away = None  # it has answered
        ownership.check(self._queue.definition)
        if self._queue.slots != slots:
            raise UnknownTopic(
                f"The topic {self._queue.definition.name} was deleted and created again with "
                "another number of slots. Start the listener again."
            )
        claims.queue, claims.epochs = self._queue, ownership.between_batches(waiter.at_work)
        waiter.read_only(claims.epochs)

    def _look_if_needed(self, claims: SlotClaims, waiter: Waiter) -> None:
        ripe = waiter.ripe()
        if time.monotonic() < self._looked_s + _LOOK_LASTS_S:
            still_ripe = set(ripe)
            self._due = deque(slot for slot in self._due if slot.slot in still_ripe)
        else:
            self._due.clear()
        if not self._due:
            self._due.extend(self._look(ripe, claims, waiter))
            self._looked_s = time.monotonic()

    def _look(self, ripe: list[int], claims: SlotClaims, waiter: Waiter) -> list[SlotDue]:
        behind = bisect_right(ripe, self._last_slot)  # so that no slot starves the others
        most = max(self._settings.workers, _SLOTS_A_LOOK)
        asked = [*ripe[behind:], *ripe[:behind]][:most]
        due, _ = self._queue.ask(returning.look, asked, self.name, epochs=claims.epochs)
        waiter.looked(due)
        return [slot for slot in due if slot.due]

    def _finish(self, claims: SlotClaims, waiter: Waiter, workers: Workers) -> None:
        self._take_no_more()
        given_up = workers.finish(self._left_s, lambda: self._away_error() is not None)
        IN_PROCESS.end(self)
        if given_up:
            _log.warning(
                "rmq: listener %s stops while %d calls of its function are in work: their messages "
                "come again",
                *(self, given_up),
            )
        try:
            if error := self._away_error():
                raise error
            self._open_queue()  # without its topic, a bar against late claims would stay for ever
            claims.give_back()
        except UnknownTopic:
            _log.info("rmq: %s has nothing to give back: the topic is deleted", self.name)
        except RmqError as error:
            _log.warning("rmq: %s keeps its messages until the lease ends: %s", self.name, error)

    def _left_s(self) -> float:
        """Return how long a stop still waits for messages in work."""
        return (self._stopped_s or 0.0) + self._grace_s - time.monotonic()

    def _away_error(self) -> RmqError | None:
        """Return the error of a Redis that was away just now: a stop does not wait for it again."""
        if self._away is None or time.monotonic() - self._away[0] > _AWAY_S:
            return None
        return self._away[1]

    def _run_quietly(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            _log.error("rmq: listener %s has ended: %s", self, error)
            self._stopping.set()
        finally:
            self._begun.set()

    # -- called in the threads of the workers, too

    def _ended(self, slot: int, rest_s: float) -> None:
        self._finished.put((slot, rest_s))
        if self._waiter is not None:
            self._waiter.poke()

    def _note(self, error: RmqError) -> None:
        """Note an error: one that passes, or one that ends the listener."""
        if isinstance(error, PASSING):
            if isinstance(error, ServerUnavailable):
                self._away = time.monotonic(), error
            _log.warning("rmq: listener %s waits for Redis: %s", self, error)
            return
        self._error = self._error or error
        self._take_no_more()


def _seconds(grace: Duration) -> float:
    return parse_wait_ms("grace", grace) / 1000
