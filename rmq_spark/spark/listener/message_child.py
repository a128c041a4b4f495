"""The child process in which the function of each_message runs, and what it shares with its parent.

It lives as long as the Python worker that forked it, so what the function opens stays open. Its
parent writes record batches into a pipe; the child answers in another with frames, JSON behind
their length: ``["failed", rows, reason]``, ``["done"]``, ``["unusable", reason]``.
Which message is in work, and since when, stands in shared memory: it costs no call for a message,
and is still there when the child is not.
"""

import contextlib
import ctypes
import inspect
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import StructType

LENGTH_BYTES = 8
# So long does Spark keep an idle Python worker, too.
IDLE_S = 60.0
LONGEST_REASON = 400
_PR_SET_PDEATHSIG = 1  # from Linux' sys/prctl.h
_PARENT_CHECK_S = 1.0
_WAITING, _IN_WORK, _DONE, _FAILED = range(4)


class Handing(StrEnum):
    """What the function gets: one message, or many as Arrow or pandas has them."""

    MESSAGE = "message"
    ARROW = "arrow"
    PANDAS = "pandas"


@dataclass(frozen=True)
class Job:
    """What a child is made for.

    name: tells apart functions that look alike. function: pickled; it is loaded in the child alone,
    so that nothing its modules open is shared with the parent or a later child. schema: of the
    rows, as JSON.
    """

    name: str
    function: bytes
    handing: Handing
    schema: str
    idle_s: float = IDLE_S

    @property
    def one_by_one(self) -> bool:
        """Whether the function gets single messages."""
        return self.handing is Handing.MESSAGE


class Progress:
    """How far the child is with what it was given, in memory that it shares with its parent.

    A unit is one call of the function. They are begun in order.
    """

    def __init__(self, units: int) -> None:
        self._memory = mmap.mmap(-1, 8 + units)
        view = memoryview(self._memory)
        self.started_s = view[:8].cast("d")  # monotonic, one clock for all processes; 0: in none
        self.states = view[8:]

    def reset(self, units: int) -> None:
        """Nothing is begun."""
        self.started_s[0] = 0.0
        self.states[:units] = bytes(units)

    def begun(self, units: int) -> int:
        """How many of so many units were begun."""
        first_waiting = self._memory.find(b"\0", 8, 8 + units)
        return units if first_waiting < 0 else first_waiting - 8

    def in_work(self, units: int) -> int | None:
        """The unit that was begun and has not ended."""
        last = self.begun(units) - 1
        return last if last >= 0 and self.states[last] == _IN_WORK else None

    def left_s(self, limit_s: float) -> float:
        """What is left of a time limit of the unit in work; all of it between units."""
        started = self.started_s[0]
        return limit_s - (time.monotonic() - started) if started else limit_s


def run_child(job: Job, parent: int, requests: int, replies: int, progress: Progress) -> None:
    """Works until the pipe of requests ends; does not return."""
    status = 1
    try:
        _detach(parent, (requests, replies))
        _Child(job, requests, replies, progress).serve()
        status = 0
    except _ParentGone:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)  # the parent's frames lie below this one and must not go on here


class _ParentGone(Exception):
    """The pipe of requests ended."""


class _Child:
    def __init__(self, job: Job, requests: int, replies: int, progress: Progress) -> None:
        self._job = job
        self._requests = requests
        self._replies = replies
        self._progress = progress
        self._schema = StructType.fromJson(json.loads(job.schema))

    def serve(self) -> None:
        try:
            function = pickle.loads(self._job.function)  # noqa: S301 - our driver's
        except BaseException as error:
            self._reply("unusable", f"it cannot be loaded on the executor: {reason_of(error)}")
            return
        while (batch := self._next_batch()) is not None:
            try:
                calls = self._messages(batch) if self._job.one_by_one else [self._whole(batch)]
            except Exception as error:
                self._reply("unusable", f"a batch cannot be read for it: {reason_of(error)}")
                return
            if self._job.one_by_one:
                self._call_each(function, calls)
            else:
                self._call_once(function, calls[0], batch.num_rows)
            self._progress.started_s[0] = 0.0
            _flush()
            self._reply("done")

    def _messages(self, batch: pa.RecordBatch) -> list[Any]:
        table = pa.Table.from_batches([batch])
        rows: list[Any] = ArrowTableToRowsConversion.convert(table, self._schema)
        return rows

    def _whole(self, batch: pa.RecordBatch) -> Any:
        return batch.to_pandas() if self._job.handing is Handing.PANDAS else batch

    def _call_each(self, function: Callable[[Any], Any], messages: list[Any]) -> None:
        states, started_s, now = self._progress.states, self._progress.started_s, time.monotonic
        for at, message in enumerate(messages):
            started_s[0] = now()
            states[at] = _IN_WORK
            try:
                returned = function(message)
                if returned is not None:
                    _refuse_unrun(returned)
                states[at] = _DONE
            except BaseException as error:  # SystemExit too is this message's alone
                # Told first: a failure that is marked has been told.
                self._reply("failed", [at], reason_of(error))
                states[at] = _FAILED

    def _call_once(self, function: Callable[[Any], Any], whole: Any, rows: int) -> None:
        progress = self._progress
        progress.started_s[0] = time.monotonic()
        progress.states[0] = _IN_WORK
        try:
            failed = failed_rows(function(whole), rows)
            if failed:
                self._reply("failed", failed, "the function returned it as failed")
            progress.states[0] = _DONE
        except BaseException as error:
            self._reply("failed", list(range(rows)), reason_of(error))
            progress.states[0] = _FAILED

    def _next_batch(self) -> pa.RecordBatch | None:
        """What the parent sends next; None after a long time without."""
        if not select.select([self._requests], [], [], self._job.idle_s)[0]:
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


