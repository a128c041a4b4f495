"""The job ``relay_outbox``: relay a transactional outbox to topics."""

import argparse
import os
from datetime import timedelta

from rmq_spark.client.administration import Administration
from rmq_spark.client.broker import Broker
from rmq_spark.client.messages import Message
from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.commands import run_job
from rmq_spark.jobs.job_arguments import add_duration, add_number, add_options
from rmq_spark.jobs.program import Ending, Job
from rmq_spark.options.job_options import HORIZON, INTERVAL, KEEP, LIMIT
from rmq_spark.outbox.outbox import Outbox
from rmq_spark.outbox.rounds import Relayed
from rmq_spark.outbox.tables import SUFFIX
from rmq_spark.spark.options import SinkOptions, parse_sink_options
from rmq_spark.transport.shared_servers import shared_server

DESCRIPTION = """\
Relay messages from the outbox of a database to topics.

A service inserts its own rows and their messages into the database in one transaction. The job
sends the messages that are new and due within --horizon, each exactly once, and marks them as sent.
It runs until a signal ends it, or with --once until all messages that are due are sent. A message
that its topic cannot take goes to the exceptions table. Of two jobs on one outbox, one waits. The
database is PostgreSQL, MariaDB or MySQL; the job needs no Spark. Columns and examples:
docs/outbox.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the job to a parser."""
    parser.add_argument(
        "--url",
        default=os.environ.get("RMQ_JDBC_URL"),
        help="the database, such as postgresql://host:5432/shop or mariadb://host/shop, with or "
        "without jdbc: before it (default: RMQ_JDBC_URL). Set the user and the password with "
        "RMQ_JDBC_USER and RMQ_JDBC_PASSWORD",
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
    add_options(
        parser,
        *("-o", "--option"),
        "an option of Redis, of a new topic, or a value that messages lack, such as redis.url, "
        "topicType or timeRange; repeatable",
    )
    add_duration(parser, HORIZON)
    add_number(parser, LIMIT)
    parser.add_argument(
        "--tracked",
        action="store_true",
        help="add the header rmq-outbox-id, by which consumers write back the result of a message",
    )
    add_duration(parser, KEEP)
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--once", action="store_true", help="end when all messages that are due are sent"
    )
    add_duration(ends, INTERVAL)


def relay(given: argparse.Namespace) -> str:
    """Relay until nothing is due (--once) or a signal ends the job. Return its totals."""
    outbox = _outbox(given)
    topic = {} if given.topic is None else {"topic": given.topic}
    options = parse_sink_options({**topic, **given.option})
    broker = Broker(shared_server(options.connection), key_prefix=options.key_prefix)
    _create_topic(broker, options)
    if given.create_tables:
        outbox.create_tables()
    relaying = outbox.relay(
        broker,
        topic=options.topic,
        defaults=_defaults(options),
        horizon=given.horizon,
        limit=given.limit,
        interval=given.interval,
        tracked=given.tracked,
        keep=None if given.keep is None else timedelta(milliseconds=given.keep),
    )
    with Ending(relaying.stop):
        if given.once:
            relaying.run_once()
        else:
            relaying.run()
    deleted = "" if given.keep is None else f"; {relaying.deleted:,} old ones deleted"
    return _summary(relaying.total) + deleted


def _outbox(given: argparse.Namespace) -> Outbox:
    if not given.url:
        raise InvalidOption("An outbox needs --url, or RMQ_JDBC_URL: the database.")
    return Outbox(
        given.url,
        user=os.environ.get("RMQ_JDBC_USER"),
        password=os.environ.get("RMQ_JDBC_PASSWORD"),
        table=given.table,
        exceptions=given.exceptions,
    )


def _create_topic(broker: Administration, options: SinkOptions) -> None:
    """Create the topic of the options if it does not exist and they say how.

    It exists before its first message, so that its readers can start.
    """
    if options.topic is None:
        return
    broker.define(options.topic, options.topic_type, options.slot_amount, **options.settings)


def _defaults(options: SinkOptions) -> Message:
    return Message(
        slot_basis=options.slot_basis,
        time_range=options.time_range,
        priority=options.priority,
        fixed_time=options.fixed_time,
        delay=options.delay,
        time_to_live=options.time_to_live,
        expires_at=options.expires_at,
    )


def _summary(done: Relayed) -> str:
    return (
        f"{done.sent:,} messages sent, {done.late:,} of them late arrivals; "
        f"{done.refused:,} refused"
    )


JOB = Job("relay_outbox", DESCRIPTION, add_arguments, relay)

if __name__ == "__main__":
    run_job("relay_outbox")
