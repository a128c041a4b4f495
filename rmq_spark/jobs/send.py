"""The job ``send``: send the rows of anything that Spark reads to topics."""

import argparse
import re
import uuid
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.jobs.program import (
    DELTA,
    ICEBERG,
    KAFKA,
    Job,
    add_options,
    add_place,
    add_shape,
    add_streaming,
    place_options,
    trigger,
)
from rmq_spark.jobs.spark_session import Folder, check_connector, run_query, shaped
from rmq_spark.jobs.targets.iceberg import TABLE, check_catalog, is_in_spark
from rmq_spark.jobs.targets.kafka import KafkaCluster
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.writer import REASON, with_refusals

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
# The subfolder of a run that keeps its rows.
KEPT = "rows"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # Spark skips files that begin with . or _


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    add_options(parser, ["-o", "--option"], "an option of the sink, such as redis.url; repeatable")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--stream", action="store_true", help="read the source as a stream")
    ways.add_argument(
        "--run", metavar="NAME", help="the name of a run that is sent once, such as its date"
    )
    add_streaming(parser, required=False)


def send(spark: SparkSession, given: argparse.Namespace) -> str:
    _check_way(given)
    sink = {**given.option, **({} if given.topic is None else {"topic": given.topic})}
    if given.run:
        return _send_run(spark, sink, given)
    rows = _source(spark, given)
    if given.stream:
        _stream(rows, sink, given.checkpoint, trigger(given))
    else:
        rows.write.format("rmq").options(**sink).mode("append").save()
    return "Sent."


def _check_way(given: argparse.Namespace) -> None:
    lasting = given.stream or given.run
    if lasting and not given.checkpoint:
        raise InvalidOption(
            "--stream and --run need --checkpoint, a folder that is kept between runs."
        )
    if not lasting and (given.checkpoint or given.once or given.trigger):
        raise InvalidOption("--checkpoint, --once and --trigger need --stream or --run.")
    if given.run and not _RUN.fullmatch(given.run):
        raise InvalidOption(
            f"--run {given.run!r} is not accepted. Accepted: 1 to 100 letters, digits and . _ - of "
            "which the first is a letter or digit, such as 2026-11-22."
        )


def _source(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    options = place_options(given)
    table = {"table": given.path or "", DELTA: given.table}.get(given.format)
    if given.format == ICEBERG:
        if not is_in_spark(spark, options[TABLE]):
            rows = _read_by_driver(spark, options, given)
            return shaped(rows, "rows", given.select, given.where)
        check_catalog(spark, options, "Read")
        table = options.pop(TABLE)
    check_connector(spark, given.format)
    if given.format == KAFKA:
        KafkaCluster(spark, options).check_source()
    reader = spark.readStream if given.stream else spark.read
    if given.schema is not None:
        reader = reader.schema(given.schema)
    reader = reader.options(**options)
    rows = reader.format(given.format).load() if table is None else reader.table(table)
    return shaped(rows, "rows", given.select, given.where)


def _read_by_driver(
    spark: SparkSession, options: dict[str, str], given: argparse.Namespace
) -> DataFrame:
    if given.stream:
        raise InvalidOption(
            f"PyIceberg cannot read --table {options[TABLE]} with --stream. Read the table as it "
            "is, with --run, or name a table in a catalog of Spark, for Iceberg's connector."
        )
    from rmq_spark.jobs.targets.iceberg_python import read_table  # needs PyIceberg

    return read_table(spark, options)


def _stream(
    rows: DataFrame, sink: dict[str, str], checkpoint: str, when: dict[str, Any]
) -> StreamingQuery:
    query = (
        rows.writeStream.format("rmq")
        .options(**{"deliveryGuarantee": "exactlyOnce", **sink})
        .option("checkpointLocation", checkpoint)
        .trigger(**when)
        .start()
    )
    run_query(query)
    return query


def _send_run(spark: SparkSession, sink: dict[str, str], given: argparse.Namespace) -> str:
    folder = f"{given.checkpoint.rstrip('/')}/{given.run}"
    rows = _spooled(spark, folder, lambda: _source(spark, given), sink)
    query = _stream(rows, sink, f"{folder}/sent", {"availableNow": True})
    sent = sum(progress.numInputRows for progress in query.recentProgress)
    none = "" if sent else f": the run {given.run} has none, or was sent before"
    return f"{sent:,} rows sent{none}"


def _spooled(
    spark: SparkSession, folder: str, read: Callable[[], DataFrame], sink: dict[str, str]
) -> DataFrame:
    """Return the rows of a run, as a stream of the files in its folder.

    The first start reads the source, and keeps the rows if no topic refuses one. Later starts do
    not read the source, which may be gone. Raises InvalidMessage; the run then keeps no row.
    """
    place = Folder(spark, folder)
    if not place.has(KEPT):
        being_written = f"writing-{uuid.uuid4().hex}"
        try:
            read().write.parquet(place.path(being_written))
            _check(spark.read.parquet(place.path(being_written)), sink)
            place.move(being_written, KEPT)
        finally:
            place.remove(being_written)
    kept = place.path(KEPT)
    return spark.readStream.schema(spark.read.parquet(kept).schema).parquet(kept)


def _check(rows: DataFrame, sink: dict[str, str]) -> None:
    checked = with_refusals(rows, rows.columns, parse_sink_options(sink))
    for row in checked.where(f"{REASON} IS NOT NULL").select(REASON).limit(1).collect():
        raise InvalidMessage(row[0])


JOBS = (Job("send", DESCRIPTION, add_arguments, send),)
