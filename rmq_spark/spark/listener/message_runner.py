"""The Python worker's side of the child process that runs the function of each_message.

::

    no child --fork, function loaded--> idle --batch--> working --done--> idle
       ^                                  |               |
       +---- ended by itself, unused -----+               |
       +---- time limit passed: killed; or it died -------+
                 the message in work has failed, the next one goes to a new child

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
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_spark.errors import UnusableFunction
from rmq_spark.spark.listener.message_child import LENGTH_BYTES, Job, Progress, run_child

# The most messages that a child gets at once: those in its pipe are in memory twice.
MESSAGES_AT_ONCE = 1024
# The longest wait for the child between checks whether it has ended, and whether to continue.
_LOOK_AFTER_S = 0.25
# With a time limit for a message, the longest time in which a child may load the function, unless
# the limit itself is longer.
LOADING_S = 60.0


@dataclass(frozen=True)
class Failure:
    """Rows of a batch that failed together, in order, and the reason."""

    rows: list[int]
    reason: str


# Takes the number of rows of a batch that were processed so far, and their failures; the list only
# grows. Returns whether to continue.
ShouldContinue = Callable[[int, list[Failure]], bool]
_STOPPED = "stopped"


class Stopped(Exception):
    """A batch that was stopped because ``should_continue`` returned False.

    worked: the number of rows that were processed, without a row in work. failures: those of them
    that failed.
    """

    def __init__(self, worked: int, failures: list[Failure]) -> None:
        super().__init__(f"stopped after {worked} rows")
        self.worked = worked
        self.failures = failures


@dataclass(frozen=True)
class _Attempt:
    """The result of one child for a batch: the number of processed rows, and their failures."""

    worked: int
    failures: list[Failure]
    is_stopped: bool = False


def _always(worked: int, failures: list[Failure]) -> bool:
    return True


def _shifted(failures: list[Failure], by: int) -> list[Failure]:
    """Return failures with all row numbers increased by ``by``."""
    return [Failure([by + row for row in failure.rows], failure.reason) for failure in failures]


class MessageRunner:
    """A runner of batches in a child process, which it replaces when the child hangs or dies."""

    def __init__(self, job: Job, loading_s: float = LOADING_S) -> None:
        self._job = job
        self._loading_s = loading_s
        self._progress = Progress(MESSAGES_AT_ONCE if job.one_by_one else 1)
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the child, or None without a child."""
        return self._child.pid if self._child else None

    def ended(self) -> bool:
        """Return whether no child runs. Closes a child that has ended by itself."""
        if self._child is not None and self._child.has_ended():
            self.close()
        return self._child is None

    def close(self) -> None:
        """Kill the child, if there is one."""
        if self._child is not None:
            self._child.kill()
            self._child.close()
            self._child = None

    def run(
        self,
        batch: pa.RecordBatch,
        limit_s: float | None = None,
        should_continue: ShouldContinue = _always,
    ) -> list[Failure]:
        """Call the function for every row of a batch, or for all at once. Returns the failures.

        batch: at most MESSAGES_AT_ONCE rows if the function gets single messages. limit_s: the time
        limit of each call; a call that takes longer is killed and counts as failed.
        should_continue: called several times a second. Raises UnusableFunction if the function
        cannot be loaded (with limit_s: within loading_s, or limit_s if that is longer), or if its
        process dies twice with no message in work. After the child has ended, raises Stopped if
        should_continue returns False, and any error that should_continue raises.
        """
        failures: list[Failure] = []
        done, made_no_progress = 0, False

        def should_continue_here(worked: int, failed: list[Failure]) -> bool:
            return should_continue(done + worked, failures + _shifted(failed, done))

        while done < batch.num_rows:
            attempt = self._attempt(batch.slice(done), limit_s, should_continue_here)
            failures += _shifted(attempt.failures, done)
            done += attempt.worked
            if attempt.is_stopped:
                raise Stopped(done, failures)
            if not attempt.worked and made_no_progress:
                raise UnusableFunction(
                    "The process of each_message's function ended twice before a message was "
                    "given to it. See the executor's stderr."
                )
            made_no_progress = not attempt.worked
        return failures

    def _attempt(
        self, batch: pa.RecordBatch, limit_s: float | None, should_continue: ShouldContinue
    ) -> _Attempt:
        """Process a batch with one child, until the batch or the child ends."""
        units = batch.num_rows if self._job.one_by_one else 1
        self._progress.reset(units)
        if self._child is None:
            self._child = _Child(self._job, self._progress)
        failures: list[Failure] = []

        def should_continue_here() -> bool:
            ended = self._progress.begun(units) - (self._progress.in_work(units) is not None)
            return should_continue(ended * batch.num_rows // units, failures)

        try:
            ending = self._exchange(self._child, batch, limit_s, failures, should_continue_here)
        except BaseException:
            self.close()  # a child in the middle of a batch cannot take another one
            raise
        if ending is None:
            return _Attempt(batch.num_rows, failures)
        stuck, begun = self._progress.in_work(units), self._progress.begun(units)
        is_stopped = ending == _STOPPED
        if stuck is not None:
            rows = [stuck] if self._job.one_by_one else list(range(batch.num_rows))
            # The child may have died between reporting a failure and marking it.
            is_reported = failures and (failures[-1].rows == rows or not self._job.one_by_one)
            if is_stopped and not is_reported:
                begun -= 1
            elif not is_reported:
                failures.append(Failure(rows, ending))
        return _Attempt(begun * batch.num_rows // units, failures, is_stopped)

    def _exchange(
        self,
        child: "_Child",
        batch: pa.RecordBatch,
        limit_s: float | None,
        failures: list[Failure],
        should_continue: Callable[[], bool],
    ) -> str | None:
        """Let a child process a batch. Returns None when it has, or else how the child ended."""
        late = late_to_begin = is_stopped = False
        bound_s = None if limit_s is None else max(limit_s, self._loading_s)
        begin_by = None if bound_s is None else time.monotonic() + bound_s
        ask_at = time.monotonic() + _LOOK_AFTER_S
        if child.send(batch, begin_by):
            while not child.ended:
                left_s = _LOOK_AFTER_S if limit_s is None else self._progress.left_s(limit_s)
                late = left_s <= 0
                late_to_begin = self._is_late_to_begin(begin_by)
                if late or late_to_begin or child.has_ended():
                    break
                if time.monotonic() >= ask_at:
                    ask_at = time.monotonic() + _LOOK_AFTER_S
                    is_stopped = not should_continue()
                if is_stopped:
                    break
                if begin_by is not None and not self._progress.begun(1):
                    left_s = min(left_s, max(0.0, begin_by - time.monotonic()))
                if self._process_frames(child.frames(min(left_s, _LOOK_AFTER_S)), failures):
                    child.loaded = True
                    return None
        else:
            late_to_begin = self._is_late_to_begin(begin_by)
        status = child.kill()
        done = self._process_frames(child.frames(0), failures)
        self.close()
        if done:
            return None
        if is_stopped:
            return _STOPPED
        if late_to_begin and not child.loaded:
            raise UnusableFunction(
                f"The function of each_message, {self._job.name.partition('-')[0]}, was not loaded "
                f"on the executor within {bound_s:g} s: its import hangs or takes longer. Set a "
                "longer timeout, or leave timeout out for no limit."
            )
        return f"TimeLimitExceeded: no end within {limit_s:g} s" if late else _exit_reason(status)

    def _is_late_to_begin(self, begin_by: float | None) -> bool:
        """Return whether no unit has begun by ``begin_by`` (monotonic), if that is given."""
        late = begin_by is not None and time.monotonic() >= begin_by
        return late and not self._progress.begun(1)

    @staticmethod
    def _process_frames(frames: list[Any], failures: list[Failure]) -> bool:
        """Add reported failures. Returns whether the batch is done. Raises UnusableFunction."""
        for kind, *values in frames:
            if kind == "failed":
                failures.append(Failure(*values))
            elif kind == "unusable":
                raise UnusableFunction(f"The function of each_message: {values[0]}")
            elif kind == "done":
                return True
        return False


class _Child:
    """One child process and its two pipes.

    ended: whether the child has closed its pipe of replies. loaded: whether it has completed a
    batch.
    """

    def __init__(self, job: Job, progress: Progress) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()  # otherwise both processes would write the buffered text
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            run_child(job, parent, requests, replies, progress)
        os.close(requests)
        os.close(replies)
        os.set_blocking(self._replies, False)
        os.set_blocking(self._requests, False)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)
        self._received = bytearray()
        self._status: int | None = None
        self._writable = select.poll()
        self._writable.register(self._requests, select.POLLOUT)
        self.ended = False
        self.loaded = False

    def send(self, batch: pa.RecordBatch, until: float | None) -> bool:
        """Send a batch. Returns whether the child took it, by ``until`` (monotonic) if given."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        content = sink.getvalue()
        for part in (content.size.to_bytes(LENGTH_BYTES, "big"), content):
            view = memoryview(part)
            while view:
                try:
                    view = view[os.write(self._requests, view) :]
                except BlockingIOError:  # the child does not read: it loads the function, or hangs
                    left_s = _LOOK_AFTER_S if until is None else until - time.monotonic()
                    if left_s <= 0 or self.has_ended():
                        return False
                    self._writable.poll(min(left_s, _LOOK_AFTER_S) * 1000)
                except BrokenPipeError:
                    return False
        return True

    def frames(self, wait_s: float) -> list[Any]:
        """Wait up to ``wait_s`` for frames of the child. Returns those that are complete."""
        if not self._poll.poll(max(0, wait_s) * 1000):
            return []
        while not self.ended:
            try:
                got = os.read(self._replies, 65_536)
            except BlockingIOError:
                break
            self._received += got
            self.ended = not got
        frames = []
        while len(self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "big")
            if len(self._received) < end:
                break
            frames.append(json.loads(self._received[LENGTH_BYTES:end]))
            del self._received[:end]
        return frames

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._status is not None or self._reaped(os.WNOHANG)

    def kill(self) -> int:
        """Kill the process and the processes that it has started. Returns its wait status."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reaped(0)
        assert self._status is not None  # noqa: S101 - waited for
        return self._status

    def close(self) -> None:
        """Close both pipes."""
        os.close(self._requests)
        os.close(self._replies)

    def _reaped(self, options: int) -> bool:
        """Note the status of the process if it has ended. Returns whether it has.

        options: of os.waitpid.
        """
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self._status = status
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # processes that the function has started
        return bool(pid)


def _exit_reason(status: int) -> str:
    """Describe how a process ended, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"ProcessEnded: killed by {signal.Signals(-code).name}"
    return f"ProcessEnded: it exited with status {code}"


_runners: dict[Job, MessageRunner] = {}


def runner_of(job: Job) -> MessageRunner:
    """Return this process's runner for a job. Its child is kept from task to task."""
    for other, runner in list(_runners.items()):
        if other != job and runner.ended():
            del _runners[other]
    if job not in _runners:
        _runners[job] = MessageRunner(job)
    return _runners[job]
