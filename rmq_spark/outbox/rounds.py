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
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from rmq_spark.client.broker import Broker
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.messages import Message, Outgoing, fault_of, outgoing
from rmq_spark.client.queue import Queue
from rmq_spark.client.staging import Stage, manifest_of, sweep
from rmq_spark.errors import (
    CheckpointRefused,
    InvalidMessage,
    InvalidOption,
    OutboxMisused,
    ServerUnavailable,
    UnknownTopic,
)
from rmq_spark.outbox.rows import Row, Rows
from rmq_spark.outbox.tables import Layout, Tables, create_others, layout_of
from rmq_spark.protocol.staging import Manifest, StageName
from rmq_spark.sql.database import DriverConnection, Refused, ids_not_unique, insert_exceptions

# A longer content is cut: a statement with it could be too long for the database.
_SHOWN = 100_000
# How often to read Redis' clock, which says what is due.
_CLOCK_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Relayed:
    """The result of a round, or the sum of several.

    more: whether there may be more messages that are due.
    """

    sent: int = 0
    refused: int = 0
    more: bool = False

    def __add__(self, other: "Relayed") -> "Relayed":
        return Relayed(self.sent + other.sent, self.refused + other.refused, other.more)


@dataclass(frozen=True)
class _Begun:
    """A round that has begun.

    taken: the rows of the round; empty if another relay began it. all_due: whether the round holds
    all messages that are due; it may be unknown.
    """

    number: int
    taken: list[tuple[Any, ...]]
    all_due: bool


