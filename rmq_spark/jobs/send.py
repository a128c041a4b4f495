"""The job ``send``: send the rows of anything that Spark reads to topics."""

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.formats import ICEBERG, add_place, place_options
from rmq_spark.jobs.iceberg_tables import read_table
from rmq_spark.jobs.job_arguments import (
    add_options,
    add_shape,
    add_spark_settings,
    add_streaming,
    shaped,
    trigger,
)
from rmq_spark.jobs.kafka.kafka_cluster import KafkaCluster
from rmq_spark.jobs.program import Job
from rmq_spark.jobs.session.connectors import DELTA, KAFKA, check_connector
from rmq_spark.jobs.session.job_session import in_session, run_query
from rmq_spark.jobs.spool import check_run, spooled
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.validation import REASON, with_refusals

DESCRIPTION = """\
Send rows of files, a table, a database or a stream to topics.

--select makes the columns that are sent from those of the source: content, and fixedTime,
delay, priority, timeRange, slotBasis, topic, headers, timeToLive, expiresAt. In a keyed topic,
key is needed and content is the payload; -o keyed=true makes a new topic keyed. There are three
ways to send:
  as it is            each run sends every row again
  --run NAME          a run with a name sends its rows once, however often it is started
  --stream            new rows are sent as they arrive, exactly once
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the job to a parser."""
    add_place(
        *(parser, "--from", "--source-option"),
        "the format to read: parquet, csv, json, jdbc, kafka, ...; or table, a table of Spark's "
        "catalog whose name is in --path",
    )
    parser.add_argument(
        "--schema", metavar="DDL", help="the columns and their types (default: those of the source)"
    )
    add_shape(parser, "rows")
    parser.add_argument("--topic", help="the topic (default: the column topic)")
    add_options(parser, *("-o", "--option"), "an option of the sink, such as redis.url; repeatable")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--stream", action="store_true", help="read the source as a stream")
    ways.add_argument(
        "--run", metavar="NAME", help="the name of a run that is sent once, such as its date"
    )
    add_streaming(parser, required=False)
    add_spark_settings(parser)


def send(spark: SparkSession, given: argparse.Namespace) -> str:
    """Send the rows in one of the three ways. Return the line that the job prints."""
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
    """Send the rows of a named run that are not sent yet."""
    folder = f"{given.checkpoint.rstrip('/')}/{given.run}"
    rows = spooled(spark, folder, lambda: _source(spark, given), lambda kept: _check(kept, sink))
    query = _stream(rows, sink, f"{folder}/sent", {"availableNow": True})
    sent = sum(progress.numInputRows for progress in query.recentProgress)
    none = "" if sent else f": the run {given.run} has none, or was sent before"
    return f"{sent:,} rows sent{none}"


def _check(rows: DataFrame, sink: dict[str, str]) -> None:
    """Raise InvalidMessage if a topic refuses a row. The run then keeps no row."""
    checked = with_refusals(rows, rows.columns, parse_sink_options(sink))
    for row in checked.where(f"{REASON} IS NOT NULL").select(REASON).limit(1).collect():
        raise InvalidMessage(row[0])


def _check_way(given: argparse.Namespace) -> None:
    """Raise InvalidOption if the arguments fit none of the three ways to send."""
    lasting = given.stream or given.run
    if lasting and not given.checkpoint:
        raise InvalidOption(
            "--stream and --run need --checkpoint, a folder that is kept between runs."
        )
    if not lasting and (given.checkpoint or given.once or given.trigger):
        raise InvalidOption("--checkpoint, --once and --trigger need --stream or --run.")
    if given.run:
        check_run(given.run)
    if given.stream and given.format == ICEBERG:
        raise InvalidOption(
            "The format iceberg cannot be read with --stream. Read the table as it is, with --run."
        )


def _source(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    options = place_options(given)
    if given.format == ICEBERG:
        return shaped(read_table(spark, options), "rows", given.select, given.where)
    check_connector(spark, given.format)
    if given.format == KAFKA:
        KafkaCluster(spark, options).check_source()
    reader = spark.readStream if given.stream else spark.read
    if given.schema is not None:
        reader = reader.schema(given.schema)
    reader = reader.options(**options)
    table = {"table": given.path or "", DELTA: given.table}.get(given.format)
    rows = reader.format(given.format).load() if table is None else reader.table(table)
    return shaped(rows, "rows", given.select, given.where)


def _stream(
    rows: DataFrame, sink: dict[str, str], checkpoint: str, when: dict[str, Any]
) -> StreamingQuery:
    """Run a query that sends the rows, until it ends. Return the query. when: its trigger."""
    query = (
        rows.writeStream.format("rmq")
        .options(**{"deliveryGuarantee": "exactlyOnce", **sink})
        .option("checkpointLocation", checkpoint)
        .trigger(**when)
        .start()
    )
    run_query(query)
    return query


JOB = Job("send", DESCRIPTION, add_arguments, in_session(send))

if __name__ == "__main__":
    run_job("send")
