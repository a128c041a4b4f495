"""The task of each_message: processes one partition of a batch on an executor.

A task that Spark kills returns no counts. Each task therefore writes them to Redis while it works,
into one hash for each batch (``listener:<id>``). When a batch ends early, the driver adds the field
``ended`` to the hash. A task that finds this field writes its counts once more and stops. Messages
matter more than counts: if Redis does not accept or return counts, they are left out.
"""

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.core.broadcast import Broadcast
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.errors import (
    InvalidMessage,
    RmqError,
    ServerUnavailable,
    UnknownTopic,
    UnusableFunction,
)
from rmq_spark.protocol import returning
from rmq_spark.protocol.calls import fields_of
from rmq_spark.redis.connection import ConnectionOptions
from rmq_spark.redis.server import Server, shared_server
from rmq_spark.spark.listener.child import InputFormat, Job
from rmq_spark.spark.listener.runner import MESSAGES_AT_ONCE, FailedRows, Stopped, runner_of
from rmq_spark.spark.options import ListenerOptions
from rmq_spark.spark.sink.columns import row_not_utf8, shown_value
from rmq_spark.topics.keys import listener_key
from rmq_spark.topics.verdicts import Ending, Failure

# Only messages of keyed topics need it.
KEY = "key"
# For each column that a rollback needs, the accepted Spark types and their names in errors.
ROLLBACK_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "STRING"),
    "slot": ((IntegerType, LongType), "INT"),
    "claimId": ((StringType,), "STRING"),
    "content": ((StringType, BinaryType), "STRING or BINARY"),
    KEY: ((StringType, BinaryType), "STRING or BINARY"),
}
RESULT = (
    "task STRING, succeeded BIGINT, failed BIGINT, left_alone BIGINT, snoozed BIGINT, "
    "errors ARRAY<STRING>, timings ARRAY<STRUCT<topic STRING, durations ARRAY<BIGINT>, "
    "durations_s DOUBLE, latenesses ARRAY<BIGINT>, latenesses_s DOUBLE>>"
)
_HISTOGRAM = pa.list_(pa.int64())
_TIMINGS_OF_TOPIC = pa.struct(
    [
        *(("topic", pa.string()), ("durations", _HISTOGRAM), ("durations_s", pa.float64())),
        *(("latenesses", _HISTOGRAM), ("latenesses_s", pa.float64())),
    ]
)
_TIMINGS = pa.list_(_TIMINGS_OF_TOPIC)
_NEVER_NULL = ("topic", "slot", "claimId")
# For who has given the address of Redis to the source alone.
_CONNECTS_BY_ITSELF = (
    "each_message does not see the options of the source: give it the same redis.* and keyPrefix, "
    "as in each_message(function, options={'redis.url': ...}), or set RMQ_REDIS_URL."
)
# The most bytes that the function's process gets at once: they are in memory several times.
_BYTES_AT_ONCE = 8 * 1024 * 1024
# The most errors that a task returns.
ERRORS_A_TASK = 5
# The most characters of a content in the log.
_LONGEST_SHOWN = 80
# The interval at which a task writes its counts and checks whether its batch has ended early.
REPORT_AFTER_S = 0.25
# The longest wait of the driver for the tasks of a batch that has ended early. Spark kills them
# after some three seconds; after that they report nothing more.
_LONGEST_WAIT_S = 5.0
_LOOK_AFTER_S = 0.02
# The lifetime of counts whose driver has died. A task writes far more often.
_KEPT_MS = 600_000
_ENDED = "ended"
_AT_WORK, _DONE = 0, 1


