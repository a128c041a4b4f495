"""The child process in which the function of each_message runs, and what it shares with its parent.

The child lives as long as the Python worker that forked it, so that connections which the function
opens stay open. The parent writes record batches into one pipe. The child answers in another with
frames, JSON after its length: ``["failed", [[rows, failure], ...]]`` with all failures of a call,
``["done", timings]``, ``["unusable", reason]``. Shared memory shows which message it works on, and
since when: this needs no system call for each message, and it outlives the child.
"""

import contextlib
import json
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    Row,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_spark.client.receiving.child_process import refuse_unrun
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.client.tracing import OTHER_ERROR, is_on, mark_failed, process_span
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.bodies import Headers
from rmq_spark.protocol.names import ClaimId, ConsumerName
from rmq_spark.spark.schemas import HEADERS
from rmq_spark.topics.reasons import reason_of
from rmq_spark.topics.verdicts import Ending, Failure, failure_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# Counts by the bounds of a histogram, and the sum of the values.
Counted = tuple[list[int], float]
# Of one call: the positions of rows, and their failure.
Failures = list[tuple[list[int], Failure]]
LENGTH_BYTES = 8
_AS_ARROW_GIVES_THEM = {
    *(BinaryType, BooleanType, ByteType, DoubleType, FloatType, IntegerType, LongType, ShortType),
    StringType,
}
# The time after which an idle child ends: the same as for Spark's idle Python workers.
IDLE_S = 60.0
# The columns that a span needs.
_TYPE_OF_HEADERS = HEADERS.simpleString()
_TRACED_COLUMNS = ("topic", "slot", "claimid", "headers")
# The states of a unit in Progress.
_WAITING, _IN_WORK, _DONE, _FAILED = range(4)


class InputFormat(StrEnum):
    """The argument of the function: one message, or many as an Arrow batch or pandas frame."""

    MESSAGE = "message"
    ARROW = "arrow"
    PANDAS = "pandas"


@dataclass(frozen=True)
class Job:
    """The function that a child runs, and the form of its argument.

    name: distinguishes equal functions of different listeners. function: pickled; only the child
    loads it, so that the parent and later children share nothing that its modules open. schema: as
    JSON. idle_s: the child ends after so many seconds without a batch.
    """

    name: str
    function: bytes
    input_format: InputFormat
    schema: str
    idle_s: float = IDLE_S

    @property
    def one_by_one(self) -> bool:
        return self.input_format is InputFormat.MESSAGE


class Progress:
    """The progress of a child in a batch, in memory that it shares with its parent.

    A unit is one call of the function. Units begin in order. started_s: of the running unit, on the
    monotonic clock, which all processes share; 0 between units. states: one byte a unit.
    """

    def __init__(self, units: int) -> None:
        self._memory = mmap.mmap(-1, 8 + units)
        view = memoryview(self._memory)
        self.started_s = view[:8].cast("d")
        self.states = view[8:]

    def reset(self, units: int) -> None:
        self.started_s[0] = 0.0
        self.states[:units] = bytes(units)

    def begun(self, units: int) -> int:
        first_waiting = self._memory.find(b"\0", 8, 8 + units)
        return units if first_waiting < 0 else first_waiting - 8

    def in_work(self, units: int) -> int | None:
        last = self.begun(units) - 1
        return last if last >= 0 and self.states[last] == _IN_WORK else None

    def left_s(self, limit_s: float) -> float:
        """Return the seconds left of the time limit of the unit in progress; all between units."""
        started = self.started_s[0]
        return limit_s - (time.monotonic() - started) if started else limit_s


def run_child(job: Job, requests: int, replies: int, progress: Progress) -> None:
    """Serve requests until their pipe ends, then exit the process; never return."""
    status = 1
    try:
        _detach((requests, replies))
        _Child(job, requests, replies, progress).serve()
        status = 0
    except _ParentGone:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)  # the parent's frames are below this one and must not run in the child


class _ParentGone(Exception):
    pass


