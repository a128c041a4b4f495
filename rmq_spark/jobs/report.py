"""``jobs/report.py``: the figures of all topics, as rows of a table."""

import argparse
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from rmq_spark.client.overview import Row, look
from rmq_spark.jobs.chosen_topics import add_topics, broker_of
from rmq_spark.jobs.formats import FILES, add_place, place_options
from rmq_spark.jobs.job_arguments import new_spark_parser
from rmq_spark.jobs.program import in_session, run

DESCRIPTION = """\
Appends one row for each topic and consumer group to a table: what its queues hold now, and its
counters since it was made. Start it on a schedule; each start adds rows of its own, all or none.
Files are read as one table: spark.read.parquet(path).
"""
# Counters have the names of the scripts; columns those of SQL.
COUNTERS = {
    "accepted": "accepted",
    "merged": "merged",
    "claimed": "claimed",
    "committed": "committed",
    "rolledBack": "rolled_back",
    "dead": "died",
    "cancelled": "cancelled",
}
SCHEMA = (
    "at TIMESTAMP, topic STRING, consumer_group STRING, due BIGINT, delayed BIGINT, "
    "prepared BIGINT, retry BIGINT, dead BIGINT, oldest_due TIMESTAMP, consumers INT, "
    + ", ".join(f"{name} BIGINT" for name in COUNTERS.values())
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns its exit code."""
    return run(new_job_parser(), in_session(report), arguments)


def new_job_parser() -> argparse.ArgumentParser:
    """The arguments of the job."""
    parser = new_spark_parser("report", DESCRIPTION)
    add_topics(parser)
    add_place(parser, "--to", "--target-option", "parquet, jdbc, console, ...")
    return parser


def report(spark: SparkSession, given: argparse.Namespace) -> str:
    """Looks, appends, and says how many rows."""
    with broker_of(given) as broker:
        rows = [row for row in look(broker) if given.topics.fullmatch(row.topic)]
    options = place_options(given)
    if given.format in FILES:
        # A folder of its own: two writers into one folder would remove each other's files.
        options["path"] += f"/run={uuid.uuid4().hex}"
    frame = spark.createDataFrame([_figures(row) for row in rows], SCHEMA).coalesce(1)
    frame.write.format(given.format).options(**options).mode("append").save()
    return f"{len(rows):,} rows appended"


def _figures(row: Row) -> tuple[Any, ...]:
    figures = row.figures
    return (
        _time(row.now_ms),
        row.topic,
        row.group,
        row.due,
        row.delayed,
        figures.prepare.count,
        figures.retry.count,
        figures.dead.count,
        None if figures.store.oldest_ms is None else _time(figures.store.oldest_ms),
        len(row.owners),
        *(figures.counters.get(name, 0) for name in COUNTERS),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
