"""The log of a program on stderr, which keeps no program from its work."""

import logging
import os
import queue as queues
import select
import sys
import threading
from functools import partial
from typing import Any

from rmq_spark.inspect.fields import count_text
from rmq_spark.topics.reasons import printable

# How long a line of the log is waited for before its reader counts as slow, and how many then wait.
_SLOW_READER_S = 1.0
_MOST_LINES = 1000


class PrintableFormatter(logging.Formatter):
    """A formatter of log lines, which may quote the texts of others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - of logging
        """Format an exception, whose traceback has several lines."""
        return printable(super().formatException(ei), "\n")


class StderrHandler(logging.Handler):
    """Writes lines to stderr. If they are not read, the program goes on, and some are dropped.

    A full pipe or a terminal that nobody reads keeps no worker from its messages and no program
    from its end. Once lines are read again, one of them says how many are missing.

    line: a format of logging.Formatter.
    """

    def __init__(self, line: str) -> None:
        super().__init__()
        self.setFormatter(PrintableFormatter(line))
        self._process = 0
        # Reentrant, as emit must be: the collection of garbage may log amid any of its calls.
        self._lines: queues.SimpleQueue[tuple[int, bytes, threading.Event]]
        self._dropped = 0
        self._is_behind = False  # its reader is slow: nobody waits for it

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{self.format(record)}\n"
            try:
                output = sys.stderr.fileno()
                if sys.is_finalizing():  # no thread begins or goes on
                    raise RuntimeError
                if self._process != os.getpid():  # a copy of the process has no thread
                    self._start()
            # None, an object of the program's own, or a process that may start no more threads.
            except (AttributeError, OSError, RuntimeError):
                if sys.stderr:
                    sys.stderr.write(text)
                return
            if self._lines.qsize() >= _MOST_LINES:
                self._dropped += 1
                return
            if self._dropped:
                missing = count_text(self._dropped, "line")
                text = f"rmq: {missing} of this log dropped: nobody read stderr\n{text}"
                self._dropped = 0
            written = self._put(output, text.encode("utf-8", "replace"))
            self._is_behind = self._is_behind and not self._lines.empty()
            if not self._is_behind:
                self._is_behind = not written.wait(_SLOW_READER_S)
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait a little until all is written, such as at the end of the program."""
        if self._process == os.getpid():
            self._put(2, b"").wait(_SLOW_READER_S)

    def _put(self, output: int, text: bytes) -> threading.Event:
        written = threading.Event()
        self._lines.put((output, text, written))
        return written

    def _start(self) -> None:
        self._lines, self._is_behind = queues.SimpleQueue(), False
        write = partial(_write_all, self._lines)
        threading.Thread(target=write, name="rmq-log", daemon=True).start()
        self._process = os.getpid()


def _write_all(lines: "queues.SimpleQueue[tuple[int, bytes, threading.Event]]") -> None:
    while True:
        output, text, written = lines.get()
        while text:
            try:
                text = text[os.write(output, text) :]
            except BlockingIOError:  # it does not block, as some supervisors set it
                select.select([], [output], [])
            except OSError:  # it is closed
                break
        written.set()