class _Child:
    def __init__(self, job: Job, requests: int, replies: int, progress: Progress) -> None:
        self._job = job
        self._requests = requests
        self._replies = replies
        self._progress = progress
        self._schema = StructType.fromJson(json.loads(job.schema))
        self._traced = TracedCalls(self._schema)
        self._bounds = Timings()
        due = [at for at, field in enumerate(self._schema) if _is_due_time(field)]
        self._due_at = due[0] if len(due) == 1 else None
        # select() takes no descriptor above 1023; the parent may have more files open.
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)

    def serve(self) -> None:
        """Process batches until none comes within ``idle_s``, or the function is unusable."""
        try:
            function = pickle.loads(self._job.function)  # noqa: S301 - our driver's
        except BaseException as error:
            self._reply("unusable", f"it cannot be loaded on the executor: {reason_of(error)}")
            return
        while (batch := self._next_batch()) is not None:
            try:
                calls = (
                    rows_of(batch, self._schema) if self._job.one_by_one else [self._whole(batch)]
                )
            except Exception as error:
                self._reply("unusable", f"a batch cannot be read for it: {reason_of(error)}")
                return
            call = function
            if not self._job.one_by_one:
                call = partial(_failures_of_call, function, batch.num_rows)
            if self._traced.is_on():
                call = self._in_spans(call, batch)
            if self._job.one_by_one:
                begun_s = self._call_each(call, calls)
            else:
                begun_s = self._call_once(call, calls[0], batch.num_rows)
            self._progress.started_s[0] = 0.0
            _flush()
            self._reply("done", self._timings(batch, np.array(begun_s)))
            if is_on():
                self._traced.flush_soon()

    def _in_spans(
        self, function: Callable[[Any], Any], batch: pa.RecordBatch
    ) -> Callable[[Any], Any]:
        def call(message: Any) -> None:
            with self._traced.of_message(message):
                refuse_unrun(function(message))

        def call_with_all(whole: Any) -> Failures:
            with self._traced.of_batch(batch) as span:
                failures: Failures = function(whole)
                if any(failure.ending is not Ending.UNCHARGED for _, failure in failures):
                    mark_failed(span, OTHER_ERROR)
                return failures

        return call if self._job.one_by_one else call_with_all

    def _whole(self, batch: pa.RecordBatch) -> Any:
        return batch.to_pandas() if self._job.input_format is InputFormat.PANDAS else batch

    def _call_each(self, function: Callable[[Any], Any], messages: list[Any]) -> list[float]:
        """Call the function for each message. Return when each call began, and the last ended."""
        states, started_s, now = self._progress.states, self._progress.started_s, time.monotonic
        begun_s = []
        for at, message in enumerate(messages):
            started_s[0] = begun = now()
            begun_s.append(begun)
            states[at] = _IN_WORK
            try:
                returned = copy_context().run(function, message)
                if returned is not None:
                    refuse_unrun(returned)
                states[at] = _DONE
            except BaseException as error:  # even SystemExit fails only this message
                failure = failure_of(error)
                # Report before marking, so that the parent has a report of every marked failure.
                left = list(range(at + 1, len(messages))) if failure.holds else []
                unread = [(left, Failure("", Ending.UNREAD))] if left else []
                self._reply("failed", [*unread, ([at], failure)])
                ended = 1 + len(left)
                states[at : at + ended] = bytes([_FAILED]) * ended
                if failure.holds:
                    break
        return [*begun_s, now()]

    def _call_once(self, function: Callable[[Any], Failures], whole: Any, rows: int) -> list[float]:
        progress = self._progress
        progress.started_s[0] = begun = time.monotonic()
        progress.states[0] = _IN_WORK
        try:
            if failures := copy_context().run(function, whole):
                self._reply("failed", failures)
            progress.states[0] = _DONE
        except BaseException as error:
            self._reply("failed", [(list(range(rows)), failure_of(error))])
            progress.states[0] = _FAILED
        return [begun, time.monotonic()]

    def _timings(self, batch: pa.RecordBatch, begun_s: Any) -> list[Counted]:
        """Count how long the calls took, and how late they began by this machine's clock."""
        late_s = np.array([])
        if self._due_at is not None:
            column = batch.column(self._due_at)
            if self._job.one_by_one:
                column = column.slice(0, len(begun_s) - 1)  # after a Hold, there were fewer calls
            due = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            first = due.is_valid().to_numpy(zero_copy_only=False)  # retries have no due time
            due_s = due.drop_null().to_numpy() / 1e6
            called_s = begun_s[:-1] + (time.time() - time.monotonic())
            called_s = called_s[first] if self._job.one_by_one else called_s[0]
            late_s = np.maximum(called_s - due_s, 0)
        return [
            _counted(self._bounds.durations.bounds, np.diff(begun_s)),
            _counted(self._bounds.latenesses.bounds, late_s),
        ]

    def _next_batch(self) -> pa.RecordBatch | None:
        if not self._poll.poll(self._job.idle_s * 1000):
            return None
        size = int.from_bytes(self._read(LENGTH_BYTES), "big")
        with pa.ipc.open_stream(pa.py_buffer(self._read(size))) as stream:
            return stream.read_next_batch()

    def _read(self, size: int) -> bytearray:
        content = bytearray(size)
        view, at = memoryview(content), 0
        while at < size:
            got = os.readv(self._requests, [view[at:]])
            if not got:
                raise _ParentGone
            at += got
        return content

    def _reply(self, *frame: Any) -> None:
        content = json.dumps(frame).encode()
        write_all(self._replies, len(content).to_bytes(LENGTH_BYTES, "big") + content)


