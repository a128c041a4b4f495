"""Rounds of a relay, which brings the messages of an outbox into topics, each exactly once.

A service inserts a row and its message in one transaction; the message's state is ``new``. A round
has a number, and is the batch of that number of an exactly-once sink::

    begin     one transaction: note that round n has begun; new -> sending for messages that are
              due, the earliest first, up to a limit
    stage     the messages are in Redis, where no consumer sees them
    refuse    one transaction: sending -> refused for messages that their topic cannot take, with
              a row in the exceptions table
    publish   batch n is sealed, then published: a batch that is sealed is never staged again
    finish    one transaction: note that round n is done; sending -> sent

A relay that is killed leaves an open round, and the next relay continues it: what is not
sealed is staged again, what is sealed is published to its end. A message that is ``sending`` is
never changed by the service, so both hold the same messages. All transactions compare the numbers
of the round before they set them. So two relays can do no harm to each other, although a lock lets
only one work.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from rmq_spark.client.broker import Broker
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.messages import Message
from rmq_spark.errors import (
    CheckpointRefused,
    OutboxMisused,
)
from rmq_spark.outbox.databases.sql_database import Connection, Database, ids_not_unique
from rmq_spark.outbox.exceptions import Refused, insert_exceptions, shown
from rmq_spark.outbox.round_stages import RoundStages
from rmq_spark.outbox.rows import Row, Rows
from rmq_spark.outbox.strayed import forgotten_round, restored_database, unknown_round
from rmq_spark.outbox.tables import Layout, Tables, layout_of
from rmq_spark.protocol.sealing import Manifest

# Times up to this one mean: at once.
_NOW_MS = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Relayed:
    """The result of a round, or the sum of several.

    late: the number of sent messages that were due before the time up to which the rounds before
    had sent all. more: whether there may be more messages that are due.
    """

    sent: int = 0
    late: int = 0
    refused: int = 0
    more: bool = False

    def __add__(self, other: "Relayed") -> "Relayed":
        sent, late = self.sent + other.sent, self.late + other.late
        return Relayed(sent, late, self.refused + other.refused, other.more)


@dataclass(frozen=True)
class _Begun:
    """A round that has begun.

    since_ms: the rounds before have sent all that was due by then. taken: the rows of the round;
    empty if another relay began it. all_due: whether the round holds all messages that are due; it
    may be unknown.
    """

    number: int
    since_ms: int
    taken: list[tuple[Any, ...]]
    all_due: bool


class Rounds:
    """The rounds of one outbox, on a connection of its own.

    defaults: the values that messages lack. horizon_ms: how long before its due time a message is
    sent; a message without a time is due at once. limit: the largest number of messages in a round.
    tracked: whether messages get a header that names their row. Raises OutboxError.
    """

    def __init__(
        self,
        broker: Broker,
        database: Database,
        connection: Connection,
        tables: Tables,
        topic: str | None,
        defaults: Message,
        horizon_ms: int,
        limit: int,
        *,
        tracked: bool = False,
    ) -> None:
        self._database = database
        self._connection = connection
        self._tables = tables
        with database.errors(), connection.transaction():
            self._layout: Layout = layout_of(database, connection, tables)
            self.name = self._name()
        self._rows = Rows(database, tables, self._layout, tracked=tracked)
        # An outbox that rests for months must find how far it was.
        self._sink = StagedSink(broker, self.name, forget_ms=0)
        self._stages = RoundStages(broker, self._sink, self.name, topic, defaults)
        self._topic = topic
        self._horizon_ms = horizon_ms
        self._limit = limit
        self._ended_now = ", sent_at = CURRENT_TIMESTAMP" if self._layout.marked else ""
        self._may_be_open = True  # a round that another relay has begun

    def round(self) -> Relayed:
        """Relay messages up to the limit. Raises RmqError; the round then stays open.

        Begins a round only if there is a message to send. Otherwise it costs one query.
        """
        with self._database.errors():
            return self._round()

    def _round(self) -> Relayed:
        until_ms = int(time.time() * 1000) + self._horizon_ms
        if not (self._has_new(until_ms) or self._may_be_open):
            return Relayed()
        last = self._sink.last()
        begun = self._begin(until_ms, last.batch)
        if begun is None:
            self._may_be_open = False
            return Relayed()
        self._may_be_open = True
        if last.batch > begun.number:
            return self._overtaken(begun.number)
        if last.batch == begun.number:
            return self._finish_sealed(begun)
        if not begun.taken and max(last.batch, 0) < begun.number - 1:
            raise unknown_round(self._tables, last.batch, begun.number)
        return self._send(begun, until_ms)

    # -- begin

    def _has_new(self, until_ms: int) -> bool:
        """Check whether there is a message to send."""
        messages = self._tables.messages
        with self._connection.transaction():
            for condition, order in self._wanted(until_ms):
                found = self._connection.query(
                    f"SELECT id FROM {messages} WHERE {condition} ORDER BY {order} LIMIT 1"
                )
                if found == [(None,)]:
                    raise OutboxMisused(f"{messages} has a row whose id is null. Give it one.")
                if found:
                    return True
        return False

    def _wanted(self, until_ms: int) -> list[tuple[str, str]]:
        """Return conditions for the messages to send, and the order of each.

        Two of them, so that an index finds the rows of each in its order.
        """
        if not self._layout.timed:
            return [("state = 'new'", "id")]
        until = str(until_ms)
        if "fixed_time" not in self._layout.whole_times:
            until = self._database.time_of(str(min(until_ms, self._database.times_ms[1])))
        return [
            ("state = 'new' AND fixed_time IS NULL", "id"),
            (f"state = 'new' AND fixed_time < {until}", "fixed_time"),
        ]

    def _begin(self, until_ms: int, published: int) -> _Begun | None:
        """Begin a round after those published, or take up the open one. None: nothing to send."""
        relay = self._tables.relay
        with self._connection.transaction():
            begins = self._connection.run(
                f"UPDATE {relay} SET rounds = rounds + 1 WHERE rounds = done"
            )
            if begins:
                self._check_none_is_sending()
            taken = self._take(until_ms) if begins else []
            if begins and not taken:
                self._connection.roll_back()
                return None
            ((number, since_ms),) = self._connection.query(
                f"SELECT rounds, sent_until_ms FROM {relay}"
            )
            if begins and published >= number:
                raise restored_database(self._tables, published, number)
        return _Begun(int(number), int(since_ms), taken, all_due=0 < len(taken) < self._limit)

    def _check_none_is_sending(self) -> None:
        """Raise OutboxMisused for a message that no open round holds."""
        messages = self._tables.messages
        if self._connection.query(f"SELECT 1 FROM {messages} WHERE state = 'sending' LIMIT 1"):
            raise forgotten_round(self._tables)

    def _take(self, until_ms: int) -> list[tuple[Any, ...]]:
        """Mark messages as sending, the earliest first. Return their rows."""
        rows: list[tuple[Any, ...]] = []
        for condition, order in self._wanted(until_ms):
            if len(rows) < self._limit:
                rows += self._database.take(
                    *(self._connection, self._tables.messages, self._rows.columns, condition),
                    f"ORDER BY {order} LIMIT {self._limit - len(rows)}",
                )
        ids = {row[0] for row in rows}
        if None in ids or len(ids) < len(rows):
            raise ids_not_unique(self._tables.messages)
        return rows

    def _taken(self) -> list[tuple[Any, ...]]:
        """Return the rows of a round that another relay began."""
        with self._connection.transaction():
            return self._connection.query(
                f"SELECT {self._rows.columns} FROM {self._tables.messages} WHERE state = 'sending'"
            )

    # -- send

    def _send(self, begun: _Begun, until_ms: int) -> Relayed:
        """Stage, publish and finish a round that is not sealed."""
        number, since_ms = begun.number, begun.since_ms
        # In the order of their ids, so that of equal keys or contents the last one counts.
        found = sorted(begun.taken or self._taken(), key=itemgetter(0))
        rows = [self._rows.of(row) for row in found]
        staged = self._stages.stage(number, rows, is_taken_up=not begun.taken)
        try:
            if staged.refused and not self._refuse(number, staged.refused):
                self._sink.discard(staged.manifest)
                return Relayed(more=True)  # another relay has done this round
            self._sink.publish(number, staged.manifest)
        except CheckpointRefused:
            return self._overtaken(number)
        refused = {row.id for row, _ in staged.refused}
        times = [
            row.message.fixed_time
            for row in rows
            if row.id not in refused and isinstance(row.message.fixed_time, int)
        ]
        sent_until_ms = max(since_ms, until_ms if begun.all_due else max(times, default=0))
        if not self._finish(number, sent_until_ms, len(rows) - len(refused)):
            return Relayed(more=True)
        late = sum(_NOW_MS < at_ms < since_ms for at_ms in times)
        return Relayed(len(rows) - len(refused), late, len(refused), more=not begun.all_due)

    # -- finish

    def _refuse(self, number: int, refused: Sequence[tuple[Row, str]]) -> bool:
        """Mark messages as refused. Return False if another relay has done the round."""
        messages, relay = self._tables.messages, self._tables.relay
        _log.warning(
            "rmq: outbox: %d messages are refused, see the table %s. The first: %s",
            *(len(refused), self._tables.exceptions, refused[0][1]),
        )
        with self._connection.transaction():
            if not self._connection.run(
                f"UPDATE {relay} SET refused = refused + %s WHERE rounds = %s AND done = %s",
                [len(refused), number, number - 1],
            ):
                return False
            self._connection.run_each(
                f"UPDATE {messages} SET state = 'refused'{self._ended_now} "
                "WHERE id = %s AND state = 'sending'",
                [[row.id] for row, _ in refused],
            )
            insert_exceptions(
                self._connection,
                self._tables.exceptions,
                [
                    Refused(
                        *(f"{messages} id {row.id}", row.topic or self._topic),
                        *(shown(row.message.content), reason),
                    )
                    for row, reason in refused
                ],
            )
        return True

    def _finish(self, number: int, sent_until_ms: int, sent: int) -> bool:
        """Mark the messages of a round as sent. Return False if another relay has done it."""
        with self._connection.transaction():
            if not self._connection.run(
                f"UPDATE {self._tables.relay} SET done = rounds, sent = sent + %s, "
                "sent_until_ms = %s WHERE rounds = %s AND done = %s",
                [sent, sent_until_ms, number, number - 1],
            ):
                return False
            self._connection.run(
                f"UPDATE {self._tables.messages} SET state = 'sent'{self._ended_now} "
                "WHERE state = 'sending'"
            )
        return True

    def _finish_sealed(self, begun: _Begun) -> Relayed:
        """Publish and finish a round that a relay sealed before it ended."""
        try:
            self._sink.resume(begun.number, Manifest({}))
        except CheckpointRefused:
            return self._overtaken(begun.number)
        sent = self._sink.last().messages or 0
        finished = self._finish(begun.number, begun.since_ms, sent)
        return Relayed(sent if finished else 0, more=True)

    # -- who goes on

    def _overtaken(self, number: int) -> Relayed:
        """Return nothing if another relay has done the round. Raises OutboxMisused otherwise."""
        with self._connection.transaction():
            ((done,),) = self._connection.query(f"SELECT done FROM {self._tables.relay}")
        if int(done) >= number:
            return Relayed(more=True)
        raise restored_database(self._tables, self._sink.last().batch, number)

    def _name(self) -> str:
        """Return the name of this outbox in Redis."""
        found = self._connection.query(f"SELECT name FROM {self._tables.relay}")
        if len(found) != 1:
            raise OutboxMisused(
                f"{self._tables.relay} has {len(found)} rows instead of the one that keeps the "
                "progress of the relay. Delete the others."
            )
        return str(found[0][0])
