"""Counts of a batch of each_message: what its tasks tell the driver while they run.

A task that Spark kills returns nothing. So each task keeps its counts in Redis, in one hash a batch
(``listener:<id>``), and rewrites them while it works. When a batch ends early, the driver puts the
field ``ended`` beside them. A task that finds it stops, and writes its counts for the last time.

Counts are worth less than messages: where Redis does not take or give them, they are left out.
"""

import time
import uuid
from contextlib import suppress
from dataclasses import astuple, dataclass

from rmq_spark.errors import RmqError
from rmq_spark.topics.definition import listener_key
from rmq_spark.transport.connection import ConnectionOptions
from rmq_spark.transport.server import Server, shared_server

# A task looks as often whether its batch has ended early.
REPORT_AFTER_S = 0.25
# As long the driver waits for tasks of a batch that has ended early: Spark kills them after some
# three seconds, and those can tell nothing more.
_LONGEST_WAIT_S = 5.0
_LOOK_AFTER_S = 0.02
# Of a driver that died. A task writes far more often.
_KEPT_MS = 600_000
_ENDED = "ended"
_AT_WORK, _DONE = 0, 1


@dataclass(frozen=True)
class Counts:
    """Messages for which the function succeeded, for which it did not, and how many of the latter
    were left alone.
    """

    succeeded: int = 0
    failed: int = 0
    left_alone: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.left_alone + other.left_alone,
        )


@dataclass(frozen=True)
class BatchCounts:
    """The counts of one batch in Redis."""

    connection: ConnectionOptions
    key: str

    @staticmethod
    def new(connection: ConnectionOptions, key_prefix: str) -> "BatchCounts":
        """Name the counts of a new batch. Nothing is written."""
        return BatchCounts(connection, listener_key(uuid.uuid4().hex, key_prefix))

    def take(self) -> dict[str, Counts]:
        """Remove the counts, and return them by task."""
        with suppress(RmqError):
            tasks = self._read()
            if tasks:
                self.server().command("UNLINK", self.key)
            return {task: counts for task, (counts, _) in tasks.items()}
        return {}

    def end(self) -> dict[str, Counts]:
        """Stop the tasks that are still at work, then do as ``take``."""
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
        """This process's connection. It tries nothing twice: messages do not wait for counts."""
        return shared_server(self.connection, patience_s=0)

    def _read(self) -> dict[str, tuple[Counts, bool]]:
        """The counts by task, and whether the task is still at work."""
        reply = self.server().command("HGETALL", self.key)
        pairs = (
            reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        )
        tasks = {}
        for task, text in ((name.decode(), text) for name, text in pairs):
            if task != _ENDED:
                *counts, state = map(int, text.split())
                tasks[task] = (Counts(*counts), state == _AT_WORK)
        return tasks


class TaskCounts:
    """What one task writes. task: its name, unique in the batch."""

    def __init__(self, batch: BatchCounts, task: str) -> None:
        self._batch = batch
        self._task = task
        self._written_s = 0.0
        self._is_refused = False

    def write(self, counts: Counts, is_done: bool = False) -> bool:
        """Write the counts, unless they were written just now. Returns whether to go on.

        is_done: the task writes no more; one that has written nothing writes nothing now.
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
            self._is_refused = True  # such as by a server that is full
            return True
        return not replies[-1]
