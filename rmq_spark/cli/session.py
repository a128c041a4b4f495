"""The session of a command: its connection options, its broker, and the signals that end it."""

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import typer

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption
from rmq_spark.options import CONNECTION, CREDENTIAL_PROVIDER, KEY_PREFIX, REDIS, ZOOKEEPER
from rmq_spark.process import code_of_signal, stopped_by_signals
from rmq_spark.redis.connection import ConnectionOptions, connection_of
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import parse_group
from rmq_spark.topics.parsing import Values

# A command retries Redis for a shorter time than a query, because a person waits for it.
PATIENCE_S = 2.0
# How long the wait of a command may go on after a signal.
_SLICE_S = 0.1


@dataclass
class Session:
    """The connection of a command.

    options: connection options, with the names of Spark options. flags: by such a name, the flag
    that gave the option, for errors.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)

    def server(self, patience_s: float | None = PATIENCE_S) -> Server:
        """Connect. patience_s: how long to retry; None for as long as a program does."""
        return Server(self.connection, patience_s)

    def broker(self, patience_s: float | None = PATIENCE_S) -> Broker:
        return Broker(self.server(patience_s), key_prefix=self._values[KEY_PREFIX])

    @property
    def connection(self) -> ConnectionOptions:
        return connection_of(self._values)

    @property
    def zookeeper(self) -> dict[str, str]:
        items = self.options.items()
        return {
            name.removeprefix(ZOOKEEPER): text for name, text in items if name.startswith(ZOOKEEPER)
        }

    @property
    def _values(self) -> Values:
        options = {n: text for n, text in self.options.items() if not n.startswith(ZOOKEEPER)}
        return CONNECTION.parse(options, lambda name: self.flags.get(name, name))


def parse_options(given: list[str]) -> dict[str, str]:
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
    if CREDENTIAL_PROVIDER.name in options:
        search_here()
    return options


def search_here() -> None:
    """Let imports find the modules in the current folder, as those of ``python -m`` do."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


@contextmanager
def flags(**of_keywords: str) -> Iterator[None]:
    """Name flags in errors of the body that begin with a keyword, such as ``group="--group"``."""
    try:
        yield
    except InvalidOption as error:
        raise error.called(of_keywords.get(error.name, error.name)) from None


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Import modules in the block that only an extra brings. what: what needs them."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"{what} needs {error.name}: pip install 'rmq-spark[{extra}]'"
        ) from None


def session_of(context: typer.Context) -> Session:
    return cast(Session, context.obj)


def broker_of(context: typer.Context) -> Broker:
    broker = session_of(context).broker()
    context.call_on_close(broker.close)
    return broker


def queue_of(context: typer.Context, topic: str, group: str) -> Queue:
    return broker_of(context).queue(topic, group=parse_group(group))


class Ended:
    """Whether a signal has ended the command. number: the signal's; 0 until one comes.

    It has no lock: the handler of a signal could wait for one that the thread has which it
    interrupts.
    """

    number = 0

    def end(self, number: int) -> None:
        self.number = number

    def is_set(self) -> bool:
        return self.number != 0

    def sleep(self, seconds: float = math.inf) -> None:
        """Wait for so long, or until a signal comes."""
        end_s = time.monotonic() + seconds
        while not self.is_set() and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _SLICE_S))

    @property
    def exit_code(self) -> int:
        return code_of_signal(self.number)


@contextmanager
def ended_by_signals() -> Iterator[Ended]:
    """Provide an event that the first Ctrl-C or SIGTERM sets. A second one ends the program."""
    ended = Ended()
    with stopped_by_signals(ended.end, unless_ignored=True):
        yield ended


def wait_for(ended: Ended) -> None:
    """Wait for the event of ``ended_by_signals``, after all that was printed is shown."""
    sys.stdout.flush()
    ended.sleep()
