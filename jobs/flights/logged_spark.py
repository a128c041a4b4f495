"""A Spark that writes its log into a file; of two cores, unless told otherwise."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from rmq_spark import register

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # The figures are summed over all batches; 100 would be kept.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def new_session(log: Path, folder: Path, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session; Spark's own output goes to the log, what it keeps on disk into the folder.

    settings: those that differ from SETTINGS.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("rmq demo")
    for name, value in {**SETTINGS, **settings}.items():
        builder.config(name, value)
    builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    # They write what is then raised; whoever catches it tells the user.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _stderr_to(log):
        spark = builder.getOrCreate()
    # Spark finds an installed format by itself, but not with a Python whose path has a space.
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes started meanwhile inherit the file as their stderr."""
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