def _is_due_time(field: StructField) -> bool:
    return field.name.lower() == "duetime" and type(field.dataType) is TimestampType


def _counted(bounds: Sequence[float], values: Any) -> Counted:
    counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    return counts.tolist(), float(values.sum())


def rows_of(batch: pa.RecordBatch, schema: StructType) -> list[Row]:
    """Convert a batch to the rows that ``collect()`` gives.

    Most columns need no conversion but Arrow's own. Spark converts each time by way of an object
    with a zone, which takes eight times as long as all other columns of the source, and forgets
    which of two equal hours it is when clocks are set back.
    """
    names = schema.fieldNames()
    columns = zip(batch.columns, schema.fields, strict=True)
    values = zip(*(_values_of(column, field.dataType) for column, field in columns), strict=True)
    rows = [tuple.__new__(Row, of_row) for of_row in values]
    for row in rows:
        row.__fields__ = names
    return rows


def _values_of(column: pa.Array, of_type: DataType) -> list[Any]:
    if type(of_type) in _AS_ARROW_GIVES_THEM:
        return column.to_pylist()  # type: ignore[no-any-return]
    if type(of_type) is TimestampType:
        stamps = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        # Many messages of a batch have the same time.
        times = {stamp: of_type.fromInternal(stamp) for stamp in set(stamps)}
        return [times[stamp] for stamp in stamps]
    table = pa.table([column], names=["value"])
    one = StructType([StructField("value", of_type)])
    return [row[0] for row in ArrowTableToRowsConversion.convert(table, one)]


def write_all(file: int, content: Any) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _failures_of_call(function: Callable[[Any], Any], rows: int, whole: Any) -> Failures:
    return failures_of(function(whole), rows)


def failures_of(returned: Any, rows: int) -> Failures:
    """Convert the result of a function of ``rows`` rows to the positions that failed, and how.

    Accepted: None; an iterable of positions from 0; a mask of ``rows`` booleans; a dict of
    positions and the exception for each, such as a Retry, Bury, Snooze or Hold.
    """
    if not isinstance(returned, Mapping):
        failed = failed_rows(returned, rows)
        return [(failed, Failure("the function returned it as failed"))] if failed else []
    positions: dict[Failure, list[int]] = {}
    for position in _positions(list(returned), rows):
        error = returned[position]
        if not isinstance(error, BaseException):
            raise TypeError(f"The function returned {_short(error)}. Accepted: an exception.")
        positions.setdefault(failure_of(error), []).append(position)
    return [(at, failure) for failure, at in positions.items()]


def failed_rows(returned: Any, rows: int) -> list[int]:
    """Convert positions or a mask to sorted positions without duplicates."""
    if returned is None:
        return []
    accepted = _accepted(rows)
    if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
        raise TypeError(f"The function returned {_short(returned)}. {accepted}")
    values = returned.to_pylist() if isinstance(returned, pa.Array | pa.ChunkedArray) else returned
    values = list(islice(values, rows + 1))
    if values and all(isinstance(value, bool | np.bool_) for value in values):
        if len(values) != rows:
            more = "more" if len(values) > rows else len(values)
            raise ValueError(f"The function returned a mask of {more} booleans. {accepted}")
        return [at for at, failed in enumerate(values) if failed]
    return _positions(values, rows)


