"""What programs of this package have in common: exit codes, signals, and logs that never fail.

The first SIGTERM or SIGINT stops a program in order, a second one ends it at once.
"""

import gc
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from rmq_spark.errors import InvalidMessage, InvalidOption, RmqError, UnknownTopic

DONE, FAILED, MISUSED, NOTHING_FOUND = 0, 1, 2, 3
INTERRUPTED = 128 + signal.SIGINT
# The user can correct these on the command line; the other errors have causes elsewhere.
MISUSES = (InvalidOption, InvalidMessage, UnknownTopic)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# timeout(1) and supervisors signal a program and then its process group: the program gets two
# signals at the same moment. A person takes longer to press Ctrl-C again.
_SAME_MOMENT_S = 0.3
# A collection visits so many objects in a few ms.
_MANY_OBJECTS = 20_000
# Takes the number of the signal. It runs in the signal's handler, so it must not wait or lock.
Stop = Callable[[int], object]
# Says whether a block that has not ended never will, because its event loop was closed under it.
IsOver = Callable[[], bool]


def code_of_error(error: RmqError) -> int:
    """Return the exit code of a program that an error ends."""
    return MISUSED if isinstance(error, MISUSES) else FAILED


def code_of_signal(number: int) -> int:
    """Return the exit code of a program that a signal ends."""
    return 128 + number


def spare_collections() -> None:
    """Keep what a task finds in its process out of the garbage collections to come.

    Spark collects garbage after every task, which visits the half million objects of pyarrow, numpy
    and pandas and takes 0.1 s, longer than many tasks. Objects that are kept out are never
    collected, so this waits until there are many.
    """
    if len(gc.get_objects()) > _MANY_OBJECTS:
        gc.freeze()


class _Handlers:
    """The handlers of the program, while there is something to stop."""

    def __init__(self) -> None:
        self._stops: list[tuple[Stop, IsOver]] = []
        self._before: dict[int, Any] = {}
        self._ends_at_once = False
        self._first_s: float | None = None

    def add(self, stop: Stop, is_over: IsOver, end_at_once: bool, unless_ignored: bool) -> None:
        self.keep_only(lambda one: True)
        self._stops.append((stop, is_over))
        if self._before:
            return
        self._ends_at_once, self._first_s = end_at_once, None
        for number in STOP_SIGNALS:
            before = signal.getsignal(number)
            is_known = before is not None  # None: the program has installed it from C
            if is_known and (before is not signal.SIG_IGN or not unless_ignored):
                self._before[number] = before
                signal.signal(number, self._handle)

    def keep_only(self, is_wanted: Callable[[Stop], bool]) -> None:
        """End the other blocks, and those that are over. After the last one, all is as before."""
        left = [
            (stop, is_over) for stop, is_over in self._stops if is_wanted(stop) and not is_over()
        ]
        if not left and threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():  # first: a signal needs someone to stop
                signal.signal(number, handler)
            self._before = {}
        self._stops = left

    def _handle(self, number: int, _: object) -> None:
        self.keep_only(lambda one: True)
        now = time.monotonic()
        if self._first_s is None:
            self._first_s = now
        if not self._stops:
            signal.raise_signal(number)
        elif now - self._first_s > _SAME_MOMENT_S:
            signal.signal(number, signal.SIG_DFL if self._ends_at_once else self._before[number])
            signal.raise_signal(number)
        else:
            for stop, _is_over in self._stops:
                stop(number)


_handlers = _Handlers()


@contextmanager
def stopped_by_signals(
    stop: Stop,
    *,
    is_over: IsOver = lambda: False,
    end_at_once: bool = False,
    unless_ignored: bool = False,
) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT call a function, if this is the main thread.

    The first signal calls the functions of all blocks. A second one, after the moment of the first,
    does what it did before; with ``end_at_once``, it ends the program as a crash does. Both are as
    the outermost block says. unless_ignored: go on ignoring a signal that was ignored before, as a
    script's background job ignores Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _handlers.add(stop, is_over, end_at_once, unless_ignored)
    try:
        yield
    finally:
        _handlers.keep_only(lambda one: one is not stop)


class UnfailingLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls raise nothing.

    For threads that must go on even if a program's own handler fails, as at a closed stderr.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave a record as it is."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log, as logging.Logger.log does, or do nothing."""
        place: Mapping[str, Any] = {"stacklevel": kwargs.get("stacklevel", 1) + 1}
        with suppress(Exception):
            super().log(level, msg, *args, **{**kwargs, **place})
