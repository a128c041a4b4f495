"""``jobs/send.py``: whatever Spark reads into a topic."""

import argparse
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark.errors import InvalidMessage
from rmq_spark.jobs.formats import add_place, place_options
from rmq_spark.jobs.job_arguments import (
    add_options,
    add_shape,
    add_streaming,
    new_spark_parser,
    shaped,
    trigger,
)
from rmq_spark.jobs.program import JobMisused, in_session, run, run_query
from rmq_spark.jobs.spool import check_run, spooled
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.validation import REASON, with_refusals

DESCRIPTION = """\
Sends rows of files, a table, a database or a stream to a topic. --select makes of their columns
those that are sent: content, and fixedTime, priority, timeRange, slotBasis, topic.
Three ways: as they are (each start sends all rows again); with --run NAME, the rows of the first
start by that name, once, however often it is started; with --stream what comes in, exactly once.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns its exit code."""
    return run(new_job_parser(), in_session(send), arguments)


def new_job_parser() -> argparse.ArgumentParser:
    """The arguments of the job."""
    parser = new_spark_parser("send", DESCRIPTION)
    add_place(
        *(parser, "--from", "--source-option"),
        "parquet, csv, json, jdbc, kafka, ...; or table, with its name as --path",
    )
    parser.add_argument("--schema", metavar="DDL", help="columns, for files without them")
    add_shape(parser, "rows")
    parser.add_argument("--topic", help="or the option or column topic")
    add_options(parser, *("-o", "--option"), "an option of the rmq sink, redis.* too; repeatable")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--stream", action="store_true", help="read it as a stream")
    ways.add_argument("--run", metavar="NAME", help="such as the date: sent once by that name")
    add_streaming(parser, required=False)
    return parser


def send(spark: SparkSession, given: argparse.Namespace) -> str:
    """Sends in one of the three ways, and says so."""
    _check_way(given)
    sink = {**given.option, **({} if given.topic is None else {"topic": given.topic})}
    if given.run:
        return _send_run(spark, sink, given)
    rows = _source(spark, given)
    if not given.stream:
        rows.write.format("rmq").options(**sink).mode("append").save()
        return "Sent."
    _stream(rows, sink, given.checkpoint, trigger(given))
    return "Sent."


def _send_run(spark: SparkSession, sink: dict[str, str], given: argparse.Namespace) -> str:
    """Sends the rows of a run by its name, unless that is done."""
    folder = f"{given.checkpoint.rstrip('/')}/{given.run}"
    rows = spooled(spark, folder, lambda: _source(spark, given), lambda kept: _check(kept, sink))
    query = _stream(rows, sink, f"{folder}/sent", {"availableNow": True})
    sent = sum(progress.numInputRows for progress in query.recentProgress)
    none = "" if sent else f": the run {given.run} has none, or was sent before"
    return f"{sent:,} rows sent{none}"


def _check(rows: DataFrame, sink: dict[str, str]) -> None:
    """Raises InvalidMessage for a row that the topic does not take: then nothing is kept."""
    checked = with_refusals(rows, rows.columns, parse_sink_options(sink))
    for row in checked.where(f"{REASON} IS NOT NULL").select(REASON).limit(1).collect():
        raise InvalidMessage(row[0])


def _check_way(given: argparse.Namespace) -> None:
    lasting = given.stream or given.run
    if lasting and not given.checkpoint:
        raise JobMisused("--stream and --run need --checkpoint, a folder that is kept.")
    if not lasting and (given.checkpoint or given.once or given.trigger):
        raise JobMisused("--checkpoint, --once and --trigger need --stream or --run.")
    if given.run:
        check_run(given.run)


def _source(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    reader = spark.readStream if given.stream else spark.read
    if given.schema is not None:
        reader = reader.schema(given.schema)
    options = place_options(given)
    if given.format == "table":
        rows = reader.options(**options).table(given.path or "")
    else:
        rows = reader.format(given.format).options(**options).load()
    return shaped(rows, "rows", given.select, given.where)


def _stream(
    rows: DataFrame, sink: dict[str, str], checkpoint: str, when: dict[str, Any]
) -> StreamingQuery:
    """Sends until it ends, and returns the query. when: the trigger."""
    query = (
        rows.writeStream.format("rmq")
        .options(**{"deliveryGuarantee": "exactlyOnce", **sink})
        .option("checkpointLocation", checkpoint)
        .trigger(**when)
        .start()
    )
    run_query(query)
    return query
