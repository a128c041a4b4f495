"""Counts of an each_message batch, which its tasks report to the driver while they run.

A task that Spark kills returns nothing. Each task therefore writes its counts to Redis while it
works, into one hash for each batch (``listener:<id>``). When a batch ends early, the driver adds
the field ``ended`` to the hash. A task that finds this field writes its counts once more and stops.

Messages matter more than counts: if Redis does not accept or return counts, they are left out.
"""

import time
import uuid
from contextlib import suppress
from dataclasses import astuple, dataclass

from rmq_spark.errors import RmqError
from rmq_spark.topics.keys import listener_key
from rmq_spark.transport.connection import ConnectionOptions
from rmq_spark.transport.server import Server
from rmq_spark.transport.shared_servers import shared_server

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
    """Numbers of messages.

    succeeded, failed: messages for which the function succeeded or failed. left_alone: failed
    messages that were not rolled back.
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
    """The counts of one batch in Redis, as the driver uses them."""

    connection: ConnectionOptions
    key: str

    @staticmethod
    def new(connection: ConnectionOptions, key_prefix: str) -> "BatchCounts":
        """Choose the key for the counts of a new batch. Nothing is written."""
        return BatchCounts(connection, listener_key(uuid.uuid4().hex, key_prefix))

    def take(self) -> dict[str, Counts]:
        """Remove the counts. Returns them by task."""
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
        """Return this process's connection. It retries nothing: messages do not wait for counts."""
        return shared_server(self.connection, patience_s=0)

    def _read(self) -> dict[str, tuple[Counts, bool]]:
        """Read the counts of each task, and whether the task is still at work."""
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
    """The counts that one task writes. task: its name, unique in the batch."""

    def __init__(self, batch: BatchCounts, task: str) -> None:
        self._batch = batch
        self._task = task
        self._written_s = 0.0
        self._is_refused = False

    def write(self, counts: Counts, is_done: bool = False) -> bool:
        """Write the counts, at most every REPORT_AFTER_S. Returns whether the task should continue.

        is_done: whether this is the last write, which is never skipped, unless the task has written
        nothing before.
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