class Rounds:
    """The rounds of one outbox, on a connection of its own.

    defaults: the values that messages lack. horizon_ms: how long before its due time a message is
    sent; a message without a time is due at once. limit: the largest number of messages in a round.
    tracked: whether messages get a header that names their row. ordered: whether messages wait for
    open transactions that began to write before their own. Raises OutboxError.
    """

    def __init__(
        self,
        connection: DriverConnection,
        broker: Broker,
        tables: Tables,
        topic: str | None,
        defaults: Message,
        horizon_ms: int,
        limit: int,
        *,
        tracked: bool = False,
        ordered: bool = False,
    ) -> None:
        database = connection.database
        self._broker = broker
        self._connection = connection
        self._tables = tables
        create_others(connection, tables)
        with connection.transaction():
            self._layout: Layout = layout_of(connection, tables)
            self.name = self._name()
        self._rows = Rows(database, tables, self._layout, tracked=tracked)
        # An outbox that rests for months must find how far it was.
        self._sink = StagedSink(broker, self.name, forget_ms=0)
        self._topic = topic
        self._defaults = defaults
        self._horizon_ms = horizon_ms
        self._limit = limit
        self._new = f"state = 'new' AND {database.settled}" if ordered else "state = 'new'"
        self._ended_now = ", sent_at = CURRENT_TIMESTAMP" if self._layout.marked else ""
        self._may_be_open = True  # a round that another relay has begun
        self._read_s: float | None = None  # when Redis' clock was read last
        self._redis_ms = 0  # what it showed

    def round(self) -> Relayed:
        """Relay messages up to the limit. Raises RmqError; the round then stays open.

        Begins a round only if there is a message to send. Otherwise it costs one query.
        """
        until_ms = self._now_ms() + self._horizon_ms
        if not (self._has_new(until_ms) or self._may_be_open):
            return Relayed()
        last = self._sink.last()
        if last.batch < 0 and self._topic is not None:
            # If Redis has lost all, a round that opens now could not be continued: raise before it.
            self._broker.queue(self._topic)
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
            raise _unknown_round(self._tables, last.batch, begun.number)
        return self._send(begun)

    def _now_ms(self) -> int:
        """Return Redis' time. It is asked for seldom: a round may begin every 10 ms."""
        now_s = time.monotonic()
        if self._read_s is None or now_s > self._read_s + _CLOCK_S:
            try:
                self._redis_ms = self._broker.server.now_ms()
            except ServerUnavailable:
                if self._read_s is None:
                    raise
            else:
                self._read_s = now_s
        return self._redis_ms + int((now_s - (self._read_s or now_s)) * 1000)

    # -- begin

    def _has_new(self, until_ms: int) -> bool:
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
            return [(self._new, "id")]
        until = str(until_ms)
        if "fixed_time" not in self._layout.whole_times:
            database = self._connection.database
            until = database.time_of(str(min(until_ms, database.times_ms[1])))
        return [
            (f"{self._new} AND fixed_time IS NULL", "id"),
            (f"{self._new} AND fixed_time < {until}", "fixed_time"),
        ]

    def _begin(self, until_ms: int, published: int) -> _Begun | None:
        """Begin a round after those published, or take up the open one. None: nothing to send."""
        relay = self._tables.relay
        with self._connection.transaction():
            begins = self._connection.run(
                f"UPDATE {relay} SET rounds = rounds + 1 WHERE rounds = done"
            )
            if begins and self._connection.query(
                f"SELECT 1 FROM {self._tables.messages} WHERE state = 'sending' LIMIT 1"
            ):
                raise _forgotten_round(self._tables)
            ((number,),) = self._connection.query(f"SELECT rounds FROM {relay}")
            taken = self._take(until_ms, int(number)) if begins else []
            if begins and not taken:
                self._connection.roll_back()
                return None
            if begins and published >= number:
                raise _restored_database(self._tables, published, number)
        return _Begun(int(number), taken, all_due=0 < len(taken) < self._limit)

    def _take(self, until_ms: int, number: int) -> list[tuple[Any, ...]]:
        wanted = self._wanted(until_ms)
        if number % 2 == 0:  # in turn, so that neither kind of rows starves the other
            wanted.reverse()
        rows: list[tuple[Any, ...]] = []
        for condition, order in wanted:
            if len(rows) < self._limit:
                rows += self._connection.database.take(
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

    def _send(self, begun: _Begun) -> Relayed:
        number = begun.number
        # In the order of their ids, so that of equal keys or contents the last one counts.
        found = sorted(begun.taken or self._taken(), key=itemgetter(0))
        rows = [self._rows.of(row) for row in found]
        manifest, why_refused = self._stage(number, rows, is_taken_up=not begun.taken)
        try:
            if why_refused and not self._refuse(number, why_refused):
                self._sink.discard(manifest)
                return Relayed(more=True)  # another relay has done this round
            self._sink.publish(number, manifest)
        except CheckpointRefused:
            return self._overtaken(number)
        refused = len(why_refused)
        if not self._finish(number, len(rows) - refused):
            return Relayed(more=True)
        return Relayed(len(rows) - refused, refused, more=not begun.all_due)

    # -- stage

    def _stage(
        self, number: int, rows: Iterable[Row], *, is_taken_up: bool
    ) -> tuple[Manifest, list[tuple[Row, str]]]:
        """Stage the messages that their topics take; if that fails, delete them again.

        Return what is staged, and the rows that are refused with their reasons. is_taken_up:
        whether relays that ended may have left stages of the round. They are deleted: a full server
        has no room for several.
        """
        stage = Stage(StageName(self.name, number, 0, uuid.uuid4().hex))
        by_topic: dict[str | None, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row.topic or self._topic, []).append(row)
        refused: list[tuple[Row, str]] = []
        try:
            for topic, of_topic in by_topic.items():
                queue, reason = self._queue(topic)
                if queue is None:
                    refused += [(row, reason) for row in of_topic]
                    continue
                messages = self._checked(queue, of_topic, refused)
                if is_taken_up:
                    sweep(queue, queue.slots, self.name, number, {})
                stage.add(queue, messages)
        except Exception:
            self._sink.discard_after_error(_manifest(stage))
            raise
        return _manifest(stage), refused

    def _queue(self, topic: str | None) -> tuple[Queue | None, str]:
        if topic is None:
            return None, "topic is null, and the relay names none."
        try:
            return self._broker.queue(topic), ""
        except (UnknownTopic, InvalidOption) as error:
            if topic == self._topic:  # Redis has lost it, which is no fault of the messages
                raise
            return None, str(error)

    def _checked(
        self, queue: Queue, rows: Sequence[Row], refused: list[tuple[Row, str]]
    ) -> Outgoing:
        """Return the messages that a topic takes, by slot; add the others to refused."""
        good = [row for row in rows if row.reason is None]
        refused += [(row, row.reason) for row in rows if row.reason is not None]
        try:
            return self._outgoing(queue, good)
        except InvalidMessage:
            taken = []
            for row in good:
                try:
                    self._outgoing(queue, [row])
                except InvalidMessage as error:
                    refused.append((row, fault_of(error)))
                else:
                    taken.append(row)
        return self._outgoing(queue, taken)

    def _outgoing(self, queue: Queue, rows: Sequence[Row]) -> Outgoing:
        messages = [row.message for row in rows]
        return outgoing(messages, self._defaults, queue.definition, now_ms=queue.now_ms)

    # -- finish

    def _refuse(self, number: int, refused: Sequence[tuple[Row, str]]) -> bool:
        """Mark messages as refused. Return False if another relay has done the round."""
        messages, relay = self._tables.messages, self._tables.relay
        _log.warning(
            "rmq: outbox: messages refused: %d, see the table %s. The first: %s",
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
                        *(_shown(row.message.content), reason),
                    )
                    for row, reason in refused
                ],
            )
        return True

    def _finish(self, number: int, sent: int) -> bool:
        """Mark the messages of a round as sent. Return False if another relay has done it."""
        with self._connection.transaction():
            if not self._connection.run(
                f"UPDATE {self._tables.relay} SET done = rounds, sent = sent + %s "
                "WHERE rounds = %s AND done = %s",
                [sent, number, number - 1],
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
        finished = self._finish(begun.number, sent)
        return Relayed(sent if finished else 0, more=True)

    # -- who goes on

    def _overtaken(self, number: int) -> Relayed:
        """Return nothing if another relay has done the round. Raises OutboxMisused otherwise."""
        with self._connection.transaction():
            ((done,),) = self._connection.query(f"SELECT done FROM {self._tables.relay}")
        if int(done) >= number:
            return Relayed(more=True)
        raise _restored_database(self._tables, self._sink.last().batch, number)

    def _name(self) -> str:
        found = self._connection.query(f"SELECT name FROM {self._tables.relay}")
        if len(found) != 1:
            raise OutboxMisused(
                f"{self._tables.relay} has {len(found)} rows instead of the one that keeps the "
                "progress of the relay. Delete the others."
            )
        return str(found[0][0])


def _manifest(stage: Stage) -> Manifest:
    messages = sum(sum(slots.values()) for slots in stage.held.values())
    return manifest_of([stage] if stage.held else [], messages)


def _shown(content: bytes | str | None) -> str | None:
    """Return a content as text; bytes that are not UTF-8 in hex. Cut what is very long."""
    if not isinstance(content, bytes):
        return content and content[:_SHOWN]
    try:
        return content.decode()[:_SHOWN]
    except UnicodeDecodeError:
        return content[: _SHOWN // 2].hex()


def _restored_database(tables: Tables, published: int, number: int) -> OutboxMisused:
    return OutboxMisused(
        f"Redis has published round {published} of the outbox {tables.messages}, and the table "
        f"{tables.relay} is at round {number}: the database was restored from a backup. Messages "
        "that it shows as new or sending may have been sent. To send them again: "
        f"UPDATE {tables.relay} SET rounds = {published}, done = {published}; {_send(tables)}."
    )


def _unknown_round(tables: Tables, published: int, number: int) -> OutboxMisused:
    known = f"only round {published}" if published > 0 else "no round of it"
    return OutboxMisused(
        f"Round {number} of the outbox {tables.messages} is open, and Redis knows {known}: "
        "this is another Redis or key prefix, or Redis has lost data. The messages "
        "of the round may have been sent. To send them (again): "
        f"UPDATE {tables.relay} SET done = rounds; {_send(tables)}."
    )


def _forgotten_round(tables: Tables) -> OutboxMisused:
    return OutboxMisused(
        f"{tables.messages} has messages in the state sending, but according to {tables.relay} no "
        "round is open: that table was restored or created again, or somebody else has set the "
        f"state. They may have been sent. To send them (again): {_send(tables)}."
    )


def _send(tables: Tables) -> str:
    return f"UPDATE {tables.messages} SET state = 'new' WHERE state = 'sending'"
