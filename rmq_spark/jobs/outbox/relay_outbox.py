"""``jobs/relay_outbox.py``: a transactional outbox into topics."""

import argparse
import logging
import os
from collections.abc import Sequence

from pyspark.sql import SparkSession

from rmq_spark.jobs.database import Database, jdbc_options
from rmq_spark.jobs.job_arguments import add_duration, add_number, add_options, new_spark_parser
from rmq_spark.jobs.outbox.rounds import OutboxRelay, Round
from rmq_spark.jobs.outbox.tables import OutboxTables, create_messages, create_others
from rmq_spark.jobs.program import Ending, in_session, run
from rmq_spark.options.job_options import HORIZON, INTERVAL, LIMIT

DESCRIPTION = """\
Relays messages that a business wrote into its database together with its own rows: those that are
due within --horizon, from new to sent, into the topic of --topic or of their column topic. Goes
on until it is ended, or with --once until all that is due now is sent. What a topic cannot take
goes to the exceptions table. Killed at any moment it loses nothing; what it was sending is sent
again. Of two that run at once one waits for the other. Columns and examples: docs/jobs.md.
"""
DERBY = "jdbc:derby:rmq-outbox;create=true"
_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns its exit code."""
    return run(new_job_parser(), in_session(relay), arguments)


def new_job_parser() -> argparse.ArgumentParser:
    """The arguments of the job."""
    parser = new_spark_parser("relay_outbox", DESCRIPTION)
    parser.add_argument(
        "--url",
        default=os.environ.get("RMQ_JDBC_URL", DERBY),
        help="the database (default: RMQ_JDBC_URL, else an embedded Derby in ./rmq-outbox)",
    )
    add_options(
        parser,
        "--jdbc-option",
        "an option of Spark's format jdbc, such as driver; repeatable. user and password come from "
        "RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, where these are set",
    )
    parser.add_argument("--table", default="rmq_outbox", help="the messages (default: %(default)s)")
    parser.add_argument("--exceptions", help="the exceptions table (default: TABLE_exceptions)")
    parser.add_argument(
        "--create-tables", action="store_true", help="make the message table if there is none"
    )
    parser.add_argument("--topic", help="for rows whose column topic is null or not there")
    add_options(parser, *("-o", "--option"), "an option of the rmq sink, redis.* too; repeatable")
    add_duration(parser, HORIZON)
    add_number(parser, LIMIT)
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--once", action="store_true", help="end when all that is due is sent")
    add_duration(ends, INTERVAL)
    return parser


def relay(spark: SparkSession, given: argparse.Namespace) -> str:
    """Rounds, until nothing is left (--once) or the job is asked to end."""
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
        return _told(_rounds(outbox, ending, None if given.once else given.interval / 1000))


def _rounds(outbox: OutboxRelay, ending: Ending, interval_s: float | None) -> Round:
    """interval_s: between rounds that found all there was; None: end after the first such one."""
    total = Round()
    while not ending.is_asked:
        done = outbox.round()
        total += done
        if done.sent or done.refused:
            _log.info(_told(done))
        if done.full:
            continue
        if interval_s is None:
            break
        ending.wait(interval_s)
    return total


def _told(done: Round) -> str:
    return (
        f"{done.sent:,} messages sent, {done.late:,} of them late arrivals; "
        f"{done.refused:,} refused"
    )
