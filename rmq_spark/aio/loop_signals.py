"""Signals that stop the listeners of an event loop."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from rmq_spark.repeated_signals import RepeatedSignals

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_Stop = Callable[[], None]


class _LoopSignals:
    """What the first signal stops. A second one, later, does what it did before."""

    def __init__(self) -> None:
        self._stops: list[_Stop] = []
        self._before: dict[int, Any] = {}
        self._signals = RepeatedSignals()

    def add(self, loop: asyncio.AbstractEventLoop, stop: _Stop) -> None:
        """Let a signal call a function, too."""
        self._stops.append(stop)
        if not self._before:
            self._signals = RepeatedSignals()
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._stop_all, loop, number)

    def remove(self, loop: asyncio.AbstractEventLoop, stop: _Stop) -> None:
        """Call a function no more. After the last one, signals do what they did before."""
        self._stops.remove(stop)
        if not self._stops:
            self._restore(loop)

    def _stop_all(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        if self._signals.note():
            self._restore(loop)
            signal.raise_signal(number)
        for stop in list(self._stops):
            stop()

    def _restore(self, loop: asyncio.AbstractEventLoop) -> None:
        for number, handler in self._before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        self._before = {}


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSignals] = WeakKeyDictionary()


@contextmanager
def stopped_by_signals(loop: asyncio.AbstractEventLoop, stop: _Stop) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT call a function, if this is the main thread.

    A signal stops all blocks of the event loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = _of_loops.setdefault(loop, _LoopSignals())
    signals.add(loop, stop)
    try:
        yield
    finally:
        signals.remove(loop, stop)
