"""``jobs/export.py``: a topic into files, a table, or whatever else Spark writes."""

import argparse
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from rmq_spark.jobs.formats import FILES, add_place, is_jdbc, place_options
from rmq_spark.jobs.jdbc_target import JdbcTarget
from rmq_spark.jobs.job_arguments import (
    add_number,
    add_options,
    add_shape,
    add_streaming,
    new_spark_parser,
    shaped,
    trigger,
)
from rmq_spark.jobs.outbox.exceptions_table import SUFFIX
from rmq_spark.jobs.program import Ending, JobFailed, has_ended, in_session, run
from rmq_spark.jobs.targets import NUMBER, ExportBatch, SparkTarget, Target
from rmq_spark.options.job_options import MAX_REFUSED
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.sink.exactly_once_writer import QUERY_ID

DESCRIPTION = """\
Takes messages from a topic and writes them into files (--to parquet --path ...), a table of a
database (--to jdbc --url ... --table ...), or any other format of Spark. Files and tables of
databases get each message once, whatever is killed; other formats at least once. What is refused
for good (by a constraint of the table, or because --select fails for it) goes to the exceptions
table, and the rest of its batch is written. Examples: docs/jobs.md.
"""
TESTED = ("parquet", "orc", "json", "csv", "jdbc", "console")
_BINARY = StructType(
    [
        StructField("content", BinaryType()) if field.name == "content" else field
        for field in SOURCE_SCHEMA.fields
    ]
)
_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns its exit code."""
    return run(new_job_parser(), in_session(export), arguments)


def new_job_parser() -> argparse.ArgumentParser:
    """The arguments of the job."""
    parser = new_spark_parser("export", DESCRIPTION)
    parser.add_argument("--topic", required=True, help="one, or several by commas")
    add_options(parser, *("-o", "--option"), "an option of the rmq source, redis.* too; repeatable")
    add_place(parser, "--to", "--target-option", "parquet, jdbc, console, ...")
    add_streaming(parser, required=True)
    add_shape(parser, "messages")
    parser.add_argument(
        "--binary", action="store_true", help="content is BINARY; else it is a STRING"
    )
    parser.add_argument(
        "--exceptions",
        help="of jdbc a table, else a folder of Parquet files (default: the name of the table, of "
        f"the path or of the checkpoint, and {SUFFIX})",
    )
    add_number(parser, MAX_REFUSED)
    return parser


def export(spark: SparkSession, given: argparse.Namespace) -> str:
    """Runs the query until it ends (--once) or for ever. Returns what it did."""
    target = _target(spark, given)
    topics = "topics" if "," in given.topic else "topic"
    messages = (
        spark.readStream.format("rmq")
        .options(**{**given.option, topics: given.topic})
        .schema(_BINARY)
        .load()
    )
    totals = {"done": 0, "refused": 0}
    with Ending() as ending:
        query = (
            messages.writeStream.foreachBatch(_into(target, given, totals, ending))
            .option("checkpointLocation", given.checkpoint)
            .trigger(**trigger(given))
            .start()
        )
        try:
            _run_to_the_end_of_a_batch(query, ending)
        finally:
            query.stop()
            with suppress(Py4JError):  # the next start drops its stage, too
                target.close()
    return f"{totals['done']:,} messages done, {totals['refused']:,} of them refused"


def _target(spark: SparkSession, given: argparse.Namespace) -> Target:
    if given.format not in TESTED:
        _log.warning(
            "The format %s is not among those that are tested (%s): each message is written at "
            "least once.",
            *(given.format, ", ".join(TESTED)),
        )
    options = place_options(given)
    if is_jdbc(given):
        return JdbcTarget(spark, options, given.exceptions or options["dbtable"] + SUFFIX)
    folder = options["path"] if given.format in FILES else given.checkpoint
    return SparkTarget(given.format, options, given.exceptions or folder.rstrip("/") + SUFFIX)


class _Ended(Exception):
    """Ends a query before it begins with another batch."""


def _run_to_the_end_of_a_batch(query: StreamingQuery, ending: Ending) -> None:
    """Wait until the query ends, or the job is asked to end and every batch is committed.

    Messages that a stopped query has not committed go to others when its lease ends, and they would
    write a finished batch again. A batch is committed in Redis when Spark asks for the next one.
    That request raises _Ended; or Spark finds that nothing is due.
    """
    try:
        while not has_ended(query):
            if ending.is_asked and not query.status["isDataAvailable"]:
                return
    except StreamingQueryException as error:
        if not (ending.is_asked and _Ended.__name__ in str(error)):
            raise


def _into(
    target: Target, given: argparse.Namespace, totals: dict[str, int], ending: Ending
) -> Callable[[DataFrame, int], None]:
    """What is called for each batch. totals: is added to."""

    def shape(messages: DataFrame) -> DataFrame:
        if not given.binary:
            # Fails for a content that is no text, as a transformation does: it is refused.
            text = sql.validate_utf8(sql.col("content").cast("string"))
            messages = messages.withColumn("content", text)
        return shaped(messages, "messages", given.select, given.where, NUMBER)

    begun = False

    def write(messages: DataFrame, number: int) -> None:
        nonlocal begun
        # The first batch may be one that an export which was killed has written already: it is not
        # for others.
        if ending.is_asked and begun:
            raise _Ended
        begun = True
        query = messages.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query is None:
            raise JobFailed(
                "Spark does not tell which streaming query this is, so a batch that comes again "
                "cannot be known. Accepted: PYSPARK_PIN_THREAD is true, as by default."
            )
        numbered = messages.select(sql.monotonically_increasing_id().alias(NUMBER), "*").persist()
        try:
            refused = target.write(ExportBatch(numbered, shape, query, number, given.max_refused))
            amount = numbered.count()
        finally:
            numbered.unpersist()
        totals["done"] += amount
        totals["refused"] += refused
        _log.info("Batch %d: %d messages, %d refused", number, amount, refused)

    return write
