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

A relay that is killed leaves an open round, and whoever comes next goes on with it: what is not
sealed is staged again, what is sealed is published to its end. A message that is ``sending`` is
never changed by the service, so both hold the same messages. All transactions compare the numbers
of the round before they set them. So two relays can do no harm to each other, although a lock lets
only one work.
"""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rmq_spark.client.broker import Broker
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.messages import Message, Outgoing, outgoing
from rmq_spark.client.queue import Queue
from rmq_spark.client.staging import Staging
from rmq_spark.errors import (
    CheckpointRefused,
    InvalidMessage,
    InvalidOption,
    OutboxMisused,
    UnknownTopic,
)
from rmq_spark.outbox.databases.database import Connection, Database
from rmq_spark.outbox.exceptions import Refused, insert_exceptions
from rmq_spark.outbox.rows import Row, Rows
from rmq_spark.outbox.tables import Layout, Tables, layout_of
from rmq_spark.protocol.sealing import Manifest
from rmq_spark.protocol.stages import StageName

_NOTHING_SENT = " Nothing was sent."


@dataclass(frozen=True)
class Round:
    """The result of a round, or the sum of several.

    late: the number of sent messages that were due before the time up to which the rounds before
    had sent all. full: whether the round reached its limit, so that there may be more messages.
    """

    sent: int = 0
    late: int = 0
    refused: int = 0
    full: bool = False

    def __add__(self, other: "Round") -> "Round":
        sent, late = self.sent + other.sent, self.late + other.late
        return Round(sent, late, self.refused + other.refused, other.full)


@dataclass
class _Staged:
    """What was staged of a round, and what is refused."""

    manifest: Manifest
    refused: list[tuple[Row, str]] = field(default_factory=list)


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
        self._broker = broker
        self._database = database
        self._connection = connection
        self._tables = tables
        with database.errors(), connection.transaction():
            self._layout: Layout = layout_of(database, connection, tables)
            self.name = self._name()
        self._rows = Rows(database, tables, self._layout, tracked=tracked)
        self._sink = StagedSink(broker, self.name)
        self._topic = topic
        self._defaults = defaults
        self._horizon_ms = horizon_ms
        self._limit = limit
        self._may_be_open = True  # a round that another relay has begun

    def round(self) -> Round:
        """Relay messages up to the limit. Raises RmqError; the round then stays open.

        Begins a round only if there is a message to send. Otherwise it costs one query.
        """
        with self._database.errors():
            return self._round()

    def _round(self) -> Round:
        until_ms = int(time.time() * 1000) + self._horizon_ms
        if not (self._may_be_open or self._has_new(until_ms)):
            return Round()
        begun = self._begin(until_ms)
        if begun is None:
            self._may_be_open = False
            return Round()
        self._may_be_open = True
        number, since_ms = begun
        last = self._sink.last()
        if last.batch > number:
            return self._overtaken(number)
        if last.batch == number:
            return self._finish_sealed(number, since_ms)
        return self._send(number, since_ms, until_ms)

    # -- begin

    def _has_new(self, until_ms: int) -> bool:
        """Check whether there is a message to send."""
        messages = self._tables.messages
        with self._connection.transaction():
            return any(
                self._connection.query(f"SELECT 1 FROM {messages} WHERE {condition} LIMIT 1")
                for condition, _ in self._wanted(until_ms)
            )

    def _wanted(self, until_ms: int) -> list[tuple[str, str]]:
        """Return conditions for the messages to send, and the order of each.

        Two of them, so that an index finds the rows of each in its order.
        """
        if not self._layout.timed:
            return [("state = 'new'", "id")]
        until = str(until_ms)
        if "fixed_time" not in self._layout.whole_times:
            until = self._database.time_of(until)
        return [
            ("state = 'new' AND fixed_time IS NULL", "id"),
            (f"state = 'new' AND fixed_time < {until}", "fixed_time"),
        ]

    def _begin(self, until_ms: int) -> tuple[int, int] | None:
        """Begin a round, or take up the open one. Return its number, and since when it sends.

        Returns None if there is nothing to send.
        """
        relay = self._tables.relay
        with self._connection.transaction():
            begins = self._connection.run(
                f"UPDATE {relay} SET rounds = rounds + 1 WHERE rounds = done"
            )
            if begins and not self._mark(until_ms):
                self._connection.roll_back()
                return None
            ((number, since_ms),) = self._connection.query(
                f"SELECT rounds, sent_until_ms FROM {relay}"
            )
        return int(number), int(since_ms)

    def _mark(self, until_ms: int) -> int:
        """Mark messages as sending, the earliest first. Return how many."""
        marked = 0
        for condition, order in self._wanted(until_ms):
            if marked < self._limit:
                left = self._limit - marked
                marked += self._connection.run(
                    self._database.begins(condition, order, left, self._tables.messages)
                )
        return marked

    # -- send

    def _send(self, number: int, since_ms: int, until_ms: int) -> Round:
        """Stage, publish and finish a round that is not sealed."""
        with self._connection.transaction():
            rows = [self._rows.of(found) for found in self._connection.query(self._rows.read)]
        staged = self._stage(number, rows)
        try:
            if staged.refused and not self._refuse(number, staged.refused):
                self._sink.discard(staged.manifest)
                return Round()  # another relay has done this round
            self._sink.publish(number, staged.manifest)
        except CheckpointRefused:
            return self._overtaken(number)
        refused = {row.id for row, _ in staged.refused}
        times = [
            row.message.fixed_time
            for row in rows
            if row.id not in refused and isinstance(row.message.fixed_time, int)
        ]
        full = len(rows) >= self._limit
        sent_until_ms = max(since_ms, max(times, default=0) if full else until_ms)
        if not self._finish(number, sent_until_ms, len(rows) - len(refused)):
            return Round()
        late = sum(at_ms < since_ms for at_ms in times)
        return Round(len(rows) - len(refused), late, len(refused), full)

    def _stage(self, number: int, rows: Iterable[Row]) -> _Staged:
        """Stage the messages of a round that their topics take."""
        name = str(StageName(self.name, number, 0, uuid.uuid4().hex))
        by_topic: dict[str | None, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row.topic or self._topic, []).append(row)
        held: dict[str, dict[int, int]] = {}
        staged = _Staged(Manifest({}))
        try:
            for topic, of_topic in by_topic.items():
                queue, reason = self._queue(topic)
                if queue is None:
                    staged.refused += [(row, reason) for row in of_topic]
                    continue
                pairs, bodies = self._checked(queue, of_topic, staged.refused)
                of_slots = held.setdefault(queue.definition.name, dict.fromkeys(pairs, 0))
                staging = Staging(queue.server, queue.definition, queue.key_prefix)
                staging.stage(name, pairs, of_slots, bodies)
        finally:
            messages = sum(sum(slots.values()) for slots in held.values())
            staged.manifest = Manifest({name: held} if held else {}, messages)
        return staged

    def _queue(self, topic: str | None) -> tuple[Queue | None, str]:
        """Return the queue of a topic, or why there is none."""
        if topic is None:
            return None, "topic is null, and the relay names none."
        try:
            return self._broker.queue(topic), ""
        except (UnknownTopic, InvalidOption) as error:
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
                    refused.append((row, str(error).removesuffix(_NOTHING_SENT)))
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
        with self._connection.transaction():
            if not self._connection.run(
                f"UPDATE {relay} SET refused = refused + %s WHERE rounds = %s AND done = %s",
                [len(refused), number, number - 1],
            ):
                return False
            self._connection.run_each(
                f"UPDATE {messages} SET state = 'refused' WHERE id = %s AND state = 'sending'",
                [[row.id] for row, _ in refused],
            )
            insert_exceptions(
                self._connection,
                self._tables.exceptions,
                [
                    Refused(
                        f"{messages} id {row.id}",
                        row.topic or self._topic,
                        row.message.content,
                        reason,
                    )
                    for row, reason in refused
                ],
            )
        return True

    def _finish(self, number: int, sent_until_ms: int, sent: int) -> bool:
        """Mark the messages of a round as sent. Return False if another relay has done it."""
        sent_at = ", sent_at = CURRENT_TIMESTAMP" if self._layout.marked else ""
        with self._connection.transaction():
            if not self._connection.run(
                f"UPDATE {self._tables.relay} SET done = rounds, sent = sent + %s, "
                "sent_until_ms = %s WHERE rounds = %s AND done = %s",
                [sent, sent_until_ms, number, number - 1],
            ):
                return False
            self._connection.run(
                f"UPDATE {self._tables.messages} SET state = 'sent'{sent_at} "
                "WHERE state = 'sending'"
            )
        return True

    def _finish_sealed(self, number: int, since_ms: int) -> Round:
        """Publish and finish a round that a relay sealed before it ended."""
        try:
            self._sink.resume(number, Manifest({}))
        except CheckpointRefused:
            return self._overtaken(number)
        sent = self._sink.last().messages or 0
        return Round(sent) if self._finish(number, since_ms, sent) else Round()

    # -- who goes on

    def _overtaken(self, number: int) -> Round:
        """Return nothing if another relay has done the round. Raises OutboxMisused otherwise."""
        with self._connection.transaction():
            ((done,),) = self._connection.query(f"SELECT done FROM {self._tables.relay}")
        if int(done) >= number:
            return Round()
        raise self._restored(self._sink.last().batch, number)

    def _restored(self, published: int, number: int) -> OutboxMisused:
        relay, messages = self._tables.relay, self._tables.messages
        return OutboxMisused(
            f"Redis has published round {published} of the outbox {messages}, and the table "
            f"{relay} is at round {number}: the database was restored from a backup. Messages that "
            f"it shows as new or sending may have been sent. To send them again: UPDATE {relay} "
            f"SET rounds = {published}, done = {published}; UPDATE {messages} SET state = 'new' "
            "WHERE state = 'sending'."
        )

    def _name(self) -> str:
        """Return the name of this outbox in Redis."""
        found = self._connection.query(f"SELECT name FROM {self._tables.relay}")
        if len(found) != 1:
            raise OutboxMisused(
                f"{self._tables.relay} has {len(found)} rows instead of the one that keeps the "
                "progress of the relay. If it is empty, drop it: the next start creates it."
            )
        return str(found[0][0])
