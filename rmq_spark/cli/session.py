"""Where a command works: the options of the connection, the broker they lead to, its end."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import typer

from rmq_spark.client.broker import Broker
from rmq_spark.errors import InvalidOption
from rmq_spark.options.connection_options import CONNECTION, KEY_PREFIX, REDIS
from rmq_spark.options.option import Values
from rmq_spark.transport.connection import connection_of
from rmq_spark.transport.server import Server

# A person waits: what a query would wait out is told soon.
PATIENCE_S = 2.0


@dataclass
class Session:
    """Options of the connection, named as for Spark."""

    options: Mapping[str, str] = field(default_factory=dict)

    def server(self) -> Server:
        """A connection. Raises ServerError, InvalidOption."""
        return Server(connection_of(self._values), PATIENCE_S)

    def broker(self) -> Broker:
        """The topics there. Raises ServerError, InvalidOption."""
        return Broker(self.server(), key_prefix=self._values[KEY_PREFIX])

    @property
    def _values(self) -> Values:
        return CONNECTION.parse(self.options)


def parse_options(given: list[str]) -> dict[str, str]:
    """Options written as redis.name=value. Raises InvalidOption."""
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith(REDIS):
            raise InvalidOption(
                "--option is not accepted (it is not shown, it may be a password). Accepted: an "
                "option of the connection and its value, such as --option "
                "redis.sentinelMaster=mymaster."
            )
        options[name] = value
    return options


def session_of(context: typer.Context) -> Session:
    """What the command line said before the command."""
    return cast(Session, context.obj)


def broker_of(context: typer.Context) -> Broker:
    """The broker, closed when the command ends."""
    broker = session_of(context).broker()
    context.call_on_close(broker.close)
    return broker


@contextmanager
def ended_by_signals() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second one ends the program at once."""
    ended = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, _: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        ended.set()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # such as Ctrl-C in the background of a script
            signal.signal(number, end)
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
