"""The frame of every job: its definition, its Spark session, and its end on a signal."""

import argparse
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark import exit_codes
from rmq_spark.errors import RmqError
from rmq_spark.spark.datasource import register

_LOOK_S = 0.2  # how often the main thread checks whether a signal has come

Work = Callable[[argparse.Namespace], str]
SparkWork = Callable[[SparkSession, argparse.Namespace], str]


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
        self._asked = number
        signal.signal(number, signal.SIG_DFL)
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


def run_query(query: StreamingQuery) -> None:
    """Wait until a query ends or a signal asks the job to end; then stop the query.

    Raises the error that ended the query.
    """
    with Ending() as ending:
        try:
            while not (ending.is_asked or has_ended(query)):
                pass
        finally:
            query.stop()


def _is_found_by_spark() -> bool:
    """Check whether Spark finds the format rmq by itself.

    It does not if the package is in a zip, or if the path of Python contains a blank.
    """
    found = importlib.util.find_spec("pyspark_rmq")
    installed = found is not None and Path(found.origin or "").is_file()
    return installed and " " not in sys.executable


def has_ended(query: StreamingQuery) -> bool:
    """Wait a moment, and check whether a query has ended. Raises the error that ended it."""
    seconds: Any = _LOOK_S  # declared as int, but fractions are accepted
    return bool(query.awaitTermination(seconds))


def in_session(work: SparkWork) -> Work:
    """Give a job's work a Spark session of its own, with the settings of --conf."""

    def in_new_session(given: argparse.Namespace) -> str:
        with _new_session(given.job.name, given.conf) as spark:
            return work(spark, given)

    return in_new_session


@contextmanager
def _new_session(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Open the session that spark-submit prepared, or one on all cores of this machine.

    Sets no master, because that would override the master given to spark-submit.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"rmq {name}")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        if not _is_found_by_spark():
            register(spark)
        yield spark
    finally:
        spark.stop()