@dataclass(frozen=True)
class Counts:
    """Numbers of messages. left_alone: failed or snoozed ones that were not rolled back."""

    succeeded: int = 0
    failed: int = 0
    left_alone: int = 0
    snoozed: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class BatchCounts:
    connection: ConnectionOptions
    key: str

    @staticmethod
    def new(connection: ConnectionOptions, key_prefix: str) -> "BatchCounts":
        return BatchCounts(connection, listener_key(uuid.uuid4().hex, key_prefix))

    def take(self) -> dict[str, Counts]:
        with suppress(RmqError):
            tasks = self._read()
            if tasks:
                self.server().command("UNLINK", self.key)
            return {task: counts for task, (counts, _) in tasks.items()}
        return {}

    def end(self) -> dict[str, Counts]:
        """Stop the tasks that are still at work, then remove the counts as ``take`` does."""
        with suppress(RmqError):
            kept = ("PEXPIRE", self.key, _KEPT_MS)
            self.server().commands([("HSET", self.key, _ENDED, "1"), kept])
            give_up = time.monotonic() + _LONGEST_WAIT_S
            while any(at_work for _, at_work in self._read().values()):
                if time.monotonic() >= give_up:
                    break
                time.sleep(_LOOK_AFTER_S)
        return self.take()

    def server(self) -> Server:
        """Return a connection that retries nothing: messages do not wait for counts."""
        return shared_server(self.connection, patience_s=0)

    def _read(self) -> dict[str, tuple[Counts, bool]]:
        tasks = {}
        fields = fields_of(self.server().command("HGETALL", self.key))
        for task, text in ((name.decode(), text) for name, text in fields):
            if task != _ENDED:
                *counts, state = map(int, text.split())
                tasks[task] = (Counts(*counts), state == _AT_WORK)
        return tasks


class TaskCounts:
    def __init__(self, batch: BatchCounts, task: str) -> None:
        self._batch = batch
        self._task = task
        self._written_s = 0.0
        self._is_refused = False

    def write(self, counts: Counts, is_done: bool = False) -> bool:
        """Write the counts, at most every REPORT_AFTER_S.

        Returns whether to continue. is_done: this is the last write, skipped only if the task has
        written nothing before.
        """
        now = time.monotonic()
        is_due = bool(self._written_s) if is_done else now - self._written_s >= REPORT_AFTER_S
        if self._is_refused or not is_due:
            return True
        self._written_s = now
        key = self._batch.key
        state = " ".join(map(str, (*astuple(counts), _DONE if is_done else _AT_WORK)))
        try:
            replies = self._batch.server().commands(
                [
                    ("HSET", key, self._task, state),
                    ("PEXPIRE", key, _KEPT_MS),
                    ("HEXISTS", key, _ENDED),
                ]
            )
        except RmqError:
            self._is_refused = True  # for example, the server is full
            return True
        return not replies[-1]


def locate_rollback_columns(schema: StructType) -> dict[str, int]:
    positions: dict[str, int] = {}
    for name, (types, accepted) in ROLLBACK_COLUMNS.items():
        found = [at for at, column in enumerate(schema.names) if column.lower() == name.lower()]
        if not found and name == KEY:
            continue
        if len(found) != 1:
            raise InvalidMessage(
                f"each_message needs the column {name} {'once' if found else 'too'}; there are "
                f"{', '.join(schema.names) or 'none'}. Keep {', '.join(ROLLBACK_COLUMNS)} of the "
                "source: they identify a failed message for its rollback."
            )
        if not isinstance(schema[found[0]].dataType, types):
            raise InvalidMessage(
                f"The column {name} is {schema[found[0]].dataType.simpleString().upper()}. "
                f"Accepted: {accepted}, as in the source. Do not cast it."
            )
        positions[name] = found[0]
    return positions


@dataclass
class _Outcome:
    counts: Counts = field(default_factory=Counts)
    errors: list[str] = field(default_factory=list)
    timings: defaultdict[str, Timings] = field(default_factory=lambda: defaultdict(Timings))
    # Until when a function holds the group of a topic, by the monotonic clock.
    held_until_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, rows: int, failures: list[FailedRows]) -> None:
        ended = Counter[Ending]()
        for of_rows, failure in failures:
            ended[failure.ending] += len(of_rows)
        snoozed, unread = ended[Ending.UNCHARGED], ended[Ending.UNREAD]
        failed = ended.total() - snoozed - unread
        self.counts += Counts(rows - ended.total(), failed, snoozed=snoozed)

    def to_arrow(self, task: str) -> pa.RecordBatch:
        counts = asdict(self.counts)
        names = [each.name for each in _TIMINGS_OF_TOPIC]
        timings = [
            dict(zip(names, (topic, *of.durations.told(), *of.latenesses.told()), strict=True))
            for topic, of in self.timings.items()
        ]
        row = {"task": task, **counts, "errors": self.errors, "timings": timings}
        types = [pa.string(), *[pa.int64()] * len(counts), pa.list_(pa.string()), _TIMINGS]
        return pa.RecordBatch.from_pylist([row], pa.schema(zip(row, types, strict=True)))


