"""The topics that jobs for all of them work on."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager

from rmq_spark.client.broker import Broker
from rmq_spark.jobs.job_arguments import add_options
from rmq_spark.options.connection_options import CONNECTION, KEY_PREFIX
from rmq_spark.transport.connection import connection_of
from rmq_spark.transport.server import Server


def add_topics(parser: argparse.ArgumentParser) -> None:
    """--topics, and options of the connection."""
    parser.add_argument(
        "--topics",
        type=_pattern,
        default=".*",
        metavar="PATTERN",
        help="a regular expression for whole names (default: all)",
    )
    add_options(
        parser,
        *("-o", "--option"),
        "an option of the connection, redis.* or keyPrefix; repeatable. RMQ_REDIS_URL says where "
        "Redis is, too, and there a password stays out of the list of processes",
    )


@contextmanager
def broker_of(given: argparse.Namespace) -> Iterator[Broker]:
    """The broker that the options name, closed at the end. Raises InvalidOption, ServerError."""
    values = CONNECTION.parse(given.option)
    broker = Broker(Server(connection_of(values)), key_prefix=values[KEY_PREFIX])
    try:
        yield broker
    finally:
        broker.close()


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: {error}. Accepted: a regular expression, such as Orders.*"
        ) from None
