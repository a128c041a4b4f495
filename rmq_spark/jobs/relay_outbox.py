"""The job ``relay_outbox``: relay a transactional outbox to topics."""

import argparse
import os
from datetime import timedelta

from rmq_spark.client.broker import Broker
from rmq_spark.client.messages import Message
from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import Ending, Job, add_options, add_parsed, login
from rmq_spark.options import HORIZON, INTERVAL, KEEP, LIMIT, VALUES
from rmq_spark.outbox.outbox import Outbox
from rmq_spark.redis.server import shared_server
from rmq_spark.spark.options import SinkOptions, parse_sink_options
from rmq_spark.sql.database import EXCEPTIONS_SUFFIX

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
        help=f"the exceptions table (default: the message table, followed by {EXCEPTIONS_SUFFIX})",
    )
    parser.add_argument(
        "--create-tables", action="store_true", help="create the message table if it does not exist"
    )
    parser.add_argument("--topic", help="the topic of rows whose column topic is null or missing")
    add_options(
        parser,
        ["-o", "--option"],
        "an option of Redis, of a new topic, or a value that messages lack, such as redis.url, "
        "topicType or timeRange; repeatable",
    )
    add_parsed(parser, HORIZON, "DURATION")
    add_parsed(parser, LIMIT, "NUMBER")
    parser.add_argument(
        "--tracked",
        action="store_true",
        help="add the header rmq-outbox-id, by which consumers write back the result of a message",
    )
    parser.add_argument(
        "--ordered",
        action="store_true",
        help="send a message only after the end of all transactions that began to write before its "
        "own (PostgreSQL)",
    )
    add_parsed(parser, KEEP, "DURATION")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--once", action="store_true", help="end when all messages that are due are sent"
    )
    add_parsed(ends, INTERVAL, "DURATION")


def relay(given: argparse.Namespace) -> str:
    outbox = _outbox(given)
    topic = {} if given.topic is None else {"topic": given.topic}
    options = parse_sink_options({**topic, **given.option})
    broker = Broker(shared_server(options.connection), key_prefix=options.key_prefix)
    if options.topic is not None:
        # If the options say how, create it before its first message, so that its readers can start.
        broker.define(options.topic, options.topic_type, options.slot_amount, **options.settings)
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
        ordered=given.ordered,
        keep=None if given.keep is None else timedelta(milliseconds=given.keep),
    )
    with Ending(relaying.stop):
        if given.once:
            relaying.run_once()
        else:
            relaying.run()
    done = relaying.total
    deleted = "" if given.keep is None else f"; {relaying.deleted:,} old ones deleted"
    return f"{done.sent:,} messages sent, {done.refused:,} refused{deleted}"


def _outbox(given: argparse.Namespace) -> Outbox:
    if not given.url:
        raise InvalidOption("An outbox needs --url, or RMQ_JDBC_URL: the database.")
    return Outbox(given.url, table=given.table, exceptions=given.exceptions, **login())


def _defaults(options: SinkOptions) -> Message:
    names = ("slot_basis", *VALUES, "time_to_live", "expires_at")
    return Message(**{name: getattr(options, name) for name in names})


JOBS = (Job("relay_outbox", DESCRIPTION, add_arguments, relay, needs_spark=False),)
