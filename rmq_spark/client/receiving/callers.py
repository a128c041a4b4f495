"""How a listener calls its function for a message: in a thread, an event loop, or a process."""

import asyncio
import contextlib
import inspect
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.popen_spawn_posix import Popen
from typing import Any

from rmq_spark.client.receiving.child_process import (
    LOADING_S,
    ChildProcess,
    TimeLimitExceeded,
    ended_by,
    how_ended,
    is_async,
    refuse_unrun,
    too_long,
)
from rmq_spark.client.receiving.own_loop import BLOCKED_AFTER_S, OWN_LOOP
from rmq_spark.client.tracing import mark_failed, message_span
from rmq_spark.errors import ConsumerMisused, InvalidOption, UnusableFunction, quoted
from rmq_spark.process import STOP_SIGNALS, UnfailingLog, ignore_stop_signals
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.reasons import reason_of
from rmq_spark.topics.verdicts import Failure, failure_of

_log = UnfailingLog(__name__)

# How often a call that waits for an event loop looks whether that has ended.
_LOOK_EVERY_S = 1.0
# After how many looks in a row an event loop that does not run has ended. It may run again for a
# program that calls run_until_complete several times.
_ENDED_AFTER = 10
# How often a call that has not begun looks whether its event loop goes on.
_LOOK_AT_BLOCKED_S = 0.05
# How long a coroutine that was cancelled may take to end. One may also refuse to.
_CANCELLED_S = 10.0
# A fork would copy locks that other threads hold.
_CONTEXT = multiprocessing.get_context("spawn")
# How long a process may take to end, such as to close what the function has opened.
_CLOSING_S = 5.0
# How often to look whether a process that does not answer is there.
_ALIVE_CHECK_S = 1.0
# A pipe takes so much at once, although its process reads nothing.
_FITS_BYTES = 4096
# The waits before a process that was killed while it started is started again.
_START_AGAIN_S = (0.1, 0.3, 1.0, 3.0)
_GUARD = 'Call listen and run only under if __name__ == "__main__":'


class Caller(ABC):
    def prepare(self) -> None:  # noqa: B027 - not all need it
        """Get ready for a call, before the message counts as begun."""

    @abstractmethod
    def call(self, message: Delivered) -> Failure | None:
        """Call the function. Return None, or the failure if it has failed."""

    @abstractmethod
    def give_up(self) -> None:
        """End the running call, if that is possible. Any thread may call it. No call follows."""

    def close(self) -> None:  # noqa: B027 - not all hold something
        pass


class ThreadCaller(Caller):
    """Calls a function in the current thread, without a limit of time: Python cannot end a call."""

    def __init__(self, function: Callable[[Delivered], Any], group: str) -> None:
        self._function = function
        self._group = group
        self._process = os.getpid()

    def call(self, message: Delivered) -> Failure | None:
        failure = self._call(message)
        _end_copy(self._process)
        return failure

    def _call(self, message: Delivered) -> Failure | None:
        with message_span(message, self._group) as span:
            own = copy_context()  # what a call sets must not be there for the next message
            try:
                refuse_unrun(own.run(self._function, message), ", or an async function")
            except BaseException as error:  # a sys.exit() would leave the slot without a worker
                return _failed(span, message, error)
        return None

    def give_up(self) -> None:
        pass


