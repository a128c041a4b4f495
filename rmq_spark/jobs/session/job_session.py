"""The Spark session of a job, and its query until it ends."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark.jobs.program import Ending, Work
from rmq_spark.spark.datasource import register

_LOOK_S = 0.2  # how often the main thread checks whether a signal has come

SparkWork = Callable[[SparkSession, argparse.Namespace], str]


def in_session(work: SparkWork) -> Work:
    """Give a job's work a Spark session of its own, with the settings of --conf."""

    def in_new_session(given: argparse.Namespace) -> str:
        with _new_session(given.job.name, given.conf) as spark:
            return work(spark, given)

    return in_new_session


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


def has_ended(query: StreamingQuery) -> bool:
    """Wait a moment, and check whether a query has ended. Raises the error that ended it."""
    seconds: Any = _LOOK_S  # declared as int, but fractions are accepted
    return bool(query.awaitTermination(seconds))


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


def _is_found_by_spark() -> bool:
    """Check whether Spark finds the format rmq by itself.

    It does not if the package is in a zip, or if the path of Python contains a blank.
    """
    found = importlib.util.find_spec("pyspark_rmq")
    installed = found is not None and Path(found.origin or "").is_file()
    return installed and " " not in sys.executable
