"""Waiting for what a server, a query or a process does; no test sleeps for a fixed time."""

import time
from collections.abc import Callable
from typing import Any

from rmq_spark.client.queue import Queue


class NotInTime(AssertionError):
    """Something that a test waits for did not happen."""


class Patience:
    """A number of seconds; of a time in which this process itself stood still, one counts."""

    def __init__(self, seconds: float) -> None:
        self._left, self._seen = seconds, time.monotonic()

    def lasts(self) -> bool:
        now = time.monotonic()
        self._left -= min(1.0, now - self._seen)
        self._seen = now
        return self._left > 0


def wait_until(holds: Callable[[], Any], what: str, within_s: float = 180.0) -> Any:
    """Wait for a condition and return its value. Raises NotInTime, which names the condition."""
    patience = Patience(within_s)
    while patience.lasts():
        value = holds()
        if value:
            return value
        time.sleep(0.02)
    raise NotInTime(f"not within {within_s:g} s: {what}")


def is_drained(queue: Queue) -> bool:
    """Whether no message is stored, in progress or to come again; dead ones may be there."""
    figures = queue.figures()
    return not (figures.store.count + figures.prepare.count + figures.retry.count)
