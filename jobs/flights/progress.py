"""A line a second: what was sent, waits, and was delivered."""

import threading
import time
from collections.abc import Sequence

from rmq_spark.client import Figures, Queue, RmqError

INTERVAL_S = 1.0
WAITING = "Waiting for Spark to start its queries and to send the first messages ..."
_COLUMNS = ("sent", "waiting", "delivered")


def heading(topics: Sequence[str]) -> str:
    """Two lines that stand above the figures."""
    names = "".join(f" | {topic:^29}" for topic in topics)
    columns = "".join(f"{column:>10}" for column in _COLUMNS)
    return f"{'':6}{names}\n{'time':>6}" + f" |{columns}" * len(topics)


def line(seconds: float, figures: Sequence[Figures]) -> str:
    """The figures of each topic after so many seconds."""
    return f"{seconds:4.0f} s" + "".join(f" |{_cells(topic)}" for topic in figures)


def _cells(figures: Figures) -> str:
    waiting = figures.store.count + figures.prepare.count + figures.retry.count
    numbers = (figures.counters["accepted"], waiting, figures.counters["committed"])
    return "".join(f"{number:10d}" for number in numbers)


class Progress:
    """Prints the lines while its block runs, from the first message on."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._queues = queues
        self._has_begun = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _print(self) -> None:
        begin = time.monotonic()
        print(WAITING, flush=True)
        while not self._done.wait(INTERVAL_S):
            self.print_line(time.monotonic() - begin)
        self.print_line(time.monotonic() - begin)

    def print_line(self, seconds: float) -> None:
        """Print the figures after so many seconds, or nothing while no message was ever sent."""
        try:
            figures = [queue.figures() for queue in self._queues]
        except RmqError as error:
            print(f"{seconds:4.0f} s | {error}", flush=True)
            return
        if not self._has_begun and any(topic.counters["accepted"] for topic in figures):
            self._has_begun = True
            print(heading([queue.definition.name for queue in self._queues]), flush=True)
        if self._has_begun:
            print(line(seconds, figures), flush=True)
