"""The Python worker's side of the child process that runs the function of each_message.

::

    no child --fork, function loaded--> idle --batch--> working --done--> idle
       ^                                  |               |
       +---- ended by itself, unused -----+               |
       +---- time limit passed: killed; or it died -------+
                 the message in progress has failed, the next one goes to a new child

A time limit also bounds loading: a function that hangs while it is loaded raises UnusableFunction.

The child is a fork, not a fresh interpreter. A fork takes some 10 ms; a fresh interpreter takes a
second to import pyspark and pyarrow, and a poison message that hangs costs a child each time. A
fork also has the sys.path, files and broadcasts that Spark has prepared for the worker. Spark's own
workers are forks, so code that does not survive a fork does not run under Spark anyway. Only the
child imports the function's modules. The threads of the worker (pools of Arrow and BLAS) are idle
during the fork, because the thread that gives them work is the one that forks.

No library does this as cheaply. Here a message costs 4 us of processor time, with a time limit and
a failure of its own. As a task of a pool it costs 110 us with pebble, 160 with concurrent.futures,
and 250 with loky. As one task for 1024 messages it costs 7 us with pebble, but all of them share
one limit and one failure. Pebble also leaves behind processes that the function has started, and a
child that hangs when its worker is killed.
"""

import contextlib
import json
import math
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import pyarrow as pa

from rmq_spark.client.receiving.child_process import LOADING_S, ChildProcess, ended_by, too_long
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.errors import UnusableFunction
from rmq_spark.spark.listener.child import LENGTH_BYTES, Job, Progress, run_child
from rmq_spark.topics.verdicts import Ending, Failure

# The most messages that a child gets at once: those in its pipe are in memory twice.
MESSAGES_AT_ONCE = 1024
# The longest wait for the child between checks whether it has ended, and whether to continue.
_LOOK_AFTER_S = 0.25


class FailedRows(NamedTuple):
    rows: list[int]
    failure: Failure


# Takes the number of rows of a batch that were processed so far, and their failures; the list only
# grows. Returns whether to continue.
ShouldContinue = Callable[[int, list[FailedRows]], bool]


class Stopped(Exception):
    """A batch that ``should_continue`` stopped after ``worked`` rows, without the one it ran."""

    def __init__(self, worked: int, failures: list[FailedRows]) -> None:
        super().__init__(f"stopped after {worked} rows")
        self.worked = worked
        self.failures = failures


class _Ending(Enum):
    DONE = auto()
    DIED = auto()
    STOPPED = auto()
    LATE = auto()  # a call takes too long
    NOT_BEGUN = auto()  # in time, so the function may still be loading


@dataclass
class _Work:
    """How far a batch has come.

    A child gets the rows from ``first`` on, in units: calls of the function.
    """

    job: Job
    progress: Progress
    rows: int
    first: int = 0
    failures: list[FailedRows] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)

    @property
    def units(self) -> int:
        return self.rows - self.first if self.job.one_by_one else 1

    def ended(self) -> int:
        ended = self.progress.begun(self.units) - (self.progress.in_work(self.units) is not None)
        return self._up_to(ended)

    def note(self, frames: list[Any]) -> bool:
        """Add reported failures. Returns whether all is done."""
        for kind, *values in frames:
            if kind == "failed":
                for rows, (reason, ending, *rest) in values[0]:
                    failure = Failure(reason, Ending(ending), *rest)
                    self.failures.append(FailedRows([self.first + row for row in rows], failure))
            elif kind == "unusable":
                raise UnusableFunction(f"The function of each_message: {values[0]}")
            elif kind == "done":
                durations, latenesses = values[0]
                self.timings.durations.add_all(*durations)
                self.timings.latenesses.add_all(*latenesses)
                return True
        return False

    def pass_on(self, reason: str | None) -> None:
        """Go on behind what the last child has begun. reason: why the rows in it have failed."""
        begun = self.progress.begun(self.units)
        stuck = self.progress.in_work(self.units)
        if stuck is not None:
            rows = [self.first + stuck] if self.job.one_by_one else list(range(self.rows))
            # The child may have died between reporting a failure and marking it.
            last = self.failures[-1].rows if self.failures else None
            is_reported = last == rows if self.job.one_by_one else last is not None
            if not is_reported and reason is not None:
                self.failures.append(FailedRows(rows, Failure(reason)))
            elif not is_reported:
                begun -= 1
        # The report of a Hold gives back the rows behind it as unread.
        holds = self.failures and self.failures[-1].failure.holds
        self.first = self.rows if holds else self._up_to(begun)

    def _up_to(self, units: int) -> int:
        return self.first + units * (self.rows - self.first) // self.units


