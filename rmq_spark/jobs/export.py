"""The job ``export``: write the messages of topics in any format of Spark."""

import argparse
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from rmq_spark.client.broker import Broker
from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import (
    KAFKA,
    ROCKETMQ,
    Ending,
    Job,
    JobFailed,
    add_options,
    add_parsed,
    add_place,
    add_shape,
    add_streaming,
    login,
    trigger,
)
from rmq_spark.jobs.spark_session import has_ended, shaped
from rmq_spark.jobs.targets import chosen_target
from rmq_spark.jobs.targets.base import NUMBER, ExportBatch, OutboxMarks, Target
from rmq_spark.options import MAX_REFUSED
from rmq_spark.outbox.outbox import Outbox
from rmq_spark.redis.server import shared_server
from rmq_spark.spark.compatibility import TELLS_START
from rmq_spark.spark.options import parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA, WHOLE_SOURCE_SCHEMA
from rmq_spark.spark.sink.exactly_once import QUERY_ID
from rmq_spark.sql.database import EXCEPTIONS_SUFFIX

DESCRIPTION = """\
Export the messages of topics to files, tables of databases or another format of Spark.

Files (--to parquet --path ...), tables (--to jdbc --url ... --table ..., delta, iceberg) and Kafka
with --exactly-once get each message exactly once, also when the job is killed and started again.
Other formats get it at least once.
A message that the target can never take (a constraint of the table refuses it, or --select fails
for it) goes to the exceptions table, and the rest of its batch is written. Examples: docs/jobs.md.
"""
_TEXTS = ("key", "content")
_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", required=True, metavar="NAMES", help="topics, separated by commas (required)"
    )
    add_options(
        parser, ["-o", "--option"], "an option of the source, such as redis.url; repeatable"
    )
    add_place(parser, "--to", "--target-option", "the format to write: parquet, jdbc, console, ...")
    add_streaming(parser, required=True)
    add_shape(parser, "messages")
    parser.add_argument(
        "--binary", action="store_true", help="read key and content as BINARY instead of STRING"
    )
    parser.add_argument(
        "--exceptions",
        metavar="NAME",
        help="the exceptions table: for jdbc a table, otherwise a folder of Parquet files "
        f"(default: the table, the path or the checkpoint, followed by {EXCEPTIONS_SUFFIX})",
    )
    parser.add_argument(
        "--headers",
        action="store_true",
        help="also read the columns headers (JSON text) and expiresAt (TIMESTAMP)",
    )
    parser.add_argument(
        "--outbox",
        metavar="URL",
        help="the database of the outbox from which the messages come, such as "
        "postgresql://host/shop: mark them there as delivered or refused. Their relay must be "
        "tracked. The user and the password are RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, unless the "
        "URL has them",
    )
    parser.add_argument(
        "--outbox-table",
        default="rmq_outbox",
        metavar="NAME",
        help="the message table of the outbox (default: %(default)s)",
    )
    parser.add_argument(
        "--exactly-once",
        action="store_true",
        help="for kafka: write each batch in one transaction, through one producer on the driver",
    )
    add_parsed(parser, MAX_REFUSED, "NUMBER")


def export(spark: SparkSession, given: argparse.Namespace) -> str:
    marks = _marks(given)
    totals = {"done": 0, "refused": 0}
    with Ending() as ending:
        run = partial(_run, spark, given, marks, totals, ending)
        if given.once and not TELLS_START:
            _run_until_nothing_is_due(run, given, totals, ending)
        else:
            run()
    return f"{totals['done']:,} messages done, {totals['refused']:,} of them refused"


def _run(
    spark: SparkSession,
    given: argparse.Namespace,
    marks: OutboxMarks | None,
    totals: dict[str, int],
    ending: Ending,
) -> None:
    target = chosen_target(spark, given)
    place = {} if TELLS_START else {"checkpointLocation": given.checkpoint}
    messages = (
        spark.readStream.format("rmq")
        .options(**_source_options(given), **place)
        .schema(_read_schema(given))
        .load()
    )
    query = (
        messages.writeStream.foreachBatch(_into(target, marks, given, totals, ending))
        .option("checkpointLocation", given.checkpoint)
        .trigger(**trigger(given))
        .start()
    )
    try:
        _run_to_the_end_of_a_batch(query, ending)
    finally:
        query.stop()
        with suppress(Py4JError):  # if it fails, the next start drops the stage
            target.close()


