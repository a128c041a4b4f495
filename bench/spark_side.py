"""What the benches share of Spark: a session, messages to send, and queries run to their end."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import python_of_spark
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming import DataStreamWriter

from jobs.flights.logged_spark import SETTINGS

MEMORY = {"spark.driver.memory": "2g"}


@contextmanager
def session(cores: int = 2, **settings: str) -> Iterator[SparkSession]:
    """A local Spark, unless settings name another master."""
    python_of_spark()
    builder = SparkSession.builder.appName("rmq bench")
    local = {"spark.master": f"local[{cores}]"}
    for name, value in (SETTINGS | MEMORY | local | settings).items():
        builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def numbered(
    spark: SparkSession, messages: int, size: int, files: int = 2, first: int = 0
) -> DataFrame:
    """Contents of ``size`` bytes, each once, with a value for every type of topic.

    first: the number of the first one.
    """
    padding = size - len('{"order": 0123456789, "x": ""}')
    form = f'{{"order": %010d, "x": "{"x" * padding}"}}'
    return spark.range(first, first + messages, 1, files).select(
        functions.format_string(form, "id").alias("content"),
        functions.expr("1700000000000 + pmod(id * 7919, 86400000)").alias("fixedTime"),
        functions.expr("17 + pmod(id * 7919, 1000000)").alias("priority"),
        functions.expr("CAST(1 + pmod(id, 10) AS INT)").alias("timeRange"),
    )


def run_to_end(writer: DataStreamWriter) -> list[Any]:
    """Runs an AvailableNow query with a checkpoint of its own; its progress reports with rows."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress.numInputRows]


def spent_s(progresses: list[Any], *phases: str) -> float:
    """Seconds that these reports name for the phases of their triggers."""
    return sum(p.durationMs.get(phase, 0) for p in progresses for phase in phases) / 1000


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as path:
        yield Path(path)


def timed(work: Any) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
