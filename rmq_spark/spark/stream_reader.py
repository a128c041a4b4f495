"""The source as Spark calls it. What it does is in consumer_run and partition_reader."""

import logging
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rmq_spark.queue.errors import RmqError
from rmq_spark.queue.queue import Queue
from rmq_spark.spark.backlog import Backlog, backlog_figures
from rmq_spark.spark.consumer_run import ConsumerRun, open_queue
from rmq_spark.spark.offsets import Offset
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.partition_reader import RmqPartition, read_partition

_log = logging.getLogger(__name__)

# Stands for "no limit" in the default read limit, so that ReadAllAvailable in its place tells that
# the engine set it: Trigger.Once.
NO_LIMIT = 2**62


# How often Spark reports on a query without batches, by default.
COUNT_AGAIN_S = 10.0


@dataclass(frozen=True)
class _Reported:
    """The backlog as it was reported last: for which batch, when, and what."""

    batch: int | None
    counted_s: float
    figures: dict[str, Any]


class RmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands out due messages, batch by batch.

    Spark constructs it in two processes and pickles it to the executors; nothing is opened before
    the first call that needs it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._queue: Queue | None = None
        self._run: ConsumerRun | None = None
        self._backlog: Backlog | None = None
        self._once = False
        self._figures: _Reported | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        """A consumer of a new name, before its first batch."""
        return Offset(uuid.uuid4().hex, 0, self._options.topic).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxRecordsPerTrigger."""
        return ReadMaxRows(self._options.max_records or NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Notes what is due now; later messages are left for the next query."""
        self._backlog = Backlog(self._opened_queue())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commits what is before start and plans the next batch.

        Spark asks only when the batch that ends at start is done.
        """
        offset = Offset.from_dict(start, self._options.topic)
        if isinstance(limit, ReadAllAvailable) and self._backlog is None:
            self._once = True
        run = self._opened_run(offset, replays=False)
        if self._backlog is not None or self._once:
            run.wait_for_slots()
        return run.plan(offset, _messages(limit), self._backlog).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The claims of one batch, by task."""
        if start == end:
            return []
        until = Offset.from_dict(end, self._options.topic)
        # The consumer is the one of the end: the start of a first batch that is run again was
        # made up anew.
        since = Offset(until.consumer, int(start["seq"]), until.topic)
        run = self._opened_run(since, replays=True)
        return list(run.partitions(since, until, self._backlog))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        assert isinstance(partition, RmqPartition)  # noqa: S101 - Spark hands back our own
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commits everything up to end."""
        offset = Offset.from_dict(end, self._options.topic)
        self._opened_run(offset, replays=False).settle(offset.seq)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The backlog: due, delayed, prepared, retry, dead (messages), oldestDueMs (ms, or null).

        With ZooKeeper also slotsOwned, by this query, and workers, all that read the topic.

        Spark shows it as latestOffset of the source in every progress report, and asks for it all
        the time: it is counted anew for every batch, and every 10 s where there is none.
        """
        now = time.monotonic()
        batch = None if self._run is None else self._run.last_planned
        known = self._figures
        if known is None or known.batch != batch or now >= known.counted_s + COUNT_AGAIN_S:
            counted = backlog_figures(self._opened_queue().figures())
            owned = {} if self._run is None else self._run.figures()
            known = self._figures = _Reported(batch, now, counted | owned)
        return known.figures

    def stop(self) -> None:
        """Gives back what is in work, so that others need not wait for the lease.

        A query triggered once asks for nothing after its batch, so whether that is done is not
        known here: its claims stay.
        """
        if self._run is None:
            return
        run, self._run = self._run, None
        # Spark ends its readers by SIGTERM. One that reads the end of its input has lost the JVM:
        # killed, it may come back with the same checkpoint while the lease lasts.
        lost_driver = isinstance(sys.exc_info()[1], EOFError | ConnectionError)
        try:
            run.stop(release=not (self._once or lost_driver))
        except RmqError as error:
            _log.warning(
                "rmq: claims were not released, they last until their lease ends: %s", error
            )

    def _opened_queue(self) -> Queue:
        if self._queue is None:
            self._queue = open_queue(self._options)
        return self._queue

    def _opened_run(self, start: Offset, replays: bool) -> ConsumerRun:
        if self._run is None or self._run.consumer != start.consumer:
            self.stop()
            _exit_on_sigterm()
            self._run = ConsumerRun(self._options, self._opened_queue(), start, replays)
        return self._run


def _messages(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows) and limit.max_rows < NO_LIMIT:
        return int(limit.max_rows)
    return None


def _exit_on_sigterm() -> None:
    """Makes SIGTERM end this process through its exit path, which calls stop().

    Spark ends a query's reader by that signal, often sent twice; a second exit would cut the first
    one short, so further signals are ignored.
    """

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, leave)