def _accepted(rows: int) -> str:
    return (
        f"Accepted: None, positions 0 to {rows - 1}, a mask of {rows} booleans, or a dict of "
        "positions and exceptions."
    )


def _positions(values: list[Any], rows: int) -> list[int]:
    accepted = _accepted(rows)
    for value in values:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise TypeError(f"The function returned {_short(value)} as a position. {accepted}")
        if not 0 <= value < rows:
            raise ValueError(f"The function returned the position {value}. {accepted}")
    if len(values) > rows:
        raise ValueError(f"The function returned more positions than there are rows. {accepted}")
    return sorted({int(value) for value in values})


def _short(value: Any) -> str:
    # repr could show the content of a message.
    return f"a {type(value).__name__}"


def _detach(kept: tuple[int, int]) -> None:
    """Separate this process from what a fork inherits: session, signals, descriptors."""
    os.setsid()  # a process group, so that killing it ends processes that the function started, too
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _redirect_inherited_files(kept)
    # Processes that the function forks must not hold the pipes open, or answer in them.
    for file in kept:
        os.register_at_fork(after_in_child=partial(os.close, file))


def _redirect_inherited_files(kept: tuple[int, int]) -> None:
    """Redirect inherited descriptors, such as the worker's socket to the JVM, to /dev/null.

    If they were closed, the function could open a file under the same number, and a Python object
    of the parent that is flushed here would write into it.
    """
    with open(os.devnull, "r+b", buffering=0) as null:
        stay = {1, 2, null.fileno(), *kept}
        for file in {int(name) for name in os.listdir("/dev/fd")} - stay:
            # The descriptor of the listing itself is closed by now.
            with contextlib.suppress(OSError):
                os.fstat(file)
                os.dup2(null.fileno(), file, inheritable=file == 0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


class TracedCalls:
    """Spans of calls, for rows of one schema that has headers, if there is a tracer provider."""

    def __init__(self, schema: StructType) -> None:
        positions = {name.lower(): at for at, name in enumerate(schema.names)}
        self._at = [positions[name] for name in _TRACED_COLUMNS if name in positions]
        # Compared as texts, which do not say what may be null.
        at = positions.get("headers")
        is_readable = at is not None and schema[at].dataType.simpleString() == _TYPE_OF_HEADERS
        self._has_columns = is_readable and len(self._at) == len(_TRACED_COLUMNS)
        self._wake = threading.Event()
        self._flusher: threading.Thread | None = None

    def is_on(self) -> bool:
        return self._has_columns and is_on()

    def of_message(self, message: Any) -> AbstractContextManager["Span | None"]:
        topic, slot, claim_id, headers = (message[at] for at in self._at)
        return process_span(topic, slot, [_pairs(headers)], group=_group_of(claim_id))

    def of_batch(self, batch: pa.RecordBatch) -> AbstractContextManager["Span | None"]:
        """Open the span of a call for all messages of a batch, which come from one claim."""
        topic, slot, claim_id = (batch.column(at)[0].as_py() for at in self._at[:-1])
        column = batch.column(self._at[-1]).to_pylist()
        headers = [_pairs(one and one.values() for one in found or ()) for found in column]
        return process_span(topic, slot, headers, group=_group_of(claim_id), batch=True)

    def flush_soon(self) -> None:
        """Export ended spans in a thread: Spark often kills this process without warning."""
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._flush, daemon=True)
            self._flusher.start()
        self._wake.set()

    def _flush(self) -> None:
        from opentelemetry import trace

        while self._wake.wait():
            self._wake.clear()
            flush = getattr(trace.get_tracer_provider(), "force_flush", None)
            if flush is not None:  # only the SDK's providers have it
                with suppress(Exception):
                    flush()


def _pairs(headers: Iterable[Iterable[Any]] | None) -> Headers:
    """Convert the headers of a message to pairs, without those that the user has made null."""
    pairs = (tuple(one) for one in headers or () if one is not None)
    return [(name, value) for name, value in pairs if name is not None]


def _group_of(claim_id: str) -> str:
    with suppress(InvalidOption):  # the user may have changed the column
        return ConsumerName.parse(ClaimId.parse(claim_id).consumer).group
    return ""