def write_all(file: int, content: Any) -> None:
    """Writes everything. Raises BrokenPipeError."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def reason_of(error: BaseException) -> str:
    """An error's type, text and place, in one line of bounded length."""
    try:
        text = " ".join(str(error)[:LONGEST_REASON].split())
        # Half a surrogate pair, as JSON can hold it, is no UTF-8: Arrow would refuse the reason.
        text = text.encode("utf-8", "backslashreplace").decode()
    except Exception:
        text = "(its text cannot be read)"
    trace = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(trace[-1].filename)}:{trace[-1].lineno})" if trace else ""
    return f"{type(error).__name__}: {text}{place}"


def failed_rows(returned: Any, rows: int) -> list[int]:
    """The positions that a function of a batch of so many rows returned, each once, in order.

    Accepted: None; an iterable of positions from 0; a mask of as many booleans as there are rows.
    Raises TypeError, ValueError for anything else.
    """
    if returned is None:
        return []
    accepted = f"Accepted: None, positions 0 to {rows - 1}, or a mask of {rows} booleans."
    if isinstance(returned, str | bytes | dict) or not isinstance(returned, Iterable):
        raise TypeError(f"The function returned {_short(returned)}. {accepted}")
    values = returned.to_pylist() if isinstance(returned, pa.Array | pa.ChunkedArray) else returned
    values = list(islice(values, rows + 1))
    if values and all(isinstance(value, bool | np.bool_) for value in values):
        if len(values) != rows:
            more = "more" if len(values) > rows else len(values)
            raise ValueError(f"The function returned a mask of {more} booleans. {accepted}")
        return [at for at, failed in enumerate(values) if failed]
    for value in values:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise TypeError(f"The function returned {_short(value)} as a position. {accepted}")
        if not 0 <= value < rows:
            raise ValueError(f"The function returned the position {value}. {accepted}")
    if len(values) > rows:
        raise ValueError(f"The function returned more positions than there are rows. {accepted}")
    return sorted({int(value) for value in values})


def _short(value: Any) -> str:
    # No repr: it could show a content.
    return f"a {type(value).__name__}"


def _refuse_unrun(returned: Any) -> None:
    """A coroutine or generator that nobody runs has done nothing: its message is not done."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned):
        raise TypeError(f"The function returned {_short(returned)}, which nobody runs.")


def _detach(parent: int, kept: tuple[int, int]) -> None:
    """Takes leave of what a fork inherits: session, signals, descriptors."""
    os.setsid()  # a group of its own, so that killing it ends what the function has started, too
    _die_with(parent)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _let_go_of_files(kept)
    # What the function forks in turn must not hold the pipes open, nor answer in them.
    for file in kept:
        os.register_at_fork(after_in_child=partial(os.close, file))


def _die_with(parent: int) -> None:
    """No child outlives its worker, not even one that hangs: Spark gives its messages to others."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the line above
        os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.killpg(0, signal.SIGKILL)


def _let_go_of_files(kept: tuple[int, int]) -> None:
    """Makes /dev/null of every inherited descriptor, such as the worker's socket to the JVM.

    Not closed: a Python object of the parent that is flushed here must not find its number in use
    for a file of the function.
    """
    with open(os.devnull, "r+b", buffering=0) as null:
        stay = {1, 2, null.fileno(), *kept}
        for file in {int(name) for name in os.listdir("/dev/fd")} - stay:
            # The listing's own descriptor is gone by now.
            with contextlib.suppress(OSError):
                os.fstat(file)
                os.dup2(null.fileno(), file, inheritable=file == 0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
