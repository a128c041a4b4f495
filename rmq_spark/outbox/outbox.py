"""The outbox of a service: insert messages, relay them, and note their results."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from rmq_spark.client.broker import Broker
from rmq_spark.client.messages import Message
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.outbox.relay import Relay
from rmq_spark.outbox.rounds import Rounds
from rmq_spark.outbox.rows import DONE, ENDED, Cleaning, Rows, ids_of, mark
from rmq_spark.outbox.tables import Tables, create_messages, create_others, layout_of
from rmq_spark.protocol.claims import Delivered
from rmq_spark.sql import database_of
from rmq_spark.topics.parsing import Duration, check_amount, parse_wait_ms


class Outbox:
    """An outbox in a database, whose messages reach topics exactly once.

    ::

        outbox = Outbox("postgresql://host/shop")
        with outbox.relay(broker, topic="Orders"):
            with psycopg.connect(...) as connection:
                connection.execute("INSERT INTO orders ...")
                outbox.send(connection, [Message("...", fixed_time=0)])

    A message is sent if, and only if, the transaction that inserted it is committed. ``send`` needs
    no Redis. The relay may run in the same process, in another one, or as the job relay_outbox.
    Each call except ``send`` opens a connection of its own and closes it.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        table: str = "rmq_outbox",
        exceptions: str | None = None,
    ) -> None:
        """Name an outbox, without connecting.

        url: such as ``postgresql://host:5432/shop``, ``mariadb://host/shop`` or ``mysql://...``; a
        ``jdbc:`` in front is ignored. It may contain the user and password, which are never shown.
        table: the message table. exceptions: the exceptions table; by default named after the
        message table. Raises InvalidOption.
        """
        self._database = database_of(url, user, password)
        self._tables = Tables.named(table, exceptions, folds=self._database.folds)
        self._rows: Rows | None = None

    def __repr__(self) -> str:
        return f"Outbox({self._database.address}, {self._tables.messages})"

    def create_tables(self) -> None:
        """Create the tables that do not exist. Raises OutboxUnavailable."""
        with self._database.answering() as connection:
            create_messages(connection, self._tables)
            create_others(connection, self._tables)

    # -- services

    def send(
        self,
        connection: Any,
        messages: Iterable[Message | bytes | str],
        *,
        topic: str | None = None,
    ) -> None:
        """Insert messages within the open transaction of a psycopg or PyMySQL connection.

        A relay sends them soon after the transaction is committed. topic: None for the topic that
        the relay names. Whether a topic takes a message is checked by the relay: one that is
        refused gets a row in the exceptions table. Raises InvalidMessage for what no row can hold;
        then nothing is inserted.
        """
        if isinstance(messages, str | bytes | Message | Mapping):
            raise InvalidMessage(
                f"send takes a list of messages, not a single {type(messages).__name__}. Write "
                "send(connection, [...])."
            )
        with self._database.lent(connection) as ours:
            if self._rows is None:
                self._rows = Rows(self._database, self._tables, layout_of(ours, self._tables))
            values = [
                self._rows.values_of(_message_of(each, index), topic, index)
                for index, each in enumerate(messages)
            ]
            if values:
                with self._database.inserting(ours):
                    ours.run_each(self._rows.insert, values)
                    self._database.announce(ours, self._channel)

    def relay(
        self,
        broker: Broker,
        *,
        topic: str | None = None,
        defaults: Message | None = None,
        horizon: Duration = "10m",
        limit: int = 10_000,
        interval: Duration | None = None,
        tracked: bool = False,
        ordered: bool = False,
        keep: Duration | None = None,
    ) -> Relay:
        """Return a relay, which sends messages to topics of a broker. Call its ``run``.

        topic: of messages without one. defaults: the values that messages lack. horizon: how long
        before its due time a message is sent. limit: the most messages in a round. interval: how
        often to look for messages that nobody announced; None for what suits the database. tracked:
        add the header ``rmq-outbox-id``, by which ``mark`` finds the row of a message. ordered:
        send a message only after the end of all transactions that began to write before its own, so
        that none of theirs comes later; in PostgreSQL. keep: delete messages so long after they
        were sent, such as "30d"; None to keep them. Raises InvalidOption.
        """
        check_amount("limit", limit)
        if topic is not None:
            broker.definitions([topic])  # a mistyped one would have all messages refused
        horizon_ms = parse_wait_ms("horizon", horizon)
        if ordered and not self._database.settled:
            raise InvalidOption(
                f"ordered=True is not accepted for {self._database.address}, which does not show "
                "the order of open transactions. Accepted: False, or an outbox in PostgreSQL.",
                name="ordered",
            )
        look_s = self._database.look_s
        if interval is not None:
            look_s = max(1, parse_wait_ms("interval", interval)) / 1000
        open_rounds = partial(
            Rounds,
            broker=broker,
            tables=self._tables,
            topic=topic,
            defaults=defaults or Message(),
            horizon_ms=horizon_ms,
            limit=limit,
            tracked=tracked,
            ordered=ordered,
        )
        cleaning = None if keep is None else self._cleaning(keep)
        return Relay(self._database, self._channel, open_rounds, look_s, cleaning)

    @property
    def _channel(self) -> str:
        return self._tables.messages.lower().rpartition(".")[2]

    # -- consumers

    def mark(
        self, state: str, messages: Iterable[Delivered | int], *, unless: str | None = None
    ) -> int:
        """Note that messages are ``delivered``, ``dead`` or ``refused``. Return for how many.

        messages: as they were consumed, with the header of a tracked relay; or ids of rows. A
        message that is not in a state that is expected gets a row in the exceptions table, with
        both states. unless: leave messages in this state as they are, without such a row. You can
        repeat the call. Raises InvalidOption, OutboxUnavailable.
        """
        ids = ids_of(messages)
        with self._database.answering() as connection, connection.transaction():
            return mark(connection, self._tables, state, ids, unless)

    # -- operators

    def clean(self, older_than: Duration, states: Iterable[str] = DONE) -> int:
        """Delete messages that were sent some time ago. Return how many.

        older_than: such as "30d". states: delete only messages in these states. Raises
        InvalidOption, OutboxError.
        """
        cleaning = self._cleaning(older_than, states)
        with self._database.answering() as connection:
            while cleaning.step(connection):
                pass
        return cleaning.deleted

    def _cleaning(self, older_than: Duration, states: Iterable[str] = DONE) -> Cleaning:
        if isinstance(older_than, int):
            accepted = "a text such as '30d', or a timedelta"
            raise InvalidOption.of("older_than", older_than, accepted, "has no unit")
        older_ms = parse_wait_ms("older_than", older_than)
        wanted = tuple([states] if isinstance(states, str) else states)
        unknown = [state for state in wanted if state not in ENDED]
        if unknown:
            raise InvalidOption(
                f"states: {unknown[0]!r} is not accepted. Accepted: {', '.join(ENDED)}.",
                name="states",
            )
        return Cleaning(self._tables, older_ms, wanted)


def _message_of(given: Message | bytes | str, index: int) -> Message:
    message = given if isinstance(given, Message) else Message(given)
    if not isinstance(message.content, str | bytes | None) or given is None:
        raise InvalidMessage(
            f"Message {index} is {given!r:.100}. Accepted: a Message, text or bytes. Nothing was "
            "inserted."
        )
    return message
