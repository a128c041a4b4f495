"""The job ``report``: append the figures of all topics to a table."""

import argparse
import uuid
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from rmq_spark.client.overview import Row, look
from rmq_spark.jobs.chosen_topics import add_topics, broker_of
from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.formats import FILES, add_place, place_options
from rmq_spark.jobs.job_arguments import add_spark_settings
from rmq_spark.jobs.program import Job
from rmq_spark.jobs.session.job_session import in_session

DESCRIPTION = """\
Append the figures of topics to a table, a row for each topic and consumer group.

A row shows what the queues hold now, and the counters since the topic was created. Run the job on
a schedule. Each run appends all of its rows or none. Read files as one table with
spark.read.parquet(path).
"""
# The counters of the scripts, and the columns for them, in the snake case of SQL.
COUNTERS = {
    "accepted": "accepted",
    "merged": "merged",
    "claimed": "claimed",
    "committed": "committed",
    "rolledBack": "rolled_back",
    "dead": "died",
    "cancelled": "cancelled",
    "expired": "expired",
    "forgotten": "forgotten",
}
SCHEMA = (
    "at TIMESTAMP, topic STRING, consumer_group STRING, due BIGINT, delayed BIGINT, "
    "prepared BIGINT, retry BIGINT, dead BIGINT, oldest_due TIMESTAMP, consumers INT, "
    + ", ".join(f"{name} BIGINT" for name in COUNTERS.values())
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the job to a parser."""
    add_topics(parser)
    add_place(parser, "--to", "--target-option", "the format to write: parquet, jdbc, console, ...")
    add_spark_settings(parser)


def report(spark: SparkSession, given: argparse.Namespace) -> str:
    """Append the figures of the chosen topics. Return how many rows there are, as text."""
    with broker_of(given) as broker:
        chosen = [topic.name for topic in broker.topics(given.topics.fullmatch)]
        rows = look(broker, chosen) if chosen else []  # no names would stand for all topics
    options = place_options(given)
    if given.format in FILES:
        # Each run has its own folder: two writers in one folder would remove each other's files.
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
        len(row.consumers),
        *(figures.counters.get(name, 0) for name in COUNTERS),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


JOB = Job("report", DESCRIPTION, add_arguments, in_session(report))

if __name__ == "__main__":
    run_job("report")
