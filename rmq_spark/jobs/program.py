"""The frame of every job: its definition, and its end on a signal. Knows nothing of Spark."""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_spark import exit_codes
from rmq_spark.errors import RmqError
from rmq_spark.repeated_signals import RepeatedSignals

_LOOK_S = 0.2  # how often the main thread checks whether a signal has come

Work = Callable[[argparse.Namespace], str]


@dataclass(frozen=True)
class Job:
    """A program to run on a schedule.

    description: the help; its first paragraph is one line that summarizes the job. add_arguments:
    adds the job's own arguments to a parser. work: does the job, and returns the line that is
    printed at the end.
    """

    name: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    work: Work

    @property
    def summary(self) -> str:
        """The description of the job in one line, for a list of jobs."""
        return self.description.partition("\n")[0]


class JobFailed(RmqError):
    """An error for a job that cannot do all its work, although its arguments are right."""


class Ending:
    """A context manager that notes SIGTERM or Ctrl-C, so that a job can end in order.

    It interrupts nothing, because a call into the JVM that is cut off would block the cleanup. On
    leaving the context, the job exits with the signal's exit code. A second signal ends the job at
    once, as a crash does.
    """

    def __init__(self, when_asked: Callable[[], None] = lambda: None) -> None:
        """Prepare. when_asked: called in the signal's handler, so it must not wait or lock."""
        self._asked: int | None = None
        self._before: dict[int, Any] = {}
        self._when_asked = when_asked
        self._signals = RepeatedSignals()

    def __enter__(self) -> "Ending":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._asked is not None and kind is None:
            sys.exit(exit_codes.of_signal(self._asked))

    def _note(self, number: int, _: object) -> None:
        if self._signals.note():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._asked = number
        self._when_asked()

    @property
    def is_asked(self) -> bool:
        """Whether a signal has asked the job to end."""
        return self._asked is not None

    def wait(self, seconds: float) -> None:
        """Sleep for some seconds, or until a signal asks the job to end."""
        end = time.monotonic() + seconds
        while not self.is_asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