class MessageRunner:
    def __init__(self, job: Job, loading_s: float = LOADING_S) -> None:
        self._job = job
        self._loading_s = loading_s
        self._progress = Progress(MESSAGES_AT_ONCE if job.one_by_one else 1)
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child else None

    def ended(self) -> bool:
        """Return whether no child runs. Closes a child that has ended by itself."""
        if self._child is not None and not self._child.process.is_alive():
            self.close()
        return self._child is None

    def close(self) -> None:
        if self._child is not None:
            self._child.process.kill()
            self._child.close()
            self._child = None

    def run(
        self,
        batch: pa.RecordBatch,
        limit_s: float | None = None,
        should_continue: ShouldContinue = lambda worked, failures: True,
        timings: Timings | None = None,
    ) -> list[FailedRows]:
        """Call the function for every row of a batch, or for all at once.

        Returns the failures. batch: at most MESSAGES_AT_ONCE rows if the function gets single
        messages. limit_s: of each call; one that takes longer is killed and has failed.
        should_continue: called several times a second. timings: gets those of the calls, without
        the last ones of a process that ends. Raises UnusableFunction if the function
        cannot be loaded (with limit_s: within loading_s, or limit_s if that is longer), or if its
        process dies twice with no message in progress. After the child has ended, raises Stopped if
        should_continue returns False, and any error that should_continue raises.
        """
        work = _Work(self._job, self._progress, batch.num_rows, timings=timings or Timings())
        stayed_at = -1
        while work.first < work.rows:
            first = work.first
            try:
                is_stopped = self._go_on(batch, work, limit_s, should_continue)
            except BaseException:
                self.close()  # a child in the middle of a batch cannot take another one
                raise
            if is_stopped:
                raise Stopped(work.first, work.failures)
            if work.first == first == stayed_at:
                raise UnusableFunction(
                    "The process of each_message's function ended twice before a message was "
                    "given to it. See the executor's stderr."
                )
            stayed_at = first
        return work.failures

    def _go_on(
        self,
        batch: pa.RecordBatch,
        work: _Work,
        limit_s: float | None,
        should_continue: ShouldContinue,
    ) -> bool:
        self._progress.reset(work.units)
        if self._child is None:
            self._child = _Child(self._job, self._progress)
        child = self._child
        child.give(batch.slice(work.first))
        ending = self._exchange(child, work, limit_s, should_continue)
        if ending is not _Ending.DONE:
            exit_code = child.process.kill()
            if work.note(child.frames(0)):
                ending = _Ending.DONE
            self.close()
        if ending is _Ending.DONE:
            child.loaded = True
            work.first = work.rows
        elif ending is _Ending.STOPPED:
            work.pass_on(None)
            return True
        elif ending is _Ending.NOT_BEGUN and not child.loaded:
            raise UnusableFunction(
                f"The function of each_message, {self._job.name.partition('-')[0]}, was not loaded "
                f"on the executor within {max(limit_s or 0, self._loading_s):g} s: its import "
                "hangs or takes longer. Set a longer timeout, or leave timeout out for no limit."
            )
        elif ending is _Ending.LATE:
            work.pass_on(too_long(limit_s))
        else:
            work.pass_on(ended_by(exit_code))
        return False

    def _exchange(
        self, child: "_Child", work: _Work, limit_s: float | None, should_continue: ShouldContinue
    ) -> _Ending:
        limit_s = math.inf if limit_s is None else limit_s
        begin_by_s = time.monotonic() + max(limit_s, self._loading_s)
        ask_at_s = time.monotonic() + _LOOK_AFTER_S
        while True:
            has_begun = self._progress.begun(1)
            now = time.monotonic()
            left_s = self._progress.left_s(limit_s) if has_begun else begin_by_s - now
            if left_s <= 0:
                return _Ending.LATE if has_begun else _Ending.NOT_BEGUN
            if child.ended or not child.process.is_alive():
                return _Ending.DIED
            if now >= ask_at_s:
                ask_at_s = now + _LOOK_AFTER_S
                if not should_continue(work.ended(), work.failures):
                    return _Ending.STOPPED
            if work.note(child.frames(min(left_s, _LOOK_AFTER_S))):
                return _Ending.DONE


class _Child:
    """One child process and its two pipes. loaded: whether it has completed a batch."""

    def __init__(self, job: Job, progress: Progress) -> None:
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            requests, self._requests, self._replies, replies = pipes
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, ValueError, OSError):
                    stream.flush()  # otherwise both processes would write the buffered text
            pid = os.fork()
            if pid == 0:
                run_child(job, requests, replies, progress)
            self.process = ChildProcess(pid)
        except BaseException:
            for file in pipes:
                os.close(file)
            raise
        os.close(requests)
        os.close(replies)
        os.set_blocking(self._replies, False)
        os.set_blocking(self._requests, False)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)
        self._unsent: list[memoryview] = []
        self._received = bytearray()
        self.ended = False
        self.loaded = False

    def give(self, batch: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        content = sink.getvalue()
        self._unsent = [memoryview(content), memoryview(content.size.to_bytes(LENGTH_BYTES, "big"))]
        self._poll.register(self._requests, select.POLLOUT)
        self._send()

    def frames(self, wait_s: float) -> list[Any]:
        """Wait up to ``wait_s`` for frames of the child. Returns those that are complete."""
        for file, _ in self._poll.poll(max(0, wait_s) * 1000):
            if file == self._requests:
                self._send()
            else:
                self._receive()
        frames = []
        while len(self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "big")
            if len(self._received) < end:
                break
            frames.append(json.loads(self._received[LENGTH_BYTES:end]))
            del self._received[:end]
        return frames

    def close(self) -> None:
        os.close(self._requests)
        os.close(self._replies)

    def _send(self) -> None:
        """Send what the pipe takes: a child that loads the function, or hangs, does not read."""
        try:
            while self._unsent:
                part = self._unsent.pop()
                sent = os.write(self._requests, part)
                if sent < len(part):
                    self._unsent.append(part[sent:])
        except BlockingIOError:
            self._unsent.append(part)
            return
        except BrokenPipeError:
            self._unsent.clear()
        self._poll.unregister(self._requests)

    def _receive(self) -> None:
        while not self.ended:
            try:
                got = os.read(self._replies, 65_536)
            except BlockingIOError:
                return
            self._received += got
            self.ended = not got


_runners: dict[Job, MessageRunner] = {}


def runner_of(job: Job) -> MessageRunner:
    """Return this process's runner for a job. Its child is kept from task to task."""
    for other, runner in list(_runners.items()):
        if other != job and runner.ended():
            del _runners[other]
    if job not in _runners:
        _runners[job] = MessageRunner(job)
    return _runners[job]
