"""Signals that stop a listener."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rmq_spark.repeated_signals import RepeatedSignals

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT call a function, if this is the main thread.

    A second one, after the moment of the first, does what it did before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    signals = RepeatedSignals()

    def handle(number: int, frame: FrameType | None) -> None:
        if signals.note():
            restore()
            signal.raise_signal(number)
        else:  # In a thread: the signal may have come while this one has a lock that stop takes.
            threading.Thread(target=stop, daemon=True).start()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        restore()
