"""each_message: a function for every message of a micro-batch; those it fails are rolled back."""

import inspect
import io
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption, UnusableFunction
from rmq_spark.protocol import claiming
from rmq_spark.protocol.claims import Rollback
from rmq_spark.spark.listener.message_child import Handing, Job
from rmq_spark.spark.listener.message_runner import MESSAGES_AT_ONCE, Failure, runner_of
from rmq_spark.spark.options import ListenerOptions, parse_listener_options
from rmq_spark.spark.sink.columns import first_not_utf8, shown_value
from rmq_spark.transport.server import shared_server

_log = logging.getLogger(__name__)

# The columns that a rollback needs: the Spark types accepted, and how they are named to the user.
NEEDED: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "STRING"),
    "slot": ((IntegerType, LongType), "INT"),
    "claimId": ((StringType,), "STRING"),
    "content": ((StringType, BinaryType), "STRING or BINARY"),
}
# What is given to the function's process at once is in memory several times.
BYTES_AT_ONCE = 8 * 1024 * 1024
ERRORS_A_TASK = 5
ERRORS_A_BATCH = 20
_HANDINGS = {
    False: Handing.MESSAGE,
    True: Handing.ARROW,
    "arrow": Handing.ARROW,
    "pandas": Handing.PANDAS,
}
_SUMMARY = "succeeded BIGINT, failed BIGINT, leftAlone BIGINT, errors ARRAY<STRING>"


def each_message(
    function: Callable[[Any], Any],
    *,
    batch: bool | str = False,
    timeout: str | None = None,
    delay: str | None = None,
    options: Mapping[str, str] | None = None,
) -> "EachMessage":
    """A listener for ``foreachBatch``: calls a function for every message, on the executors.

    ::

        query = (
            spark.readStream.format("rmq").option("topic", "Orders").load()
            .writeStream.foreachBatch(rmq_spark.each_message(bill, timeout="5s"))
            .option("checkpointLocation", "/data/checkpoints/billing")
            .start()
        )

    function: gets a ``Row`` of all columns; what it returns is ignored. A message for which it
    raises is rolled back alone, to come again or, with no retry left, go to the DeadQueue; the
    others are committed with the batch. With ``batch=True`` it gets a ``pyarrow.RecordBatch`` and
    with ``batch="pandas"`` a ``pandas.DataFrame``, up to 1024 messages of one claim, and returns
    which of them failed: None, positions from 0, or a mask of booleans. If it raises, or returns
    anything else, all of that call are rolled back.

    Messages of one slot come in order and one at a time, as the source hands them out; a DataFrame
    that was repartitioned or sorted before has lost that, and spark.speculation works on some twice
    at once. A batch that Spark runs again is worked on again: at least once.

    timeout: a duration such as "5s" for a message (with batch, a call); what takes longer is
    killed, wherever it hangs, and rolled back. What the function opens or imports in its first
    call is in that time. Loading it (what unpickling it imports) has a minute then, or the timeout
    if that is longer; without a timeout nothing is bounded. delay: the wait before a failed message
    comes again; without it, the topic's backoff. options: redis.* and keyPrefix, as the source
    takes them. ``RMQ_REDIS_URL`` is read here, on the driver.

    The function is pickled here and now. It runs in a process of its own beside each Python worker,
    kept from batch to batch while the worker lives and until it had nothing to do for a minute: it
    may open a connection once and keep it in a global. One that kills its process takes only its
    own message with it. Broadcast variables work, accumulators do not.

    Raises InvalidOption. The query fails with InvalidMessage when the DataFrame lacks topic, slot,
    claimId or content, or a STRING that must be read is not valid UTF-8; with UnusableFunction
    when the function cannot be loaded on an executor; with a ServerError when Redis cannot be
    reached. Nothing is lost then, the batch comes again.
    """
    return EachMessage(function, batch=batch, timeout=timeout, delay=delay, options=options)


