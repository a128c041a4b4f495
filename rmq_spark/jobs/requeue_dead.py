"""``jobs/requeue_dead.py``: what died in a topic comes back."""

import argparse
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from rmq_spark.jobs.job_arguments import add_options, new_spark_parser
from rmq_spark.jobs.program import in_session, run
from rmq_spark.options.connection_options import CONNECTION
from rmq_spark.options.table_options import ENDING_TIME, SLOTS, STARTING_TIME

DESCRIPTION = """\
Brings the messages of a topic's dead queue back as first deliveries, due at once unless an option
such as -o fixedTime=... says when: all of them, or those that --where, --slots and the times
choose. Started again, or twice at once, it brings back what is still dead.
"""
_SEARCHED = "content BINARY, topic STRING, slot INT, diedAt TIMESTAMP"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns its exit code."""
    return run(new_job_parser(), in_session(requeue_dead), arguments)


def new_job_parser() -> argparse.ArgumentParser:
    """The arguments of the job."""
    parser = new_spark_parser("requeue_dead", DESCRIPTION)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", help="the consumer group they died in (default: the first)")
    parser.add_argument(
        "--where", metavar="SQL", help="a condition over the columns content, slot and diedAt"
    )
    parser.add_argument("--slots", help=SLOTS.plain_help)
    parser.add_argument("--from", dest="since", metavar="TIME", help=STARTING_TIME.plain_help)
    parser.add_argument("--until", metavar="TIME", help=ENDING_TIME.plain_help)
    add_options(parser, *("-o", "--option"), "an option of the rmq sink, redis.* too; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="only count them")
    return parser


def requeue_dead(spark: SparkSession, given: argparse.Namespace) -> str:
    """Finds them, brings them back, and says how many."""
    group = {} if given.group is None else {"group": given.group}
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
    # A condition is about the text; what is no UTF-8 has none, and is brought back as it is.
    found = (
        dead.withColumnRenamed("content", "bytes")
        .withColumn("content", sql.try_validate_utf8(sql.col("bytes").cast("string")))
        .where(given.where or "true")
        .select("topic", "slot", sql.col("bytes").alias("content"))
        # All are found before the first one goes back: what fails at once is not found again.
        .localCheckpoint()
    )
    amount = found.count()
    if amount and not given.dry_run:
        found.write.format("rmq").options(**{**given.option, **group, "operation": "requeue"}).mode(
            "append"
        ).save()
    return f"{amount:,} dead messages of {given.topic} {'found' if given.dry_run else 'requeued'}"


def _connection(options: dict[str, str]) -> dict[str, str]:
    """Those that reading has, too."""
    return {name: text for name, text in options.items() if CONNECTION.find(name)}