class LoopCaller(Caller):
    """Calls a coroutine function in an event loop that runs in another thread.

    loop: None for the loop of this process. While a function blocks that one, no call begins.
    """

    def __init__(
        self,
        function: Callable[[Delivered], Any],
        group: str,
        loop: asyncio.AbstractEventLoop | None,
        timeout_s: float | None,
    ) -> None:
        self._function = function
        self._group = group
        self._is_own = loop is None
        self._loop = OWN_LOOP.get() if loop is None else loop
        self._timeout_s = timeout_s
        self._in_work: Future[Failure | None] | None = None
        self._is_given_up = False
        self._process = os.getpid()

    def prepare(self) -> None:
        if self._loop.is_closed():
            raise _loop_ended()
        while self._is_blocked() and not self._is_given_up:
            time.sleep(_LOOK_AT_BLOCKED_S)

    def _is_blocked(self) -> bool:
        return self._is_own and OWN_LOOP.silent_s > BLOCKED_AFTER_S

    def call(self, message: Delivered) -> Failure | None:
        goes_on = threading.Event()
        called = self._run(message, goes_on)
        try:
            self._in_work = asyncio.run_coroutine_threadsafe(called, self._loop)
        except RuntimeError:
            called.close()
            raise _loop_ended() from None
        if self._is_given_up:  # read after the call is noted: give_up does it the other way round
            self._in_work.cancel()  # if it has begun
        try:
            return self._result(self._in_work, goes_on)
        except CancelledError:
            return Failure("CancelledError: the call was cancelled")
        finally:
            never_begins = inspect.getcoroutinestate(called) == inspect.CORO_CREATED
            if never_begins and self._loop.is_closed():
                called.close()  # or Python warns that nobody awaited it

    def _result(
        self, in_work: "Future[Failure | None]", goes_on: threading.Event
    ) -> Failure | None:
        """Return the result of a call. goes_on: set if it goes on although it was cancelled."""
        looks_without = 0
        blocked_s = time.monotonic() + (self._timeout_s or math.inf) + _CANCELLED_S
        while looks_without < _ENDED_AFTER and not self._loop.is_closed():
            try:
                return in_work.result(_LOOK_EVERY_S)
            except TimeoutError:  # not the function's own, which _run returns
                looks_without = 0 if self._loop.is_running() else looks_without + 1
                if goes_on.is_set():
                    return Failure(f"{too_long(self._timeout_s)}, and goes on")
                if time.monotonic() > blocked_s and self._is_blocked():
                    in_work.cancel()  # or it would begin later
                    return Failure(f"{too_long(self._timeout_s)}, and its event loop is blocked")
        if in_work.done():
            return in_work.result()
        raise _loop_ended()

    def give_up(self) -> None:
        self._is_given_up = True
        if self._in_work is not None:
            self._in_work.cancel()

    async def _run(self, message: Delivered, goes_on: threading.Event) -> Failure | None:
        if self._is_given_up:
            raise asyncio.CancelledError
        with message_span(message, self._group) as span:
            try:
                with self._noted_if_it_goes_on(goes_on):
                    await self._call(message)
            except asyncio.CancelledError:
                raise  # somebody ends the call
            except TimeLimitExceeded as error:  # raised here: its place is of no use
                mark_failed(span, error)
                return Failure(too_long(self._timeout_s))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and not self._is_own:
                    raise  # somebody ends the loop
                return _failed(span, message, error)
            finally:
                _end_copy(self._process)
        return None

    @contextlib.contextmanager
    def _noted_if_it_goes_on(self, goes_on: threading.Event) -> Iterator[None]:
        """Note a call that does not end although it was cancelled, by the clock of the loop.

        A loop that stands still has not cancelled it yet.
        """
        if self._timeout_s is None:
            yield
            return
        note = self._loop.call_later(self._timeout_s + _CANCELLED_S, goes_on.set)
        try:
            yield
        finally:
            note.cancel()

    async def _call(self, message: Delivered) -> None:
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                refuse_unrun(await self._function(message))
        except TimeoutError:
            if not timeout.expired():
                raise
        if timeout.expired():  # also if the function has gone on to its end
            raise TimeLimitExceeded(self._timeout_s or 0)


def in_process_caller(function: Callable[[Delivered], Any], group: str) -> Caller:
    """Return what calls a function in this process, without a limit of time."""
    if is_async(function):
        return LoopCaller(function, group, None, None)
    return ThreadCaller(function, group)


def _failed(span: Any, message: Delivered, error: BaseException) -> Failure:
    mark_failed(span, error)
    _log.debug(
        "rmq: of topic %s, slot %d, message %s: the function raised",
        *(message.topic, message.slot, quoted(message.name)),
        exc_info=error,
    )
    return failure_of(error)


def _end_copy(process: int) -> None:
    """End this process if the function has forked, and this is the copy."""
    if os.getpid() != process:
        os._exit(0)


class _Killed(UnusableFunction):
    """A signal has ended the process of a function while it started."""


