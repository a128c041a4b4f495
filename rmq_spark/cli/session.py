"""The session of a command: its connection options, its broker, and the signals that end it."""

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
from rmq_spark.options.ensemble_options import ZOOKEEPER
from rmq_spark.options.option import Values
from rmq_spark.repeated_signals import RepeatedSignals
from rmq_spark.transport.connection import connection_of
from rmq_spark.transport.server import Server

# A command retries Redis for a shorter time than a query, because a person waits for it.
PATIENCE_S = 2.0


@dataclass
class Session:
    """The connection of a command.

    options: connection options, with the names of Spark options. flags: by such a name, the flag
    that gave the option, for errors.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)

    def server(self, patience_s: float | None = PATIENCE_S) -> Server:
        """Connect to Redis. Raises ServerError, InvalidOption.

        patience_s: how long to retry a broken connection; None for as long as a program does.
        """
        return Server(connection_of(self._values), patience_s)

    def broker(self, patience_s: float | None = PATIENCE_S) -> Broker:
        """Connect to Redis and return a broker. Arguments and errors as for server."""
        return Broker(self.server(patience_s), key_prefix=self._values[KEY_PREFIX])

    @property
    def address(self) -> str:
        """The address of Redis, without credentials. Raises InvalidOption."""
        return connection_of(self._values).address

    @property
    def zookeeper(self) -> dict[str, str]:
        """The options of ZooKeeper, without their prefix."""
        items = self.options.items()
        return {
            name.removeprefix(ZOOKEEPER): text for name, text in items if name.startswith(ZOOKEEPER)
        }

    @property
    def _values(self) -> Values:
        options = {n: text for n, text in self.options.items() if not n.startswith(ZOOKEEPER)}
        return CONNECTION.parse(options, lambda name: self.flags.get(name, name))


def parse_options(given: list[str]) -> dict[str, str]:
    """Parse options of the form ``name=value``, of Redis or ZooKeeper. Raises InvalidOption."""
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith((REDIS, ZOOKEEPER)):
            raise InvalidOption(
                "--option is not accepted (its value is not shown: it may be a password). "
                "Accepted: the name and the value of a connection option, such as --option "
                "redis.sentinelMaster=mymaster."
            )
        options[name] = value
    return options


@contextmanager
def flags(**of_keywords: str) -> Iterator[None]:
    """Name flags in errors of the body that begin with a keyword, such as ``group="--group"``."""
    try:
        yield
    except InvalidOption as error:
        raise error.called(of_keywords.get(error.name, error.name)) from None


def session_of(context: typer.Context) -> Session:
    """Return the session of a command, which the options before the command define."""
    return cast(Session, context.obj)


def broker_of(context: typer.Context) -> Broker:
    """Connect the broker of a command. It is closed when the command ends."""
    broker = session_of(context).broker()
    context.call_on_close(broker.close)
    return broker


@contextmanager
def ended_by_signals() -> Iterator[threading.Event]:
    """Provide an event that the first Ctrl-C or SIGTERM sets. A second one ends the program."""
    ended = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    signals = RepeatedSignals()

    def end(number: int, _: object) -> None:
        if signals.note():
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        ended.set()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a script's background job ignores Ctrl-C, for example
            signal.signal(number, end)
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
