"""The listener for plain Python: calls a function for every message, in threads."""

import logging
import queue as queues
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.sessions import open_session
from rmq_spark.client.receiving.slot_claims import SlotClaims
from rmq_spark.client.receiving.slot_work import Caller, SlotWork, check_function
from rmq_spark.client.receiving.stop_signals import stopped_by_signals
from rmq_spark.client.receiving.waiting import Waiter
from rmq_spark.errors import (
    ConsumerMisused,
    InvalidOption,
    RmqError,
    ServerUnavailable,
    UnknownTopic,
)
from rmq_spark.protocol import reading, returning
from rmq_spark.protocol.claims import Delivered, SlotDue
from rmq_spark.topics.definition import refuse_exclusive
from rmq_spark.topics.durations import Duration, duration_text, parse_wait_ms

_log = logging.getLogger(__name__)

DEFAULT_WORKERS = 8
# How long a stop waits for messages in work.
DEFAULT_GRACE = "30s"
# How often the topic's definition is read again, and hanging functions are looked for.
_LOOK_EVERY_S = 1.0
# How long a slot rests if nothing of what is due could be taken: others work on equal messages.
_NOTHING_TAKEN_S = 0.1
# The fewest slots to ask at once what is due, if so many may have messages.
_SLOTS_A_LOOK = 64


