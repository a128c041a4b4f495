"""Rounds of a relay, which sends the messages of a transactional outbox to topics.

A service inserts a row and its message in one transaction; the message's state is ``new``. A round
of the relay is one transaction, too::

    lock the checkpoint            a second relay waits here until this one is done or dead
    read new and due messages      the earliest first, up to a limit
    new -> sent                    compare-and-set: a message that was recalled is skipped
    send                           to Redis
    new -> refused                 messages that the topic cannot take; they get an exceptions row
    move the checkpoint, commit

A relay that is killed before the commit has changed nothing in the database: the messages are still
new, and the next round sends them again. The relay finds a message by its state. A number or time
would not do, because another transaction can still commit an earlier one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType

from rmq_spark.jobs.databases.database import Database
from rmq_spark.jobs.databases.jdbc_connection import Connection
from rmq_spark.jobs.outbox.exceptions_table import Refused, insert_exceptions
from rmq_spark.jobs.outbox.header_texts import parsed_headers
from rmq_spark.jobs.outbox.tables import SENT, OutboxTables, layout_of
from rmq_spark.jobs.program import JobFailed
from rmq_spark.options.sink_options import SINK
from rmq_spark.options.topic_options import OF_A_NEW_TOPIC
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.row_bodies import BODY_COLUMNS
from rmq_spark.spark.sink.target_topics import SinkTopics
from rmq_spark.spark.sink.validation import REASON, with_refusals
from rmq_spark.transport.shared_servers import shared_server

_DUE_MS, _HEADERS_REASON = "rmq_due_ms", "rmq_headers_reason"
_IDS_A_STATEMENT = 1000


@dataclass(frozen=True)
class Round:
    """The result of a round, or the sum of several.

    late: the number of sent messages that were due before the checkpoint of the last round. full:
    whether the round reached its limit, so that there may be more messages.
    """

    sent: int = 0
    late: int = 0
    refused: int = 0
    full: bool = False

    def __add__(self, other: "Round") -> "Round":
        sent, late = self.sent + other.sent, self.late + other.late
        return Round(sent, late, self.refused + other.refused, other.full)


class OutboxRelay:
    """The relay of one message table, on a connection of its own.

    sink: options of the sink. horizon_ms: how long before its due time a message is sent; a message
    without a time is due at once. limit: the largest number of messages in a round. Raises
    JobFailed, InvalidOption.
    """

    def __init__(
        self,
        database: Database,
        connection: Connection,
        tables: OutboxTables,
        sink: dict[str, str],
        horizon_ms: int,
        limit: int,
    ) -> None:
        self._database = database
        self._connection = connection
        self._tables = tables
        self._layout = layout_of(connection, tables)
        self._horizon_ms = horizon_ms
        self._limit = limit
        self._sink = _with_topic(sink)
        self._options = parse_sink_options(self._sink)

    def round(self) -> Round:
        """Relay messages up to the limit. Raises the errors of a write, after a rollback."""
        until_ms = int(time.time() * 1000) + self._horizon_ms
        # Most rounds find nothing, and cost only this query.
        if not self._connection.query(self._wanted("id", until_ms, 1)):
            return Round()
        with self._connection.transaction():
            since_ms = self._lock()
            # Exactly the rows that are marked must be sent. If an executor that keeps some of them
            # dies, Spark fails instead of reading other rows.
            rows = self._read(until_ms).localCheckpoint()
            is_good = sql.col(REASON).isNull()
            has = [sql.col(name).isNotNull().alias(name) for name in self._body_columns()]
            found = rows.select("id", _DUE_MS, is_good.alias("good"), *has).collect()
            recalled = self._mark([row.id for row in found])
            if recalled:
                rows = rows.where(~sql.col("id").isin(recalled))
            ours = [row for row in found if row.id not in recalled]
            good = [row for row in ours if row.good]
            sent_ms = [row[_DUE_MS] or until_ms for row in good]
            if good:
                unused = [n for n in self._body_columns() if not any(row[n] for row in good)]
                self._send(rows.where(is_good).drop(*unused))
            if len(sent_ms) < len(ours):
                self._refuse(rows.where(~is_good))
            done = Round(
                sent=len(sent_ms),
                late=sum(due_ms < since_ms for due_ms in sent_ms),
                refused=len(ours) - len(sent_ms),
                full=len(found) >= self._limit,
            )
            latest_ms = max((row[_DUE_MS] or 0 for row in found), default=0)
            self._move(max(since_ms, latest_ms if done.full else until_ms), done)
        return done

    def _wanted(self, columns: str, until_ms: int, amount: int) -> str:
        """Return the query for new messages due before ``until_ms``, the earliest first."""
        due, order = "", "id"
        if self._layout.timed:
            due = f" AND (fixed_time IS NULL OR fixed_time < {self._until_sql(until_ms)})"
            order = f"{self._database.dialect.nulls_first('fixed_time')}, id"
        return (
            f"SELECT {columns} FROM {self._tables.messages} WHERE state = 'new'{due} "
            f"{self._database.dialect.first_rows(order, amount)}"
        )

    def _until_sql(self, until_ms: int) -> str:
        """Return the time before which messages are wanted, as SQL."""
        if self._layout.time_is_whole:
            return str(until_ms)
        # Only the database knows the time zone of fixed_time.
        return self._database.dialect.seconds_from_now(self._horizon_ms // 1000)

    def _lock(self) -> int:
        """Lock the checkpoint, and return its time in ms since 1970.

        Waits for other relays. Raises JobFailed if the checkpoint is not exactly one row.
        """
        table = self._tables.checkpoint
        self._connection.update(f"UPDATE {table} SET rounds = rounds + 1")
        found = self._connection.query(f"SELECT sent_until_ms FROM {table}")
        if len(found) != 1:
            raise JobFailed(
                f"{table} has {len(found)} rows instead of the one that relays lock. If it is "
                "empty, drop it: the next start creates it."
            )
        return int(found[0][0])

    def _read(self, until_ms: int) -> DataFrame:
        """Read messages with the columns of the sink, their id, due time and refusal."""
        columns = ", ".join(("id", *self._layout.sent))
        rows = (
            self._database.spark.read.format("jdbc")
            .options(**self._database.options)
            .option("query", self._wanted(columns, until_ms, self._limit))
            .load()
        )
        names = [SENT[name] for name in self._layout.sent]
        rows = rows.toDF("id", *names).withColumn("id", sql.col("id").cast("long"))
        due = sql.lit(None)
        if self._layout.timed:
            at = sql.col("fixedTime")
            due = at if self._layout.time_is_whole else sql.unix_millis(at)
        rows = rows.withColumn(_DUE_MS, due.cast("long"))
        if "headers" not in names:
            return with_refusals(rows, names, self._options)
        parsed = rows.withColumn("headers", parsed_headers(sql.col("headers")))
        rows = parsed.withColumns(
            {_HEADERS_REASON: sql.col("headers.reason"), "headers": sql.col("headers.headers")}
        )
        rows = with_refusals(rows, names, self._options)
        reason = sql.coalesce(_HEADERS_REASON, REASON)
        return rows.withColumn(REASON, reason).drop(_HEADERS_REASON)

    def _body_columns(self) -> list[str]:
        """Return the columns of the sink that give a message a body.

        A round in which they are null leaves them out, so that its messages cost no more memory.
        """
        return [SENT[name] for name in self._layout.sent if SENT[name] in BODY_COLUMNS]

    def _mark(self, ids: Sequence[int]) -> set[int]:
        """Mark messages as sent. Return the ids of those that were no longer new.

        Raises JobFailed for ids that are null or not unique.
        """
        if None in ids:
            raise JobFailed(f"{self._tables.messages} has a row whose id is null. Give it an id.")
        if len(set(ids)) < len(ids):
            raise self._not_unique()
        sent_at = ", sent_at = CURRENT_TIMESTAMP" if self._layout.marked else ""
        recalled: set[int] = set()
        for some in _in_parts(ids):
            among = f"id IN ({', '.join(map(str, some))})"
            marked = self._connection.update(
                f"UPDATE {self._tables.messages} SET state = 'sent'{sent_at} "
                f"WHERE state = 'new' AND {among}"
            )
            if marked > len(some):
                raise self._not_unique()
            if marked < len(some):
                ours = self._connection.query(
                    f"SELECT id FROM {self._tables.messages} WHERE state = 'sent' AND {among}"
                )
                recalled |= set(some) - {int(number) for (number,) in ours}
        return recalled

    def _not_unique(self) -> JobFailed:
        return JobFailed(
            f"{self._tables.messages} has messages with the same id, so one could be marked "
            "instead of the other. Make id the primary key."
        )

    def _refuse(self, rows: DataFrame) -> None:
        """Mark messages as refused, and put them into the exceptions table."""
        content = sql.lit(None).cast("string")
        if "content" in rows.columns:
            binary = isinstance(rows.schema["content"].dataType, BinaryType)
            content = sql.hex("content") if binary else sql.col("content")
        topic = sql.col("topic") if "topic" in rows.columns else sql.lit(None)
        topic = sql.coalesce(topic, sql.lit(self._options.topic))
        found = rows.select("id", topic.alias("topic"), content.alias("content"), REASON).collect()
        for some in _in_parts([row.id for row in found]):
            self._connection.update(
                f"UPDATE {self._tables.messages} SET state = 'refused' "
                f"WHERE id IN ({', '.join(map(str, some))})"
            )
        insert_exceptions(
            self._connection,
            self._tables.exceptions,
            [
                Refused(f"{self._tables.messages} id {row.id}", row.topic, row.content, row[REASON])
                for row in found
            ],
        )

    def _send(self, rows: DataFrame) -> None:
        names = [SENT[name] for name in self._layout.sent if SENT[name] in rows.columns]
        rows.select(names).write.format("rmq").options(**self._sink).mode("append").save()

    def _move(self, until_ms: int, done: Round) -> None:
        self._connection.update(
            f"UPDATE {self._tables.checkpoint} SET sent_until_ms = ?, sent = sent + ?, "
            "refused = refused + ?",
            *(until_ms, done.sent, done.refused),
        )


def _with_topic(sink: dict[str, str]) -> dict[str, str]:
    """Create the default topic if it does not exist. Return the options that suit all topics.

    These lack the options of a new topic. The topic exists before its first message, so that its
    readers can start.
    """
    options = parse_sink_options(sink)
    if options.topic is None:
        return sink
    SinkTopics(options, defines=True).find(shared_server(options.connection), options.topic)
    return {name: value for name, value in sink.items() if SINK.find(name) not in OF_A_NEW_TOPIC}


def _in_parts(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[at : at + _IDS_A_STATEMENT] for at in range(0, len(ids), _IDS_A_STATEMENT)]
