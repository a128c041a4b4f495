"""Changes of very many dead messages, which run beside the pages until somebody stops them."""

import itertools
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rmq_spark.client.dead_pages import purge_page, requeue_page
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import Bounds, Page, QueueKind
from rmq_spark.topics.definition import group_text
from rmq_spark.topics.reasons import class_of
from rmq_spark.views.browsing import Position, pages_from
from rmq_spark.views.shown_texts import time_json

_log = logging.getLogger(__name__)

MOST_AT_ONCE = 4
JOBS_KEPT = 100


class Action(StrEnum):
    """What is done to dead messages."""

    REQUEUE = "requeue"
    PURGE = "purge"


class JobState(StrEnum):
    """The state of a job. A stopped or failed one can be resumed."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    DONE = "done"


@dataclass
class BulkJob:
    """A change of all dead messages of a queue, or of those that died of one class of reasons.

    score: theirs in the store, for a requeue. until_ms: it leaves later deaths alone: a message
    that dies again meanwhile must not come back again. total: the messages that were dead when it
    began. looked, done: how many it has read, and changed.
    """

    number: int
    action: Action
    queue: Queue
    user: str
    reason_class: str | None
    score: int
    until_ms: int
    total: int
    looked: int = 0
    done: int = 0
    state: JobState = JobState.RUNNING
    error: str = ""
    after: Position | None = None
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    def run(self) -> None:
        """Change messages until none is left, or somebody stops it."""
        try:
            bounds = Bounds(None, self.until_ms)
            for page in pages_from(self.queue, QueueKind.DEAD, self.after, bounds):
                if self._stop.is_set():
                    self._end(JobState.STOPPED)
                    return
                self._change(page)
        except RmqError as error:
            self.error = str(error)
            self._end(JobState.FAILED)
        except Exception as error:  # of this code: also then, the queue is free for other jobs
            _log.exception("rmq console: job %d has failed", self.number)
            self.error = f"{type(error).__name__}, see the console's log"
            self._end(JobState.FAILED)
        else:
            self._end(JobState.DONE)

    def _change(self, page: Page) -> None:
        chosen = self._chosen(page)
        if chosen.contents and self.action is Action.REQUEUE:
            self.done += requeue_page(self.queue, chosen, self.score)
        elif chosen.contents:
            self.done += purge_page(self.queue, chosen)
        self.looked += len(page.contents)
        self.after = Position(page.slot, page.scores[-1], page.contents[-1])

    def _chosen(self, page: Page) -> Page:
        if self.reason_class is None:
            return page
        classes = [class_of(reason or "") for reason in page.reasons()]
        return page.only([at for at, one in enumerate(classes) if one == self.reason_class])

    def _end(self, state: JobState) -> None:
        self.state = state
        _log.info(
            "rmq console: job %d of %s %s: %s of %s, group %s, %d messages changed",
            *(self.number, self.user, state, self.action, self.queue.definition.name),
            *(group_text(self.queue.keys.group), self.done),
        )

    def stop(self) -> None:
        """Let the job end after the messages that it changes now."""
        self._stop.set()

    def to_json(self) -> dict[str, Any]:
        """Convert the job to JSON fields."""
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
    """The jobs of this process, each in a thread of its own.

    They end with the process. What they have changed stays changed, and a new job does the rest.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, BulkJob] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def start(
        self, action: Action, queue: Queue, user: str, reason_class: str | None, score: int
    ) -> BulkJob:
        """Begin a job. Raises InvalidOption if too many run, or one runs on the same queue."""
        total = sum(queue.ask(reading.sizes, [QueueKind.DEAD], queue.slots))
        until_ms = queue.now_ms() + 1
        with self._lock:
            self._check_free(queue)
            job = BulkJob(
                next(self._numbers), action, queue, user, reason_class, score, until_ms, total
            )
            self._jobs[job.number] = job
            while len(self._jobs) > JOBS_KEPT:
                self._forget_oldest()
            self._run(job)
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

    def _forget_oldest(self) -> None:
        ended = (n for n, job in self._jobs.items() if job.state is not JobState.RUNNING)
        number = next(ended)
        del self._jobs[number], self._threads[number]

    def _run(self, job: BulkJob) -> None:
        job.state, job.error = JobState.RUNNING, ""
        job._stop.clear()
        thread = threading.Thread(target=job.run, name=f"rmq-job-{job.number}", daemon=True)
        self._threads[job.number] = thread
        thread.start()

    def resume(self, number: int) -> BulkJob:
        """Let a stopped or failed job go on where it has ended. Raises InvalidOption."""
        with self._lock:
            job = self.find(number)
            if job.state in (JobState.STOPPED, JobState.FAILED):
                self._check_free(job.queue)
                self._run(job)
            return job

    def stop(self, number: int) -> BulkJob:
        """Stop a job, and wait until it has. Raises InvalidOption for an unknown one."""
        job = self.find(number)
        job.stop()
        self._threads[number].join(timeout=10)
        return job

    def stop_all(self) -> None:
        """Stop all jobs."""
        for number in list(self._threads):
            if number in self._jobs:
                self.stop(number)

    def find(self, number: int) -> BulkJob:
        """Return a job. Raises InvalidOption for an unknown one."""
        job = self._jobs.get(number)
        if job is None:
            raise InvalidOption(f"There is no job {number}. Jobs end with the console.")
        return job

    def all(self) -> Sequence[BulkJob]:
        """Return the jobs, the latest first."""
        return list(self._jobs.values())[::-1]
