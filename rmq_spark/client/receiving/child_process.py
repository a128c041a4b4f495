"""A process of its own for the function of a listener, which can be killed when it hangs."""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from rmq_spark.client.receiving.callers import ThreadCaller, too_long
from rmq_spark.client.receiving.orphans import end_with_parent
from rmq_spark.errors import InvalidOption, UnusableFunction
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.reasons import reason_of

# A fork would copy locks that other threads hold.
_CONTEXT = multiprocessing.get_context("spawn")
# How long a child may take to import the function, unless a message may take longer.
LOADING_S = 60.0
# How long a child may take to end, such as to close what the function has opened.
_CLOSING_S = 5.0
# How often to look whether a child that does not answer is there.
_ALIVE_CHECK_S = 1.0
# What a supervisor may send to all processes of a service.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GUARD = 'Call listen and run only under if __name__ == "__main__":'


def pickled_for_processes(function: Callable[[Delivered], Any]) -> bytes:
    """Pickle a function. Raises InvalidOption for one that other processes cannot import."""
    try:
        return pickle.dumps(function)
    except Exception as error:
        raise InvalidOption(
            f"The function of listen cannot run in processes: {type(error).__name__}: {error}. "
            "Accepted: a function that is defined at the top of a module."
        ) from None


class ProcessCaller:
    """Calls a function in a child process, which serves one thread of the listener.

    The child is in a process group of its own. It is killed when a call takes too long, together
    with the processes that it has started, and replaced before the next call.
    """

    def __init__(self, function: bytes, group: str, timeout_s: float | None) -> None:
        """Start the child. function: pickled. Raises UnusableFunction."""
        self._function = function
        self._group = group
        self._timeout_s = timeout_s
        self._is_given_up = False
        self._process: SpawnProcess
        self._kill_at_exit: weakref.finalize[Any, Any] | None = None
        self._pipe: Connection
        self._start()

    def prepare(self) -> None:
        """Replace a child that has ended. Raises UnusableFunction."""
        if self._process.is_alive() or self._is_given_up:
            return
        if self._kill_at_exit is not None and not self._kill_at_exit.alive:
            raise UnusableFunction("The program ends, so the function of listen is not called.")
        self._start()

    def call(self, message: Delivered) -> str | None:
        """Call the function. Return None, or the reason if it has failed.

        It has failed also if its process has ended, or was killed because it took too long.
        """
        try:
            self._pipe.send(message)
            if self._answers():
                reason: str | None = self._pipe.recv()
                return reason
            has_ended = not self._process.is_alive()
        except (EOFError, OSError):
            has_ended = True
        if has_ended:
            return f"the process of the function ended: {self._how_it_ended()}"
        _kill(self._process)
        self._process.join()
        return f"TimeoutError: {too_long(self._timeout_s)}"

    def _answers(self) -> bool:
        """Wait for the child. Return False if it takes too long or has ended."""
        ends_s = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        while (left_s := ends_s - time.monotonic()) > 0:
            if self._pipe.poll(min(left_s, _ALIVE_CHECK_S)):
                return True
            if not self._process.is_alive():  # one that it has forked may hold the pipe open
                return self._pipe.poll(0)
        return False

    def give_up(self) -> None:
        """Kill the child, and the processes that it has started. No call is made any more."""
        self._is_given_up = True
        _kill(self._process)

    def close(self) -> None:
        """End the child. Call it between calls."""
        self._pipe.close()
        self._process.join(_CLOSING_S)
        _kill(self._process)
        if self._kill_at_exit is not None:
            self._kill_at_exit.detach()

    def _start(self) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_serve, args=(theirs, self._function, self._group, os.getpid()), name="rmq-child"
        )
        try:
            with _held_back_signals():
                self._process.start()
            if self._kill_at_exit is not None:  # of the child before
                self._kill_at_exit.detach()
            # At the end of the program, before multiprocessing waits for it.
            self._kill_at_exit = weakref.finalize(self, _kill, self._process)
            theirs.close()
            if self._pipe.poll(max(LOADING_S, self._timeout_s or 0)):
                refused = self._pipe.recv()
            else:
                _kill(self._process)
                refused = f"it was not loaded within {LOADING_S:g} s"
        except EOFError:
            how = self._how_it_ended()
            refused = f"its process ended while it started ({how}). stderr says why. {_GUARD}"
        except OSError as error:
            refused = f"its process cannot be started: {error}"
        except RuntimeError:  # this is a child, which runs the parent's program again
            refused = f"it would be started by a process that is being started. {_GUARD}"
        if refused and not self._is_given_up:  # else by the kill of give_up
            raise UnusableFunction(f"The function of listen cannot run in a process: {refused}")

    def _how_it_ended(self) -> str:
        _kill(self._process)  # it may have closed the pipe only, or left others behind
        self._process.join()
        code = self._process.exitcode or 0
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _kill(process: SpawnProcess) -> None:
    """Kill a child and its process group, as far as they are there."""
    if process.pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not have a group yet


@contextlib.contextmanager
def _held_back_signals() -> Iterator[None]:
    """Let a child that starts meanwhile get no signal before it can ignore them, in ``_serve``."""
    resource_tracker.ensure_running()  # its own start would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, function: bytes, group: str, parent: int) -> None:
    """Call the function for each message from a pipe, until it ends; answer with the reason."""
    os.setsid()
    end_with_parent(parent)
    # The parent decides when to stop.
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        caller = ThreadCaller(pickle.loads(function), group)  # noqa: S301 - our parent's
    except BaseException as error:
        pipe.send(reason_of(error))
        return
    pipe.send(None)
    with contextlib.closing(caller), contextlib.suppress(EOFError, OSError):  # the parent's close
        while True:
            pipe.send(caller.call(pipe.recv()))