class EachMessage:
    """What each_message returns. Totals of this driver since it was made, in messages:

    succeeded: for which the function succeeded. failed: for which it did not. left_alone: those of
    the failed that were not rolled back, since their claim did not hold them any more; they come
    again by themselves. A batch that Spark runs again counts again.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        batch: bool | str = False,
        timeout: str | None = None,
        delay: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.succeeded = 0
        self.failed = 0
        self.left_alone = 0
        handing = _HANDINGS.get(batch) if isinstance(batch, bool | str) else None
        if handing is None:
            raise InvalidOption(
                f"batch={batch!r} is not accepted. Accepted: False, True or 'arrow', 'pandas'."
            )
        durations = {"timeout": timeout, "delay": delay}
        given = {name: text for name, text in durations.items() if text is not None}
        self._options = parse_listener_options(_texts({**(options or {}), **given}))
        pickled, broadcasts = _pickled(function)
        self._name = f"{getattr(function, '__qualname__', 'function')}-{uuid.uuid4().hex}"
        self._function, self._broadcasts, self._handing = pickled, broadcasts, handing

    def __repr__(self) -> str:
        counts = f"succeeded={self.succeeded}, failed={self.failed}, left_alone={self.left_alone}"
        return f"EachMessage({self._name.partition('-')[0]}, {counts})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Works on one micro-batch; Spark calls it."""
        places = locate_needed(frame.schema)
        job = Job(self._name, self._function, self._handing, frame.schema.json())
        task = _Task(job, self._options, places, self._broadcasts)
        rows = frame.mapInArrow(task.run, _SUMMARY).collect()
        failed = sum(row.failed for row in rows)
        left_alone = sum(row.leftAlone for row in rows)
        succeeded = sum(row.succeeded for row in rows)
        self.succeeded += succeeded
        self.failed += failed
        self.left_alone += left_alone
        if failed:
            _log.warning(
                "rmq: batch %d: %d of %d messages failed and were rolled back%s",
                batch_id,
                failed,
                succeeded + failed,
                f", but for {left_alone} whose claim was gone" if left_alone else "",
            )
            for error in [error for row in rows for error in row.errors][:ERRORS_A_BATCH]:
                _log.warning("rmq: batch %d: %s", batch_id, error)


def locate_needed(schema: StructType) -> dict[str, int]:
    """The positions of the columns that a rollback needs, by their proper names.

    Raises InvalidMessage for one that is missing, there twice, or of another type.
    """
    places: dict[str, int] = {}
    for name, (types, accepted) in NEEDED.items():
        found = [at for at, column in enumerate(schema.names) if column.lower() == name.lower()]
        if len(found) != 1:
            raise InvalidMessage(
                f"each_message needs the column {name} {'once' if found else 'too'}; there are "
                f"{', '.join(schema.names) or 'none'}. Keep {', '.join(NEEDED)} of the source: "
                "a message that fails is rolled back by them."
            )
        if not isinstance(schema[found[0]].dataType, types):
            raise InvalidMessage(
                f"The column {name} is {schema[found[0]].dataType.simpleString().upper()}. "
                f"Accepted: {accepted}, as the source has it."
            )
        places[name] = found[0]
    return places


@dataclass
class _Outcome:
    """What one task tells the driver."""

    succeeded: int = 0
    failed: int = 0
    left_alone: int = 0
    errors: list[str] = field(default_factory=list)

    def to_arrow(self) -> pa.RecordBatch:
        counts = [pa.array([n]) for n in (self.succeeded, self.failed, self.left_alone)]
        return pa.RecordBatch.from_arrays(
            [*counts, pa.array([self.errors], pa.list_(pa.string()))],
            names=["succeeded", "failed", "leftAlone", "errors"],
        )


