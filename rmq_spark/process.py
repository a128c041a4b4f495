"""What programs of this package have in common: exit codes, signals, logs, and endless work.

The first SIGTERM or SIGINT stops a program in order, a second one ends it at once.
"""

import gc
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self

from rmq_spark.errors import InvalidMessage, InvalidOption, RmqError, TopicMismatch, UnknownTopic

DONE, FAILED, MISUSED, NOTHING_FOUND = 0, 1, 2, 3
INTERRUPTED = 128 + signal.SIGINT
# The user can correct these on the command line; the other errors have causes elsewhere.
MISUSES = (InvalidOption, InvalidMessage, UnknownTopic, TopicMismatch)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# timeout(1) and supervisors signal a program and then its process group: the program gets two
# signals at the same moment. A person takes longer to press Ctrl-C again.
_SAME_MOMENT_S = 0.3
# How long the main thread may wait at once for others: the system may hand a signal to another
# thread, such as one that is starting a third, and then nothing wakes the main one to hear of it.
HEARD_WITHIN_S = 0.5
# A Runner waits so long after an error, and twice as long after each further one.
_SHORTEST_S, _LONGEST_S = 0.1, 10.0
# How long a wait of a Runner may go on after stop.
_SLICE_S = 0.1
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


def ignore_stop_signals() -> None:
    """Ignore SIGTERM and SIGINT, but not in what this process forks or runs."""
    for number in STOP_SIGNALS:
        signal.signal(number, _ignore)


def _ignore(_number: int, _frame: object) -> None:
    pass


class _Fork(threading.local):
    """Let a forked copy of this process end at a signal: a multiprocessing.Pool waits for that.

    Signals that come while it starts are kept back, because Python forgets them.
    """

    _mask: Iterable[int] | None = None  # of servers such as uWSGI, which fork without begin

    def begin(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def end(self) -> None:
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def end_in_copy(self) -> None:
        _handlers.keep_only(lambda one: False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is _ignore:
                signal.signal(number, signal.SIG_DFL)
        self.end()


_fork = _Fork()
os.register_at_fork(before=_fork.begin, after_in_parent=_fork.end, after_in_child=_fork.end_in_copy)


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


def sleep(seconds: float) -> bool:
    """Wait for so long. Returns False: nothing was heard of."""
    time.sleep(seconds)
    return False


class Background(ABC):
    """Work that ``run`` does in this thread.

    As a context manager, it does the work in a thread of its own during the block.
    """

    _thread_name: ClassVar[str]
    _log: ClassVar[logging.LoggerAdapter[logging.Logger]]

    def __init__(self) -> None:
        self._begun = threading.Event()  # set when the work is connected, or has ended
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._works = threading.Lock()

    @abstractmethod
    def run(self) -> None:
        """Work until ``stop``. Sets ``_begun`` when it is connected."""

    @abstractmethod
    def stop(self) -> None:
        """Let the work end."""

    @abstractmethod
    def _title(self) -> str:
        """Return what works, for logs."""

    @abstractmethod
    def _used_error(self) -> RmqError:
        """Return the error for a second beginning."""

    def __enter__(self) -> Self:
        """Start the thread, and wait until it is connected. Raises RmqError."""
        if self._thread is not None:
            raise self._used_error()
        self._thread = threading.Thread(
            target=self._run_in_thread, name=self._thread_name, daemon=True
        )
        try:
            self._thread.start()
            self._begun.wait()
        except BaseException:  # such as of a Ctrl-C: nobody will call __exit__
            self.stop()
            if self._begun.is_set():  # else it may wait for a server that does not answer
                self._thread.join()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        """Let the work end, and wait for that."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._works.acquire(blocking=False):
            raise self._used_error()
        try:
            yield
        finally:
            self._works.release()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            if self._begun.is_set():
                unexpected = None if isinstance(error, RmqError) else error
                self._log.error("rmq: %s has ended: %s", self._title(), error, exc_info=unexpected)
        finally:
            self._begun.set()


class Runner(Background):
    """Work in rounds that goes on after errors that may pass."""

    _name: ClassVar[str]  # for logs
    _passing: ClassVar[tuple[type[RmqError], ...]]  # errors after which it goes on
    _misused: ClassVar[type[RmqError]]  # raised if the work is begun again

    def __init__(self) -> None:
        super().__init__()
        # No Event: stop may be called by a signal handler, which could wait for itself.
        self._is_over = False

    @abstractmethod
    def _work(self) -> None:
        """Work until ``_is_over``. Sets ``_begun`` when it is connected."""

    @abstractmethod
    def _progress(self) -> object:
        """Return what changes as the work gets on."""

    @property
    def is_running(self) -> bool:
        """Whether its own thread is alive. It ends by ``stop``, and by a lasting error."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """The lasting error that has ended its own thread."""
        return self._error

    def stop(self) -> None:
        """Let the work end after its round."""
        self._is_over = True

    def run(self) -> None:
        """Work until ``stop``.

        Goes on after errors that may pass, and logs them, unless the first connection fails. Raises
        RmqError.
        """
        wait_s = _SHORTEST_S
        with self._alone():
            while not self._is_over:
                before = self._progress()
                try:
                    self._work()
                except self._passing as error:
                    if not self._begun.is_set():
                        raise
                    has_got_on = self._progress() != before
                    wait_s = _SHORTEST_S if has_got_on else min(2 * wait_s, _LONGEST_S)
                    self._log.warning("rmq: %s waits %.1f s: %s", self._name, wait_s, error)
                    self._rest(wait_s)

    def _title(self) -> str:
        return self._name

    def _used_error(self) -> RmqError:
        return self._misused(
            f"{self._name.capitalize()} works already, or has ended. Make another."
        )

    def _rest(self, seconds: float, wait: Callable[[float], bool] = sleep) -> None:
        """Wait for so long, until stop, or until ``wait`` returns True."""
        end = time.monotonic() + seconds
        while not self._is_over and (left := end - time.monotonic()) > 0:
            if wait(min(left, _SLICE_S)):
                return
