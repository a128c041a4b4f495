"""The Python worker's side of the child process that runs the function of each_message.

::

    no child --fork, function loaded--> idle --batch--> working --done--> idle
       ^                                  |               |
       +---- ended by itself, unused -----+               |
       +---- time limit passed: killed; or it died -------+
                 the message in work has failed, the next one goes to a new child

With a time limit, loading is bounded too: a function that hangs there is UnusableFunction.

Why a fork and not a fresh interpreter: it takes some 10 ms instead of the second in which one
imports pyspark and pyarrow, and a poison message that hangs costs one each time; sys.path, files
and broadcasts that Spark has prepared for the worker are there. Spark's own workers are forks, so
code that does not survive a fork does not run under Spark anyhow; the function's modules are
imported in the child alone. What threads the worker has (pools of Arrow and BLAS) are idle at that
moment: the thread that gives them work is the one that forks.

Why no library: a message costs 4 us of processor time here, with a time limit and a failure of its
own. As a task of a pool it costs 110 us with pebble, 160 with concurrent.futures, 250 with loky. As
one task for 1024 messages it costs 7 us with pebble, and they share one limit and one fate. Pebble
also leaves behind what the function has started, and a child that hangs when its worker is killed.
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

# A child gets no more at once: what is in its pipe is in memory twice.
MESSAGES_AT_ONCE = 1024
# The longest wait for the child without a look whether it has ended, or whether to go on.
_LOOK_AFTER_S = 0.25
# With a time limit for a message, so long may a child load the function; longer if the limit is.
LOADING_S = 60.0


@dataclass(frozen=True)
class Failure:
    """Rows of a batch, in order, that failed together, and why."""

    rows: list[int]
    reason: str


# Takes how many rows of a batch were worked on so far, and those that failed; the list only grows.
# Returns whether to go on.
GoesOn = Callable[[int, list[Failure]], bool]
_STOPPED = "stopped"


class Stopped(Exception):
    """The runner was told not to go on.

    worked: of the batch, in order; a row in work is not among them. failures: of these.
    """

    def __init__(self, worked: int, failures: list[Failure]) -> None:
        super().__init__(f"stopped after {worked} rows")
        self.worked = worked
        self.failures = failures


@dataclass(frozen=True)
class _Attempt:
    """What one child has done with a batch: rows it worked on, and those of them that failed."""

    worked: int
    failures: list[Failure]
    is_stopped: bool = False


def _always(worked: int, failures: list[Failure]) -> bool:
    return True


def _shifted(failures: list[Failure], by: int) -> list[Failure]:
    return [Failure([by + row for row in failure.rows], failure.reason) for failure in failures]


class MessageRunner:
    """Gives batches to a child, and replaces it when it hangs or dies."""

    def __init__(self, job: Job, loading_s: float = LOADING_S) -> None:
        self._job = job
        self._loading_s = loading_s
        self._progress = Progress(MESSAGES_AT_ONCE if job.one_by_one else 1)
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the child, None if there is none."""
        return self._child.pid if self._child else None

    def ended(self) -> bool:
        """Whether there is no child, or it has ended by itself."""
        if self._child is not None and self._child.has_ended():
            self.close()
        return self._child is None

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.kill()
            self._child.close()
            self._child = None

    def run(
        self, batch: pa.RecordBatch, limit_s: float | None = None, goes_on: GoesOn = _always
    ) -> list[Failure]:
        """Call the function for every row of a batch, or for all at once. Returns what failed.

        A batch of single messages has at most MESSAGES_AT_ONCE rows. limit_s: for each call; what
        takes longer is killed and has failed. goes_on: is asked several times a second. Raises
        UnusableFunction when the function cannot be loaded (with limit_s: within loading_s, or
        limit_s if that is longer), or its process dies again and again with no message in work.
        Raises Stopped when goes_on says so, and what goes_on raises; the child has ended then.
        """
        failures: list[Failure] = []
        done, in_vain = 0, False

        def goes_on_here(worked: int, failed: list[Failure]) -> bool:
            return goes_on(done + worked, failures + _shifted(failed, done))

        while done < batch.num_rows:
            attempt = self._attempt(batch.slice(done), limit_s, goes_on_here)
            failures += _shifted(attempt.failures, done)
            done += attempt.worked
            if attempt.is_stopped:
                raise Stopped(done, failures)
            if not attempt.worked and in_vain:
                raise UnusableFunction(
                    "The process of each_message's function ended twice before a message was "
                    "given to it. See the executor's stderr."
                )
            in_vain = not attempt.worked
        return failures

    def _attempt(self, batch: pa.RecordBatch, limit_s: float | None, goes_on: GoesOn) -> _Attempt:
        """Work with one child as far as it comes."""
        units = batch.num_rows if self._job.one_by_one else 1
        self._progress.reset(units)
        if self._child is None:
            self._child = _Child(self._job, self._progress)
        failures: list[Failure] = []

        def goes_on_here() -> bool:
            ended = self._progress.begun(units) - (self._progress.in_work(units) is not None)
            return goes_on(ended * batch.num_rows // units, failures)

        try:
            ending = self._exchange(self._child, batch, limit_s, failures, goes_on_here)
        except BaseException:
            self.close()  # half-way through a batch, no other can be given to it
            raise
        if ending is None:
            return _Attempt(batch.num_rows, failures)
        stuck, begun = self._progress.in_work(units), self._progress.begun(units)
        is_stopped = ending == _STOPPED
        if stuck is not None:
            rows = [stuck] if self._job.one_by_one else list(range(batch.num_rows))
            # It may have died between telling of a failure and marking it.
            told = failures and (failures[-1].rows == rows or not self._job.one_by_one)
            if is_stopped and not told:
                begun -= 1
            elif not told:
                failures.append(Failure(rows, ending))
        return _Attempt(begun * batch.num_rows // units, failures, is_stopped)

    def _exchange(
        self,
        child: "_Child",
        batch: pa.RecordBatch,
        limit_s: float | None,
        failures: list[Failure],
        goes_on: Callable[[], bool],
    ) -> str | None:
        """Returns None when the child has worked on the batch, else how it ended."""
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
                    is_stopped = not goes_on()
                if is_stopped:
                    break
                if begin_by is not None and not self._progress.begun(1):
                    left_s = min(left_s, max(0.0, begin_by - time.monotonic()))
                if self._heard_done(child.frames(min(left_s, _LOOK_AFTER_S)), failures):
                    child.loaded = True
                    return None
        else:
            late_to_begin = self._is_late_to_begin(begin_by)
        status = child.kill()
        done = self._heard_done(child.frames(0), failures)
        self.close()
        if done:
            return None
        if is_stopped:
            return _STOPPED
        if late_to_begin and not child.loaded:
            raise UnusableFunction(
                f"The function of each_message, {self._job.name.partition('-')[0]}, was not loaded "
                f"on the executor within {bound_s:g} s: its import hangs or takes longer. A longer "
                "timeout gives it more; without one it is not bounded."
            )
        return f"TimeLimitExceeded: no end within {limit_s:g} s" if late else _told(status)

    def _is_late_to_begin(self, begin_by: float | None) -> bool:
        late = begin_by is not None and time.monotonic() >= begin_by
        return late and not self._progress.begun(1)

    @staticmethod
    def _heard_done(frames: list[Any], failures: list[Failure]) -> bool:
        for kind, *told in frames:
            if kind == "failed":
                failures.append(Failure(*told))
            elif kind == "unusable":
                raise UnusableFunction(f"The function of each_message: {told[0]}")
            elif kind == "done":
                return True
        return False


class _Child:
    """One child process: its two pipes, and whether it has ended."""

    def __init__(self, job: Job, progress: Progress) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()  # what is buffered would come out of both processes
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
        self._heard = bytearray()
        self._status: int | None = None
        self._writable = select.poll()
        self._writable.register(self._requests, select.POLLOUT)
        self.ended = False
        self.loaded = False  # it has worked on a batch

    def send(self, batch: pa.RecordBatch, until: float | None) -> bool:
        """Whether the child took it, by a time (monotonic) if one is given."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        content = sink.getvalue()
        for part in (content.size.to_bytes(LENGTH_BYTES, "big"), content):
            view = memoryview(part)
            while view:
                try:
                    view = view[os.write(self._requests, view) :]
                except BlockingIOError:  # it does not read: it loads the function, or hangs
                    left_s = _LOOK_AFTER_S if until is None else until - time.monotonic()
                    if left_s <= 0 or self.has_ended():
                        return False
                    self._writable.poll(min(left_s, _LOOK_AFTER_S) * 1000)
                except BrokenPipeError:
                    return False
        return True

    def frames(self, wait_s: float) -> list[Any]:
        """What the child has told since; ended is set when it can tell nothing more."""
        if not self._poll.poll(max(0, wait_s) * 1000):
            return []
        while not self.ended:
            try:
                got = os.read(self._replies, 65_536)
            except BlockingIOError:
                break
            self._heard += got
            self.ended = not got
        frames = []
        while len(self._heard) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._heard[:LENGTH_BYTES], "big")
            if len(self._heard) < end:
                break
            frames.append(json.loads(self._heard[LENGTH_BYTES:end]))
            del self._heard[:end]
        return frames

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._status is not None or self._reaped(os.WNOHANG)

    def kill(self) -> int:
        """Ends it and what it has started; returns the status it ended with."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reaped(0)
        assert self._status is not None  # noqa: S101 - waited for
        return self._status

    def close(self) -> None:
        """Closes the pipes: it hears and tells nothing more."""
        os.close(self._requests)
        os.close(self._replies)

    def _reaped(self, options: int) -> bool:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self._status = status
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what the function has started
        return bool(pid)


def _told(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"ProcessEnded: killed by {signal.Signals(-code).name}"
    return f"ProcessEnded: it exited with status {code}"


_runners: dict[Job, MessageRunner] = {}


def runner_of(job: Job) -> MessageRunner:
    """This process's runner for a job; its child is kept from task to task."""
    for other, runner in list(_runners.items()):
        if other != job and runner.ended():
            del _runners[other]
    if job not in _runners:
        _runners[job] = MessageRunner(job)
    return _runners[job]
