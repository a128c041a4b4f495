"""The job ``relay_outbox``: relay a transactional outbox to topics."""

import argparse
import logging
import os

from pyspark.sql import SparkSession

from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.databases.database import Database, jdbc_options
from rmq_spark.jobs.job_arguments import add_duration, add_number, add_options, add_spark_settings
from rmq_spark.jobs.outbox.exceptions_table import SUFFIX
from rmq_spark.jobs.outbox.rounds import OutboxRelay, Round
from rmq_spark.jobs.outbox.tables import OutboxTables, create_messages, create_others
from rmq_spark.jobs.program import Ending, Job, in_session
from rmq_spark.options.job_options import HORIZON, INTERVAL, LIMIT

DESCRIPTION = """\
Relay messages from the outbox of a database to topics.

A service inserts its own rows and their messages into the database in one transaction. The job
sends the messages that are new and due within --horizon, and marks them as sent. It runs until a
signal ends it, or with --once until all messages that are due are sent. A message that its topic
cannot take goes to the exceptions table. A job that is killed loses nothing; the messages it was
sending are sent again. Of two jobs on one outbox, one waits. Columns and examples: docs/jobs.md.
"""
DERBY = "jdbc:derby:rmq-outbox;create=true"
_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the job to a parser."""
    parser.add_argument(
        "--url",
        default=os.environ.get("RMQ_JDBC_URL", DERBY),
        help="the JDBC URL of the database (default: RMQ_JDBC_URL, or else an embedded Derby in "
        "./rmq-outbox)",
    )
    add_options(
        parser,
        "--jdbc-option",
        "an option of Spark's format jdbc, such as driver; repeatable. Set the user and the "
        "password with RMQ_JDBC_USER and RMQ_JDBC_PASSWORD",
    )
    parser.add_argument(
        "--table", default="rmq_outbox", help="the message table (default: %(default)s)"
    )
    parser.add_argument(
        "--exceptions",
        metavar="TABLE",
        help=f"the exceptions table (default: the message table, followed by {SUFFIX})",
    )
    parser.add_argument(
        "--create-tables", action="store_true", help="create the message table if it does not exist"
    )
    parser.add_argument("--topic", help="the topic of rows whose column topic is null or missing")
    add_options(parser, *("-o", "--option"), "an option of the sink, such as redis.url; repeatable")
    add_duration(parser, HORIZON)
    add_number(parser, LIMIT)
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--once", action="store_true", help="end when all messages that are due are sent"
    )
    add_duration(ends, INTERVAL)
    add_spark_settings(parser)


def relay(spark: SparkSession, given: argparse.Namespace) -> str:
    """Relay until nothing is due (--once) or a signal ends the job. Return its totals."""
    database = Database(spark, jdbc_options({"url": given.url, **given.jdbc_option}))
    tables = OutboxTables.named(given.table, given.exceptions)
    topic = {} if given.topic is None else {"topic": given.topic}
    with Ending() as ending, database.connect() as connection:
        if given.create_tables:
            create_messages(connection, tables)
        create_others(connection, tables)
        outbox = OutboxRelay(
            database, connection, tables, {**topic, **given.option}, given.horizon, given.limit
        )
        _log.info("Relaying %s of %s", tables.messages, database.address)
        return _summary(_rounds(outbox, ending, None if given.once else given.interval / 1000))


def _rounds(outbox: OutboxRelay, ending: Ending, interval_s: float | None) -> Round:
    """Run rounds until a signal comes, and return their totals.

    interval_s: the wait after a round that found fewer messages than its limit; None to end after
    such a round.
    """
    total = Round()
    while not ending.is_asked:
        done = outbox.round()
        total += done
        if done.sent or done.refused:
            _log.info(_summary(done))
        if done.full:
            continue
        if interval_s is None:
            break
        ending.wait(interval_s)
    return total


def _summary(done: Round) -> str:
    return (
        f"{done.sent:,} messages sent, {done.late:,} of them late arrivals; "
        f"{done.refused:,} refused"
    )


JOB = Job("relay_outbox", DESCRIPTION, add_arguments, in_session(relay))

if __name__ == "__main__":
    run_job("relay_outbox")