def _run_until_nothing_is_due(
    run: Callable[[], None], given: argparse.Namespace, totals: dict[str, int], ending: Ending
) -> None:
    """Run until all is done that is due after the first run.

    Up to Spark 4.1, a run reads one batch, the first one perhaps only that of a killed run.
    """
    if parse_source_options(_source_options(given)).target_batch_ms is not None:
        raise InvalidOption(
            "-o targetBatchDuration learns from batch to batch, but with --once, each batch is a "
            "run of its own on Spark up to 4.1. Accepted: -o maxRecordsPerTrigger, or no --once."
        )
    run()
    wanted = totals["done"] + _amount_due(given)
    while totals["done"] < wanted and not ending.is_asked:
        before = totals["done"]
        run()
        if totals["done"] == before:  # others have taken the rest
            return


def _amount_due(given: argparse.Namespace) -> int:
    options = parse_source_options(_source_options(given))
    broker = Broker(shared_server(options.connection), key_prefix=options.key_prefix)
    of = options.subscription
    figures = [broker.queue(name, group=of.group).figures() for name in of.names]
    return sum(one.store.due + one.retry.due for one in figures)


def _source_options(given: argparse.Namespace) -> dict[str, str]:
    return {**given.option, "topics" if "," in given.topic else "topic": given.topic}


def _marks(given: argparse.Namespace) -> OutboxMarks | None:
    if given.outbox is None:
        return None
    outbox = Outbox(given.outbox, table=given.outbox_table, **login())
    outbox.mark("delivered", [])  # an outbox that does not answer is reported before any batch
    return OutboxMarks(outbox)


def _read_schema(given: argparse.Namespace) -> StructType:
    whole = WHOLE_SOURCE_SCHEMA if given.headers or given.outbox else SOURCE_SCHEMA
    return StructType(
        [
            StructField(field.name, BinaryType()) if field.name in _TEXTS else field
            for field in whole.fields
        ]
    )


class _Ended(Exception):
    """The exception that ends a query before its next batch."""


def _run_to_the_end_of_a_batch(query: StreamingQuery, ending: Ending) -> None:
    """Wait until the query ends, or until a signal comes and all begun batches are committed.

    Redis commits a batch only when Spark asks for the next one. If the query stopped before that,
    its messages would go to other consumers when the lease expires, and a finished batch would be
    written again. So the wait ends when the next batch raises _Ended, or when Spark finds that
    nothing is due.
    """
    try:
        while not has_ended(query):
            if ending.is_asked and not query.status["isDataAvailable"]:
                return
    except StreamingQueryException as error:
        if not (ending.is_asked and _Ended.__name__ in str(error)):
            raise


def _into(
    target: Target,
    marks: OutboxMarks | None,
    given: argparse.Namespace,
    totals: dict[str, int],
    ending: Ending,
) -> Callable[[DataFrame, int], None]:
    def shape(messages: DataFrame) -> DataFrame:
        if not given.binary:
            # Fails for what is not UTF-8, as --select may. The message is then refused.
            texts = {name: sql.validate_utf8(sql.col(name).cast("string")) for name in _TEXTS}
            messages = messages.withColumns(texts)
        if given.headers and given.format not in (KAFKA, ROCKETMQ):  # whose records have headers
            messages = messages.withColumn("headers", _headers_text(sql.col("headers")))
        if not given.headers:
            messages = messages.drop("headers", "expiresAt")  # read for the marks alone
        return shaped(messages, "messages", given.select, given.where, NUMBER)

    begun = False

    def write(messages: DataFrame, number: int) -> None:
        nonlocal begun
        # The first batch may be one that a killed export wrote but did not commit. Run it, so that
        # its messages do not go to others.
        if ending.is_asked and begun:
            raise _Ended
        begun = True
        query = messages.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query is None:
            raise JobFailed(
                "Spark does not report the id of the streaming query, so a replayed batch cannot "
                "be recognized. Remove PYSPARK_PIN_THREAD from the environment, or set it to true."
            )
        numbered = messages.select(sql.monotonically_increasing_id().alias(NUMBER), "*").persist()
        try:
            refused = target.write(
                ExportBatch(numbered, shape, query, number, given.max_refused, marks)
            )
            if marks is not None:
                marks.delivered(numbered)
            amount = numbered.count()
        finally:
            numbered.unpersist()
        totals["done"] += amount
        totals["refused"] += refused
        _log.info("Batch %d: %d messages, %d refused", number, amount, refused)

    return write


def _headers_text(headers: Column) -> Column:
    """Write a column of headers as JSON, in the form of the outbox.

    An array of key and value, or valueBase64 for bytes. A value that is null is left out. Without
    headers, the text is null.
    """

    def fields(header: Column) -> Column:
        text = sql.try_validate_utf8(header["value"].cast("string"))
        encoded = sql.when(text.isNull(), sql.base64(header["value"]))
        return sql.struct(
            header["key"].alias("key"), text.alias("value"), encoded.alias("valueBase64")
        )

    return sql.to_json(sql.transform(headers, fields))


JOBS = (Job("export", DESCRIPTION, add_arguments, export),)