class ProcessCaller(Caller):
    """Calls a function in a child process, which serves one thread of the listener.

    It is killed when a call takes too long, and replaced before the next call.
    """

    def __init__(self, function: bytes, group: str, timeout_s: float | None) -> None:
        self._function = function
        self._group = group
        self._timeout_s = timeout_s
        self._is_given_up = False
        self._process: ChildProcess
        self._pipe: Connection
        self._start_patiently()

    def prepare(self) -> None:
        if not self._is_given_up and not self._process.is_alive():
            self._start_patiently()

    def _start_patiently(self) -> None:
        """Start the child, again after a while if a signal has ended it, such as for its memory."""
        for wait_s in _START_AGAIN_S:
            try:
                return self._start()
            except _Killed:
                time.sleep(wait_s)
            if self._is_given_up:
                return None
        return self._start()

    def call(self, message: Delivered) -> Failure | None:
        ends_s = time.monotonic() + (math.inf if self._timeout_s is None else self._timeout_s)
        try:
            if self._takes(pickle.dumps(message), ends_s) and self._answers(ends_s):
                failure: Failure | None = self._pipe.recv()
                return failure
            has_ended = not self._process.is_alive()
        except (EOFError, OSError):  # it may have closed the pipe only
            has_ended = True
        exit_code = self._process.kill()
        if has_ended:
            return Failure(ended_by(exit_code))
        return Failure(too_long(self._timeout_s))

    def _takes(self, pickled: bytes, ends_s: float) -> bool:
        if len(pickled) <= _FITS_BYTES:
            self._pipe.send_bytes(pickled)
            return True
        # A send waits without a limit for a process that does not read: its end ends the send.
        sending = threading.Thread(target=_send, args=(self._pipe, pickled), daemon=True)
        sending.start()
        while sending.is_alive():
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or not self._process.is_alive():
                return False
            sending.join(min(left_s, _ALIVE_CHECK_S))
        return True

    def _answers(self, ends_s: float) -> bool:
        while (left_s := ends_s - time.monotonic()) > 0:
            if self._pipe.poll(min(left_s, _ALIVE_CHECK_S)):
                return True
            if not self._process.is_alive():  # one that it has forked may hold the pipe open
                return self._pipe.poll(0)
        return False

    def give_up(self) -> None:
        self._is_given_up = True
        self._process.kill()

    def close(self) -> None:
        self._pipe.close()
        self._process.wait(_CLOSING_S)
        self._process.kill()

    def _start(self) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        for end in self._pipe, theirs:  # gevent's sockets do not block, which ends their reader
            os.set_blocking(end.fileno(), True)
        child = _CONTEXT.Process(
            target=_serve, args=(theirs, self._function, self._group), name="rmq-child"
        )
        refused: str | None
        try:
            with _held_back_signals():
                # Not by start(): then multiprocessing, too, would wait for the child. It is kept,
                # because the child's parent_process() ends with it.
                self._started = Popen(child)
                self._process = ChildProcess(self._started.pid)
        except OSError as error:
            refused = f"its process cannot be started: {error}"
        except RuntimeError:  # this is a child, which runs the parent's program again
            refused = f"it would be started by a process that is being started. {_GUARD}"
        else:
            theirs.close()
            refused = self._refusal()
        if refused and not self._is_given_up:  # else by the kill of give_up
            raise UnusableFunction(f"The function of listen cannot run in a process: {refused}")

    def _refusal(self) -> str | None:
        refused: str | None = f"it was not loaded within {LOADING_S:g} s"
        try:
            if self._answers(time.monotonic() + max(LOADING_S, self._timeout_s or 0)):
                refused = self._pipe.recv()
            elif not self._process.is_alive():
                raise EOFError
        except EOFError:
            exit_code = self._process.kill()
            if exit_code < 0 and not self._is_given_up:
                raise _Killed(
                    "The function of listen cannot run in a process: each of "
                    f"{len(_START_AGAIN_S) + 1} was killed while it started; the last was "
                    f"{how_ended(exit_code)}. Is there too little memory?"
                ) from None
            refused = (
                f"its process ended while it started ({how_ended(exit_code)}). stderr says why. "
                f"{_GUARD}"
            )
        if refused:
            self._process.kill()
        return refused


def _send(pipe: Connection, pickled: bytes) -> None:
    with contextlib.suppress(Exception):  # who waits for the answer finds the end
        pipe.send_bytes(pickled)


@contextlib.contextmanager
def _held_back_signals() -> Iterator[None]:
    """Let a child that starts meanwhile get no signal before it can ignore them, in ``_serve``."""
    resource_tracker.ensure_running()  # its own start would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, function: bytes, group: str) -> None:
    os.setsid()
    # A supervisor may signal all processes of a service, but the parent decides when to stop.
    ignore_stop_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        caller = in_process_caller(pickle.loads(function), group)  # noqa: S301 - our parent's
    except BaseException as error:
        pipe.send(reason_of(error))
        return
    pipe.send(None)
    with contextlib.closing(caller), contextlib.suppress(EOFError, OSError):  # the parent's close
        while True:
            pipe.send(caller.call(pipe.recv()))


def pickled_for_processes(function: Callable[[Delivered], Any]) -> bytes:
    try:
        return pickle.dumps(function)
    except Exception as error:
        raise InvalidOption(
            f"The function of listen cannot run in processes: {type(error).__name__}: {error}. "
            "Accepted: a function that is defined at the top of a module."
        ) from None


def _loop_ended() -> ConsumerMisused:
    return ConsumerMisused(
        "The event loop of this listener has ended before it. Its messages are redelivered. "
        "Stop the listener first: await its run(), or use it in an async with statement, within "
        "asyncio.run."
    )
