"""What every job has: a Spark session, an end when asked, errors for people, an exit code."""

import argparse
import importlib.util
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark.errors import InvalidMessage, InvalidOption, RmqError
from rmq_spark.spark.datasource import register
from rmq_spark.spark.failure_cause import cause

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT

_LOOK_S = 0.2  # how often the main thread looks whether it is asked to end

Job = Callable[[argparse.Namespace], str]
SparkJob = Callable[[SparkSession, argparse.Namespace], str]


class JobFailed(Exception):
    """The job cannot go on; its text is for the user."""


class JobMisused(JobFailed):
    """An argument is missing, or is not one of those accepted."""


_MISUSES = (JobMisused, InvalidOption, InvalidMessage)


def run(parser: argparse.ArgumentParser, job: Job, arguments: Sequence[str] | None) -> int:
    """Parses, runs the job, prints what it returns. Returns the exit code."""
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("rmq_spark").setLevel(logging.INFO)
    # These write what is then raised, and told below.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        print(job(given), flush=True)
    except (JobFailed, RmqError, PySparkException, Py4JError) as error:
        text, is_misuse = _told(error)
        print(f"{parser.prog}: {text}", file=sys.stderr)
        return MISUSED if is_misuse else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _told(error: Exception) -> tuple[str, bool]:
    """An error in one line, and whether options or rows are at fault."""
    if isinstance(error, (RmqError, JobFailed)):
        return str(error), isinstance(error, _MISUSES)
    text = cause(error)
    # What was raised in one of Spark's Python processes comes as text.
    name, _, told = text.partition(": ")
    if not name.startswith("rmq_spark."):
        return text, False
    return told, name.rpartition(".")[2] in {kind.__name__ for kind in _MISUSES}


class Ending:
    """Notices that the job is asked to end: by SIGTERM, or by Ctrl-C. A context manager.

    Nothing is interrupted: a call into the JVM that is cut off would block those that clean up.
    When it is left, the job ends with the signal's exit code. A second signal ends it at once, as
    a crash does.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Ending":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._asked is not None and kind is None:
            sys.exit(128 + self._asked)

    def _note(self, number: int, _: object) -> None:
        self._asked = number
        signal.signal(number, signal.SIG_DFL)

    @property
    def is_asked(self) -> bool:
        """Whether it is time to end."""
        return self._asked is not None

    def wait(self, seconds: float) -> None:
        """Sleeps, until it is time to end at the latest."""
        end = time.monotonic() + seconds
        while not self.is_asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))


def run_query(query: StreamingQuery) -> None:
    """Waits until a query ends, or the job is to end: then it stops it. Raises what ended it."""
    with Ending() as ending:
        try:
            while not (ending.is_asked or has_ended(query)):
                pass
        finally:
            query.stop()


def _is_found_by_spark() -> bool:
    """Whether Spark finds the format by itself: not in a zip, nor where a path has blanks."""
    found = importlib.util.find_spec("pyspark_rmq")
    installed = found is not None and Path(found.origin or "").is_file()
    return installed and " " not in sys.executable


def has_ended(query: StreamingQuery) -> bool:
    """Whether it ends within a moment. Raises what ended it."""
    seconds: Any = _LOOK_S  # declared as int; fractions are taken
    return bool(query.awaitTermination(seconds))


def in_session(job: SparkJob) -> Job:
    """A job with a Spark session of its own, and the argument --conf."""

    def in_new_session(given: argparse.Namespace) -> str:
        with _new_session(job.__name__, given.conf) as spark:
            return job(spark, given)

    return in_new_session


@contextmanager
def _new_session(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """The session that spark-submit prepared, or one on all cores of this machine: Spark's default.

    Names no master: it would take the place of the one that was submitted.
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