@dataclass(frozen=True)
class _Task:
    """What runs on the executors. broadcasts: Spark must see them to bring them there."""

    job: Job
    options: ListenerOptions
    places: Mapping[str, int]
    broadcasts: list[Broadcast[Any]]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Works on one partition."""
        outcome = _Outcome()
        queues: dict[str, Queue] = {}
        limit_ms = self.options.timeout_ms
        for batch in batches:
            if not batch.num_rows:
                continue
            # Asked before the first message: a wrong address must not show only when one fails.
            self._find_queues(batch, queues)
            runner = runner_of(self.job)
            for part in self._parts(batch):
                try:
                    failures = runner.run(part, None if limit_ms is None else limit_ms / 1000)
                except UnusableFunction:
                    self._check_readable(batch)
                    raise
                failed = sum(len(failure.rows) for failure in failures)
                outcome.succeeded += part.num_rows - failed
                outcome.failed += failed
                if failures:
                    self._roll_back(part, failures, queues, outcome)
        if outcome.succeeded or outcome.failed:
            yield outcome.to_arrow()

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(self.places[name])

    def _find_queues(self, batch: pa.RecordBatch, queues: dict[str, Queue]) -> None:
        for name in NEEDED:
            if self._column(batch, name).null_count:
                raise InvalidMessage(
                    f"The column {name} has a null. Accepted: the values of the source."
                )
        for name in ("topic", "claimId"):
            _check_texts(name, self._column(batch, name), "the values of the source.")
        prefix = self.options.key_prefix
        for topic in pc.unique(self._column(batch, "topic")).to_pylist():
            if topic not in queues:
                # A claimId tells the group; which one this queue itself belongs to is all the same.
                broker = Broker(shared_server(self.options.connection), key_prefix=prefix)
                group = broker.definition(topic).groups[0]
                queues[topic] = broker.queue(topic, group=group)

    def _check_readable(self, batch: pa.RecordBatch) -> None:
        """Raises InvalidMessage for a text that keeps a batch from becoming rows or pandas."""
        if self.job.handing is Handing.ARROW:
            return  # the function gets the bytes as they are
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                _check_texts(name, column, "valid UTF-8 in a STRING. Cast it to BINARY.")

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Parts of a batch in order, each small enough; with whole batches, of one claim each."""
        rows = max(1, BYTES_AT_ONCE * batch.num_rows // max(batch.nbytes, 1))
        rows = min(rows, MESSAGES_AT_ONCE)
        borders = [0, *([] if self.job.one_by_one else self._borders(batch)), batch.num_rows]
        for start, end in pairwise(borders):
            for at in range(start, end, rows):
                yield batch.slice(at, min(rows, end - at))

    def _borders(self, batch: pa.RecordBatch) -> list[int]:
        """Where another claim begins than that of the row before."""
        differs = np.zeros(batch.num_rows - 1, bool)
        for name in ("topic", "slot", "claimId"):
            column = self._column(batch, name)
            differs |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        return (np.flatnonzero(differs) + 1).tolist()

    def _roll_back(
        self,
        batch: pa.RecordBatch,
        failures: list[Failure],
        queues: Mapping[str, Queue],
        outcome: _Outcome,
    ) -> None:
        rows = pa.array([row for failure in failures for row in failure.rows])
        names = [
            self._column(batch, n).take(rows).to_pylist() for n in ("topic", "slot", "claimId")
        ]
        contents = self._column(batch, "content").take(rows).cast(pa.binary()).to_pylist()
        claims = list(zip(*names, strict=True))
        by_claim: dict[tuple[str, int, str], list[bytes]] = {}
        for claim, content in zip(claims, contents, strict=True):
            by_claim.setdefault(claim, []).append(content)
        by_topic: dict[str, list[Rollback]] = {}
        for (topic, slot, claim_id), held in by_claim.items():
            rollback = Rollback(slot, claim_id, held, self.options.delay_ms)
            by_topic.setdefault(topic, []).append(rollback)
        for topic, rollbacks in by_topic.items():
            result = queues[topic].ask(claiming.rollbacks, rollbacks)
            outcome.left_alone += result.left_alone
        first = 0
        for failure in failures[: ERRORS_A_TASK - len(outcome.errors)]:
            topic, slot, claim_id = claims[first]
            several = f"{len(failure.rows)} messages of " if len(failure.rows) > 1 else ""
            outcome.errors.append(
                f"{several}topic {topic}, slot {slot}, claim {claim_id}: {failure.reason}"
            )
            first += len(failure.rows)


def _check_texts(name: str, column: pa.Array, accepted: str) -> None:
    """Raises InvalidMessage for the first value that is not valid UTF-8."""
    row = first_not_utf8(column)
    if row is not None:
        raise InvalidMessage(
            f"The column {name} has {shown_value(column, row)} in row {row} of its batch, which is "
            f"not valid UTF-8. Accepted: {accepted}"
        )


class _Pickler(cloudpickle.CloudPickler):
    """Notes the broadcast variables it meets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self.broadcasts: list[Broadcast[Any]] = []

    def persistent_id(self, value: Any) -> None:
        """Pickle asks for every object; None: pickled as always."""
        if isinstance(value, Broadcast):
            self.broadcasts.append(value)


def _pickled(function: Any) -> tuple[bytes, list[Broadcast[Any]]]:
    """A function as bytes, and the broadcast variables in it. Raises InvalidOption."""
    accepted = "Accepted: a function of one argument that Spark can send to its executors."
    if not callable(function):
        raise InvalidOption(f"each_message got a {type(function).__name__}. {accepted}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(
            f"The function of each_message is async: nobody would run what it returns. {accepted}"
        )
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidOption(
            f"The function of each_message cannot be sent to the executors: "
            f"{type(error).__name__}: {error}. It, or a global it uses, holds something of the "
            "driver, such as a SparkSession, a connection or a lock: make that inside the function."
        ) from error
    return file.getvalue(), pickler.broadcasts


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """The options themselves. Raises InvalidOption for a value that is no text."""
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidOption(
                f"The option {name} of each_message is a {type(value).__name__}. "
                "Accepted: text, and for a duration a number with its unit, such as '5s'."
            )
    return dict(options)
