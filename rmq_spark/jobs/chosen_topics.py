"""The choice of topics and connection, for jobs that work on several topics."""

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
    """Add --topics and --option, the options of the connection, to a parser."""
    parser.add_argument(
        "--topics",
        type=_pattern,
        default=".*",
        metavar="PATTERN",
        help="a regular expression that must match whole names (default: all topics)",
    )
    add_options(
        parser,
        *("-o", "--option"),
        "an option of the connection, such as redis.url or keyPrefix; repeatable. Set an address "
        "that holds a password with RMQ_REDIS_URL, which the list of processes does not show",
    )


@contextmanager
def broker_of(given: argparse.Namespace) -> Iterator[Broker]:
    """Open the broker that the options name, and close it at the end.

    Raises InvalidOption, ServerError.
    """
    values = CONNECTION.parse(given.option)
    broker = Broker(Server(connection_of(values)), key_prefix=values[KEY_PREFIX])
    try:
        yield broker
    finally:
        broker.close()


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises ArgumentTypeError if it is not one."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: {error}. Accepted: a regular expression, such as Orders.*"
        ) from None