class Listener:
    """Calls a function for every message of a topic, in threads. From ``broker.listen``.

    ::

        broker.listen("Orders", "billing", bill, workers=8, timeout="30s").run()

    ``run`` returns when ``stop`` is called or, in the main thread, at SIGTERM or SIGINT. Or use the
    listener in a ``with`` statement, which runs it in a thread of its own::

        with broker.listen("Orders", "billing", bill):
            serve()

    succeeded, failed: messages for which the function has succeeded or failed. left_alone: failed
    messages that were not rolled back because their lease had ended; they come again anyway.
    """

    def __init__(
        self,
        open_queue: Callable[[], Queue],
        name: str,
        function: Callable[[Delivered], Any],
        *,
        workers: int,
        lease_ms: int,
        timeout_ms: int | None,
        delay_ms: int | None,
    ) -> None:
        """Check the settings. Nothing is taken yet. Raises InvalidOption.

        open_queue: opens the queue with the topic's current definition. timeout_ms: the longest
        time for a message; None for no limit. delay_ms: the wait before the retry of a message;
        None for the topic's backoff.
        """
        check_function(function)
        if not isinstance(workers, int) or workers < 1:
            raise InvalidOption(f"workers={workers!r} is not accepted. Accepted: 1 or more.")
        self.succeeded = self.failed = self.left_alone = 0
        self.name = name
        self._open_queue = open_queue
        if timeout_ms == 0:
            raise InvalidOption("timeout=0 is not accepted. Accepted: 1ms or more.")
        self._queue = open_queue()
        refuse_exclusive(self._queue.definition)
        self._function = function
        self._workers = workers
        self._lease_ms, self._delay_ms = lease_ms, delay_ms
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self._counting = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._grace_s = parse_wait_ms("grace", DEFAULT_GRACE) / 1000
        self._thread: threading.Thread | None = None
        self._error: RmqError | None = None
        self._has_run = False
        # Set by run:
        self._slot_claims: SlotClaims
        self._waiter: Waiter
        self._refreshed_s = 0.0
        self._last_slot = -1  # the one that was handed out last
        self._free = threading.Semaphore(workers)
        self._claims: queues.SimpleQueue[SlotDue | None] = queues.SimpleQueue()
        self._finished: queues.SimpleQueue[tuple[int, float]] = queues.SimpleQueue()
        self._works: dict[int, SlotWork] = {}

    def __repr__(self) -> str:
        return f"Listener({self._queue.definition.name}, {self.name})"

    def __enter__(self) -> "Listener":
        self._thread = threading.Thread(target=self._run_quietly, name="rmq-listener")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error[0] is None:
            raise self._error

    def stop(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Let ``run`` take nothing more, finish what is in work, and return.

        grace: how long it waits for messages in work. After that they are given back, and come
        again. Messages of a claim that are not yet in work are given back at no cost. Any thread or
        signal handler can call it.
        """
        self._grace_s = parse_wait_ms("grace", grace) / 1000
        self._stopping.set()
        if self._has_run:
            self._waiter.close()

    def run(self) -> None:
        """Call the function for messages until ``stop`` is called, or a signal comes.

        Raises Superseded if another process takes over the name, UnknownTopic if the topic is
        deleted, and other errors of Redis that do not pass by themselves. A Redis that cannot be
        reached is waited for. Raises ConsumerMisused for a second call.
        """
        if self._has_run:
            raise ConsumerMisused("This listener has run. Make another one with broker.listen.")
        session = open_session(self._queue, self.name)
        self._slot_claims = SlotClaims(self._queue, session, self._lease_ms, self._delay_ms)
        self._waiter = Waiter(self._queue)
        self._has_run = True
        for _ in range(self._workers):
            self._start(self._work)
        self._start(self._keep)
        with stopped_by_signals(self.stop):
            try:
                self._dispatch()
            finally:
                self._finish()
        if self._error is not None:
            raise self._error

    # -- the thread of run

    def _dispatch(self) -> None:
        """Hand due slots to workers until the listener stops."""
        while not self._stopping.is_set():
            if not self._free.acquire(timeout=_LOOK_EVERY_S):
                continue
            handed = 0
            try:
                handed = self._hand_out()
                if not handed:
                    self._waiter.wait(self._queue, time.monotonic() + _LOOK_EVERY_S)
            except ServerUnavailable as error:
                _log.warning("rmq: listener %s waits for Redis: %s", self.name, error)
                self._stopping.wait(_LOOK_EVERY_S)
            except RmqError as error:
                self._fail(error)
            if not handed:
                self._free.release()

    def _hand_out(self) -> int:
        """Hand ripe slots with due messages to free workers, of which one is ours already."""
        while not self._finished.empty():
            self._waiter.end(*self._finished.get())
        now = time.monotonic()
        if now >= self._refreshed_s + _LOOK_EVERY_S:
            self._refresh(now)
        self._waiter.look_if_time(self._queue)
        handed = 0
        for slot in self._look():
            if handed and not self._free.acquire(blocking=False):
                break
            self._waiter.begin(slot.slot)
            self._last_slot = slot.slot
            self._claims.put(slot)
            handed += 1
        return handed

    def _refresh(self, now: float) -> None:
        """Read the topic's definition again. Raises UnknownTopic for a topic with other slots."""
        slots = self._queue.slots
        self._queue, self._refreshed_s = self._open_queue(), now
        refuse_exclusive(self._queue.definition)
        self._slot_claims.queue = self._queue
        if self._queue.slots != slots:
            raise UnknownTopic(
                f"The topic {self._queue.definition.name} was deleted and created again with "
                "another number of slots. Start the listener again."
            )

    def _look(self) -> list[SlotDue]:
        """Return the ripe slots with due messages, after expired claims were given back."""
        ripe = self._waiter.ripe()
        behind = bisect_right(ripe, self._last_slot)  # so that no slot starves the others
        asked = [*ripe[behind:], *ripe[:behind]][: max(self._workers, _SLOTS_A_LOOK)]
        due = self._queue.ask(reading.due, asked, self.name)
        if self._queue.ask(returning.give_back_expired, due, self.name):
            due = self._queue.ask(reading.due, asked, self.name)
        self._waiter.looked(due)
        return [slot for slot in due if slot.due]

    def _finish(self) -> None:
        """Wait for messages in work, give back the rest, and end the workers."""
        self._stopping.set()
        self._waiter.close()
        ends_s = time.monotonic() + self._grace_s
        ended = sum(
            self._free.acquire(timeout=max(0.0, ends_s - time.monotonic()))
            for _ in range(self._workers)
        )
        self._ended.set()
        for _ in range(self._workers):
            self._claims.put(None)
        if ended < self._workers:
            _log.warning(
                "rmq: listener %s stops while %d calls of its function are in work: their messages "
                "come again",
                *(self.name, self._workers - ended),
            )
        try:
            self._slot_claims.give_back()
        except RmqError as error:
            _log.warning("rmq: what %s had taken stays taken for its lease: %s", self.name, error)

    def _run_quietly(self) -> None:
        try:
            self.run()
        except RmqError as error:
            self._error = error
            _log.error("rmq: listener %s has ended: %s", self.name, error)

    def _fail(self, error: RmqError) -> None:
        self._error = self._error or error
        self._stopping.set()
        self._waiter.close()

    # -- the workers

    def _start(self, run: Callable[..., None], *args: object) -> None:
        threading.Thread(target=run, args=args, name="rmq-worker", daemon=True).start()

    def _work(self, work: SlotWork | None = None) -> None:
        """Work on claims, one after another; first on the rest of one that was given up."""
        caller, me = Caller(self._function, self._queue.keys.group), object()
        try:
            if work is None or self._do(work, me, caller):
                while (slot := self._claims.get()) is not None and self._take(slot, me, caller):
                    pass
        finally:
            caller.close()

    def _take(self, slot: SlotDue, me: object, caller: Caller) -> bool:
        """Claim messages of a slot and work on them. Returns False for a thread given up."""
        try:
            work = self._slot_claims.take(slot)
        except RmqError as error:
            self._note(error)
            self._release(slot.slot, _LOOK_EVERY_S)
            return True
        self._works[slot.slot] = work
        return self._do(work, me, caller)

    def _do(self, work: SlotWork, me: object, caller: Caller) -> bool:
        """Call the function for messages, and commit them. Returns False for a thread given up."""
        work.own(me)
        try:
            self._call_each(work, me, caller)
            if not work.is_owned_by(me):
                return False
            self._slot_claims.commit(work)
        except RmqError as error:
            self._note(error)
            self._drop(work)
            return True
        del self._works[work.slot]
        self._release(work.slot, 0.0 if work.took_any else _NOTHING_TAKEN_S)
        return True

    def _call_each(self, work: SlotWork, me: object, caller: Caller) -> None:
        while not self._stopping.is_set() and (message := work.begin(me)) is not None:
            reason = caller.call(message)
            if not work.end(me):
                return
            if reason is None:
                self._count(succeeded=1)
            else:
                self._roll_back(work, message, reason)

    def _roll_back(self, work: SlotWork, message: Delivered, reason: str) -> None:
        result = self._slot_claims.roll_back(work, message, reason)
        self._count(failed=1, left_alone=result.left_alone)
        _log.warning(
            "rmq: a message of topic %s, slot %d was rolled back: %s",
            *(message.topic, message.slot, reason),
        )

    def _note(self, error: RmqError) -> None:
        """Note an error of a worker: one that passes, or one that ends the listener."""
        if isinstance(error, ServerUnavailable):
            _log.warning("rmq: listener %s waits for Redis: %s", self.name, error)
        else:
            self._fail(error)

    def _release(self, slot: int, after_s: float) -> None:
        """Let a worker be handed out again, and its slot, at once or after a time."""
        self._finished.put((slot, after_s))
        self._free.release()
        self._waiter.poke()

    def _count(self, succeeded: int = 0, failed: int = 0, left_alone: int = 0) -> None:
        with self._counting:
            self.succeeded += succeeded
            self.failed += failed
            self.left_alone += left_alone

    # -- the thread that keeps what the workers have

    def _keep(self) -> None:
        """Renew leases, and give up functions that hang, until the listener has ended."""
        renew_every_s = self._lease_ms / 3000
        renewed_s = time.monotonic()
        pause_s = min(_LOOK_EVERY_S, renew_every_s, (self._timeout_s or _LOOK_EVERY_S) / 2)
        while not self._ended.wait(max(0.01, pause_s)):
            try:
                self._give_up_hanging()
                if time.monotonic() - renewed_s >= renew_every_s and self._works:
                    renewed_s = time.monotonic()
                    self._slot_claims.renew(list(self._works.values()))
            except RmqError as error:
                self._note(error)

    def _give_up_hanging(self) -> None:
        if self._timeout_s is None:
            return
        for work in list(self._works.values()):
            message = work.give_up(self._timeout_s)
            if message is not None:
                limit = duration_text(round(1000 * self._timeout_s))
                self._start(self._go_on, work, message, f"TimeoutError: took longer than {limit}")

    def _go_on(self, work: SlotWork, message: Delivered, reason: str) -> None:
        """Take the place of a worker that hangs in a message."""
        try:
            self._roll_back(work, message, reason)
        except RmqError as error:  # a commit would lose the message
            self._note(error)
            self._drop(work)
            self._work()
        else:
            self._work(work)

    def _drop(self, work: SlotWork) -> None:
        """Leave a claim alone: its messages come again when its lease ends."""
        del self._works[work.slot]
        self._release(work.slot, _LOOK_EVERY_S)