@dataclass(frozen=True)
class MessageTask:
    """The work of each task, pickled. broadcasts: Spark sends only those that it finds here."""

    job: Job
    options: ListenerOptions
    positions: Mapping[str, int]
    broadcasts: list[Broadcast[Any]]
    batch_counts: BatchCounts

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = "" if context is None else str(context.taskAttemptId())
        counts = TaskCounts(self.batch_counts, task)
        outcome = _Outcome()
        try:
            self._work(batches, outcome, counts)
        except Stopped:
            return  # Spark has given up this task and would not read the row
        finally:
            counts.write(outcome.counts, is_done=True)
        if outcome.counts != Counts():
            yield outcome.to_arrow(task)

    def _work(
        self, batches: Iterator[pa.RecordBatch], outcome: _Outcome, counts: TaskCounts
    ) -> None:
        queues: dict[str, Queue] = {}
        for batch in batches:
            if not batch.num_rows:
                continue
            # Look up the queues before the first message, so that a wrong address fails at once.
            self._find_queues(batch, queues)
            for part in self._parts(batch):
                if not counts.write(outcome.counts):
                    raise Stopped(0, [])
                try:
                    self._work_on(part, queues, outcome, counts)
                except UnusableFunction:
                    self._check_readable(batch)
                    raise

    def _work_on(
        self,
        part: pa.RecordBatch,
        queues: Mapping[str, Queue],
        outcome: _Outcome,
        counts: TaskCounts,
    ) -> None:
        """Call the function for a part of a batch, and roll back its failures meanwhile."""
        topic = self._column(part, "topic")[0].as_py()
        if time.monotonic() < outcome.held_until_s[topic]:
            unread = [FailedRows(list(range(part.num_rows)), Failure("", Ending.UNREAD))]
            outcome.add(part.num_rows, unread)
            self._roll_back(part, unread, queues, outcome)
            return
        counted_rows = counted_failures = 0

        def settle(worked: int, failures: list[FailedRows]) -> None:
            nonlocal counted_rows, counted_failures
            news = failures[counted_failures:]
            outcome.add(worked - counted_rows, news)
            counted_rows, counted_failures = worked, len(failures)
            for failed in news:
                if failed.failure.holds:
                    ends_s = time.monotonic() + (failed.failure.delay_ms or 0) / 1000
                    outcome.held_until_s[topic] = max(ends_s, outcome.held_until_s[topic])
            self._roll_back(part, news, queues, outcome)

        def should_continue(worked: int, failures: list[FailedRows]) -> bool:
            settle(worked, failures)
            return counts.write(outcome.counts)

        limit_s = None if self.options.timeout_ms is None else self.options.timeout_ms / 1000
        try:
            runner = runner_of(self.job)
            failures = runner.run(part, limit_s, should_continue, outcome.timings[topic])
        except Stopped as stopped:
            settle(stopped.worked, stopped.failures)
            raise
        settle(part.num_rows, failures)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(self.positions[name])

    def _find_queues(self, batch: pa.RecordBatch, queues: dict[str, Queue]) -> None:
        for name in _NEVER_NULL:
            self._refuse_null(name, self._column(batch, name))
        for name in ("topic", "claimId"):
            _check_texts(name, self._column(batch, name), "the values of the source.")
        prefix = self.options.key_prefix
        for topic in pc.unique(self._column(batch, "topic")).to_pylist():
            if topic not in queues:
                # A claimId names the group of its own message, except for the default group.
                try:
                    broker = Broker(shared_server(self.options.connection), key_prefix=prefix)
                    queues[topic] = broker.queue(topic)
                except (ServerUnavailable, UnknownTopic) as error:
                    raise type(error)(f"{error} {_CONNECTS_BY_ITSELF}") from error
            name = KEY if queues[topic].definition.keyed else "content"
            if name not in self.positions:
                raise InvalidMessage(
                    f"each_message needs the column {name} too, because topic {topic} is keyed. "
                    "Keep it: it identifies a failed message for its rollback."
                )
            rows = pc.equal(self._column(batch, "topic"), topic)
            self._refuse_null(name, self._column(batch, name).filter(rows))

    @staticmethod
    def _refuse_null(name: str, column: pa.Array) -> None:
        if column.null_count:
            raise InvalidMessage(
                f"The column {name} has a null. Accepted: the values of the source, unchanged."
            )

    def _check_readable(self, batch: pa.RecordBatch) -> None:
        if self.job.input_format is InputFormat.ARROW:
            return  # an Arrow batch keeps such bytes as they are
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                _check_texts(name, column, "valid UTF-8 in a STRING. Cast it to BINARY.")

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Split a batch for the process of the function, which gets many only of one claim.

        All messages of a part have one topic.
        """
        rows = max(1, _BYTES_AT_ONCE * batch.num_rows // max(batch.nbytes, 1))
        rows = min(rows, MESSAGES_AT_ONCE)
        borders = [0, *self._borders(batch), batch.num_rows]
        for start, end in pairwise(borders):
            for at in range(start, end, rows):
                yield batch.slice(at, min(rows, end - at))

    def _borders(self, batch: pa.RecordBatch) -> list[int]:
        differs = np.zeros(batch.num_rows - 1, bool)
        for name in ("topic",) if self.job.one_by_one else ("topic", "slot", "claimId"):
            column = self._column(batch, name)
            differs |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        return (np.flatnonzero(differs) + 1).tolist()

    def _roll_back(
        self,
        batch: pa.RecordBatch,
        failures: list[FailedRows],
        queues: Mapping[str, Queue],
        outcome: _Outcome,
    ) -> None:
        if not failures:
            return
        rows = pa.array([row for failed in failures for row in failed.rows])
        names = [
            self._column(batch, n).take(rows).to_pylist() for n in ("topic", "slot", "claimId")
        ]
        contents = self._names(batch).take(rows).to_pylist()
        claims = list(zip(*names, strict=True))
        of_rows = [self._shown(failure) for rows, failure in failures for _ in rows]
        by_topic: dict[str, list[tuple[int, str, bytes, Failure]]] = {}
        for (topic, slot, claim_id), content, failure in zip(
            claims, contents, of_rows, strict=True
        ):
            by_topic.setdefault(topic, []).append((slot, claim_id, content, failure))
        for topic, messages in by_topic.items():
            result = queues[topic].ask(returning.rollbacks, returning.grouped(messages))
            outcome.counts += Counts(left_alone=result.left_alone)
        first = 0
        for failed in failures:
            is_failure = failed.failure.ending not in (Ending.UNCHARGED, Ending.UNREAD)
            if is_failure and len(outcome.errors) < ERRORS_A_TASK:
                topic, slot, claim_id = claims[first]
                named = self._messages_named(contents[first], len(failed.rows))
                outcome.errors.append(
                    f"topic {topic}, slot {slot}, claim {claim_id}, {named}: "
                    f"{of_rows[first].reason}"
                )
            first += len(failed.rows)

    def _names(self, batch: pa.RecordBatch) -> pa.Array:
        contents = self._column(batch, "content").cast(pa.binary())
        if KEY not in self.positions:
            return contents
        # Only rows of keyed topics have a key.
        return pc.coalesce(self._column(batch, KEY).cast(pa.binary()), contents)

    def _shown(self, failure: Failure) -> Failure:
        """Return a failure with the delay of the options, unless it has its own.

        It is without the text of its reason if that, which may quote the content, is hidden.
        """
        failure = failure.after(self.options.delay_ms)
        if self.options.log_contents:
            return failure
        return failure._replace(reason=failure.reason.partition(":")[0])

    def _messages_named(self, content: bytes, messages: int) -> str:
        if not self.options.log_contents:
            return "1 message" if messages == 1 else f"{messages} messages"
        others = messages - 1
        beside = f" and {others} other{'s' if others > 1 else ''}" if others else ""
        return f"message {shown_content(content)}{beside}"


def shown_content(content: bytes) -> str:
    try:
        value: str | bytes = content.decode()
    except UnicodeDecodeError:
        value = content
    return f"{value[:_LONGEST_SHOWN]!r}{'...' if len(value) > _LONGEST_SHOWN else ''}"


def _check_texts(name: str, column: pa.Array, accepted: str) -> None:
    row = row_not_utf8(column)
    if row is not None:
        raise InvalidMessage(
            f"The column {name} has {shown_value(column, row)} in row {row} of its batch, which is "
            f"not valid UTF-8. Accepted: {accepted}"
        )
