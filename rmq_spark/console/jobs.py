"""Changes of very many dead messages, which run beside the pages until somebody stops them."""

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rmq_spark.client.queue import Queue
from rmq_spark.client.repair import purge_page, requeue_page
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.inspect.browse import pages_from
from rmq_spark.inspect.fields import time_json
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import Bounds, Page, Position, QueueKind
from rmq_spark.topics.definition import group_text

_log = logging.getLogger(__name__)

MOST_AT_ONCE = 4
JOBS_KEPT = 100
STOPS_WITHIN_S = 10.0


class Action(StrEnum):
    REQUEUE = "requeue"
    PURGE = "purge"


class JobState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    DONE = "done"


@dataclass
class BulkJob:
    """A change of all dead messages of a queue, or of those that died of one class of reasons.

    class_of: how reasons are classed. score: theirs in the store, for a requeue. until_ms: it
    leaves later deaths alone: a message that dies again meanwhile must not come back again. total:
    the messages that were dead when it began. looked, done: how many it has read, and changed.
    """

    number: int
    action: Action
    queue: Queue
    user: str
    reason_class: str | None
    class_of: Callable[[str], str]
    score: int
    until_ms: int
    total: int
    looked: int = 0
    done: int = 0
    state: JobState = JobState.RUNNING
    error: str = ""
    after: Position | None = None
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _thread: threading.Thread | None = None

    def run(self) -> None:
        """Begin, or go on where it has ended, in a thread of its own."""
        self.state, self.error = JobState.RUNNING, ""
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._run, name=f"rmq-job-{self.number}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Let the job end after the messages that it changes now, and wait a while for that."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOPS_WITHIN_S)

    def _run(self) -> None:
        try:
            bounds = Bounds(None, self.until_ms)
            for page in pages_from(self.queue, QueueKind.DEAD, self.after, bounds):
                if self._stop.is_set():
                    return self._end(JobState.STOPPED)
                self._change(page)
            self._end(JobState.DONE)
        except RmqError as error:
            self._end(JobState.FAILED, str(error))
        except Exception as error:  # of this code: also then, the queue is free for other jobs
            _log.exception("rmq console: job %d has failed", self.number)
            self._end(JobState.FAILED, f"{type(error).__name__}, see the console's log")

    def _change(self, page: Page) -> None:
        chosen = self._chosen(page)
        if chosen.contents and self.action is Action.REQUEUE:
            self.done += requeue_page(self.queue, chosen, self.score)
        elif chosen.contents:
            self.done += purge_page(self.queue, chosen)
        self.looked += len(page.contents)
        self.after = page.position(-1)

    def _chosen(self, page: Page) -> Page:
        reason = self.reason_class
        return page if reason is None else page.of_reason(reason, self.class_of)

    def _end(self, state: JobState, error: str = "") -> None:
        self.error, self.state = error, state
        _log.info(
            "rmq console: job %d of %s %s: %s of %s, group %s, %d messages changed",
            *(self.number, self.user, state, self.action, self.queue.definition.name),
            *(group_text(self.queue.keys.group), self.done),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.number,
            "action": self.action.value,
            "topic": self.queue.definition.name,
            "group": group_text(self.queue.keys.group),
            "reason": self.reason_class,
            "user": self.user,
            "state": self.state.value,
            "total": self.total,
            "looked": self.looked,
            "changed": self.done,
            "diedBefore": time_json(self.until_ms),
            "error": self.error,
        }


class BulkJobs:
    """The jobs of this process. They end with it; a new job does the rest."""

    def __init__(self, class_of: Callable[[str], str]) -> None:
        self._class_of = class_of
        self._jobs: dict[str, BulkJob] = {}  # by their numbers
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def start(
        self, action: Action, queue: Queue, user: str, reason_class: str | None, score: int
    ) -> BulkJob:
        total = sum(queue.ask(reading.sizes, [QueueKind.DEAD], queue.slots))
        until_ms = queue.now_ms() + 1
        with self._lock:
            self._check_free(queue)
            chosen = reason_class, self._class_of
            number = next(self._numbers)
            job = BulkJob(number, action, queue, user, *chosen, score, until_ms, total)
            self._jobs[str(job.number)] = job
            if len(self._jobs) > JOBS_KEPT:
                ended = (n for n, job in self._jobs.items() if job.state is not JobState.RUNNING)
                del self._jobs[next(ended)]
            job.run()
        return job

    def _check_free(self, queue: Queue) -> None:
        running = [job for job in self._jobs.values() if job.state is JobState.RUNNING]
        for job in running:
            if job.queue.keys == queue.keys:
                raise InvalidOption(
                    f"Job {job.number} changes the dead messages of this queue already. Stop it, "
                    "or wait until it is done."
                )
        if len(running) >= MOST_AT_ONCE:
            raise InvalidOption(f"{len(running)} jobs run already. Stop one, or wait.")

    def resume(self, number: str) -> BulkJob:
        with self._lock:
            job = self.find(number)
            if job.state in (JobState.STOPPED, JobState.FAILED):
                self._check_free(job.queue)
                job.run()
            return job

    def stop(self, number: str) -> BulkJob:
        job = self.find(number)
        job.stop()
        return job

    def stop_all(self) -> None:
        for job in self.all():
            job.stop()

    def find(self, number: str) -> BulkJob:
        job = self._jobs.get(number)
        if job is None:
            raise InvalidOption(f"There is no job {number[:20]!r}. Jobs end with the console.")
        return job

    def all(self) -> Sequence[BulkJob]:
        return list(self._jobs.values())[::-1]
