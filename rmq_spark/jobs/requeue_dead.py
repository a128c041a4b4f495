"""The job ``requeue_dead``: requeue the dead messages of a topic."""

import argparse

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sql

from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.job_arguments import add_options, add_spark_settings
from rmq_spark.jobs.program import Job
from rmq_spark.jobs.session.job_session import in_session
from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.sink_options import GROUP, SINK
from rmq_spark.options.table_options import ENDING_TIME, SLOTS, STARTING_TIME

DESCRIPTION = """\
Requeue the dead messages of a topic, all of them or those that you choose.

They come back as first deliveries, due at once or when an option such as -o delay=10m says.
Choose messages with --where, --slots, --from and --until. It is safe to start the job again, or
twice at once: it requeues the messages that are still dead.
"""
_SEARCHED = (
    "key BINARY, content BINARY, topic STRING, slot INT, diedAt TIMESTAMP, consumer STRING, "
    "reason STRING"
)

_KEY, _CONTENT = "rmq_key", "rmq_content"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the job to a parser."""
    parser.add_argument("--topic", required=True, help="the topic (required)")
    parser.add_argument(
        "--group", help="the consumer group whose dead messages to requeue (default: default)"
    )
    parser.add_argument(
        "--where",
        metavar="SQL",
        help="requeue messages that meet a condition on key, content, slot, diedAt, consumer and "
        "reason (default: all)",
    )
    parser.add_argument("--slots", help=SLOTS.plain_help)
    parser.add_argument("--from", dest="since", metavar="TIME", help=STARTING_TIME.plain_help)
    parser.add_argument("--until", metavar="TIME", help=ENDING_TIME.plain_help)
    add_options(parser, *("-o", "--option"), "an option of the sink, such as redis.url; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="only count the messages")
    add_spark_settings(parser)


def requeue_dead(spark: SparkSession, given: argparse.Namespace) -> str:
    """Requeue the chosen dead messages, or only count them. Return their number as text."""
    named = [text for name, text in given.option.items() if SINK.find(name) is GROUP]
    named += [] if given.group is None else [given.group]
    group = {GROUP.name: named[-1]} if named else {}
    scope = {
        SLOTS.name: given.slots,
        STARTING_TIME.name: given.since,
        ENDING_TIME.name: given.until,
    }
    dead = (
        spark.read.format("rmq")
        .options(**{**_connection(given.option), **group, "topic": given.topic, "queue": "dead"})
        .options(**{name: value for name, value in scope.items() if value is not None})
        .schema(_SEARCHED)
        .load()
    )
    # --where sees key and content as text, or as NULL if they are not UTF-8. The bytes are
    # requeued: the key, or without one the content.
    content = sql.when(sql.col(_KEY).isNull(), sql.col(_CONTENT))
    found = (
        dead.withColumnsRenamed({"key": _KEY, "content": _CONTENT})
        .withColumn("key", _text(_KEY))
        .withColumn("content", _text(_CONTENT))
        .where(given.where or "true")
        .select("topic", "slot", sql.col(_KEY).alias("key"), content.alias("content"))
        # Find all messages before requeuing one, so that one that dies again is not found twice.
        .localCheckpoint()
    )
    amount = found.count()
    if amount and not given.dry_run:
        found.write.format("rmq").options(**{**given.option, **group, "operation": "requeue"}).mode(
            "append"
        ).save()
    return f"{amount:,} dead messages of {given.topic} {'found' if given.dry_run else 'requeued'}"


def _text(name: str) -> Column:
    """Return a column of bytes as text, which is NULL where they are not UTF-8."""
    return sql.try_validate_utf8(sql.col(name).cast("string"))


def _connection(options: dict[str, str]) -> dict[str, str]:
    """Return the options of the connection, the only ones of the sink that a read accepts."""
    return {name: text for name, text in options.items() if CONNECTION.find(name)}


JOB = Job("requeue_dead", DESCRIPTION, add_arguments, in_session(requeue_dead))

if __name__ == "__main__":
    run_job("requeue_dead")
