"""The stream reader, which Spark calls.

On the driver, it passes the work on to run; in tasks, to task.
"""

import logging
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue, overview_of
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.protocol.names import ConsumerName
from rmq_spark.redis.server import Server
from rmq_spark.spark.compatibility import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from rmq_spark.spark.limits import Limits
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.source.backlog import Backlog, backlog_figures, summed_figures
from rmq_spark.spark.source.checkpoint import LoggedProgress, SeveralSources, read_progress
from rmq_spark.spark.source.offset import Offset
from rmq_spark.spark.source.run import QueryRun
from rmq_spark.spark.source.task import RmqPartition, read_partition
from rmq_spark.spark.source.topic import queue_of

_log = logging.getLogger(__name__)

# Stands for "no limit" in the default read limit. If Spark passes ReadAllAvailable all the same, it
# has set that limit itself, as it does for Trigger.Once.
NO_LIMIT = 2**62
# The default interval at which Spark reports on a query without batches.
COUNT_AGAIN_S = 10.0
_ASYNC_PROGRESS = (
    "asyncProgressTrackingEnabled=true is not accepted: Spark hands out a batch before it is in "
    "the checkpoint, so a later start could not find its messages again. Remove the option and "
    "start the query again on its checkpoint, in a new driver: Spark does not end such a query "
    "properly."
)


@dataclass(frozen=True)
class _Reported:
    """The last reported backlog, when it was counted (monotonic), and the batch planned last."""

    batch: int | None
    counted_s: float
    figures: dict[str, Any]


class RmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query, which gives Spark due messages batch by batch.

    Spark creates it in two processes and pickles it for the executors. It therefore connects to
    Redis only in the first call that needs a connection.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._server: Server | None = None
        self._run: QueryRun | None = None
        self._backlogs: dict[str, Backlog] | None = None
        self._once = False
        self._continued: dict[str, Any] | None = None  # the last planned offset, at a start
        self._asked = False  # whether Spark has asked for an offset
        self._noted = 0  # the last batch that Spark has committed
        self._figures: _Reported | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        """Choose a random name for a new consumer."""
        subscription = self._options.subscription
        consumer = str(ConsumerName(uuid.uuid4().hex, subscription.group))
        return Offset(consumer, 0, subscription.text).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxRecordsPerTrigger if it is one number for the whole batch."""
        return ReadMaxRows(self._options.limits.total or NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """End the backlogs of an AvailableNow query now, by Redis' time."""
        queues = self._queues()
        now_ms = queues[0].now_ms() if queues else 0
        self._backlogs = {queue.definition.name: Backlog(queue, now_ms) for queue in queues}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commit up to start, which Spark has finished, and plan the next batch."""
        offset = Offset.from_dict(start, self._options.subscription)
        self._asked = True
        if isinstance(limit, ReadAllAvailable) and self._backlogs is None:
            self._once = True
        run = self._opened_run(offset, replays=False)
        if self._backlogs is not None or self._once:
            run.wait_for_slots()
        return run.plan(offset, self._limits(limit)).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            self.continue_from(end)
            return []
        until = Offset.from_dict(end, self._options.subscription)
        # Take the consumer from the end. If Spark replays the first batch, its start comes from a
        # new call of initialOffset, which has chosen another name.
        since = Offset(until.consumer, int(start["seq"]), until.topic)
        if since.seq == 0:
            self._refuse_several()
        run = self._opened_run(since, replays=True)
        if run.last_planned == until.seq and self._noted < since.seq:
            raise InvalidOption(_ASYNC_PROGRESS)
        return list(run.partitions(since, until))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RmqPartition)  # noqa: S101 - Spark hands back our own
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit everything up to end. Usually, ``latestOffset`` has done so before.

        Spark calls this between planning a batch and its ``partitions``, as soon as the plan is in
        the checkpoint: MicroBatchExecution.cleanUpLastExecutedMicroBatch.
        """
        offset = Offset.from_dict(end, self._options.subscription)
        self._noted = offset.seq
        self._opened_run(offset, replays=False).commit(offset.seq)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the backlog, which Spark shows as latestOffset of the source in progress reports.

        It has the topic's name; due, delayed, prepared, retry and dead in messages; oldestDueMs in
        ms since 1970, or null; asOfMs, Redis' time of all this; and the topic's counters. With
        ZooKeeper, it also has slotsOwned (slots of this query) and members (queries that share the
        topic). With targetBatchDuration, it also has messageMs, the estimated cost of a message in
        ms. For a query of several topics, these fields are below topics, by topic, and the sums of
        the numbers of messages are beside topics.

        Spark asks for it all the time. It is counted again for every batch, and every 10 s while
        there is none.
        """
        now = time.monotonic()
        batch = None if self._run is None else self._run.last_planned
        known = self._figures
        if known is None or known.batch != batch or now >= known.counted_s + COUNT_AGAIN_S:
            known = self._figures = _Reported(batch, now, self._count())
        return known.figures

    def _count(self) -> dict[str, Any]:
        beside = {} if self._run is None else self._run.figures()
        by_topic = {
            queue.definition.name: backlog_figures(overview_of(queue))
            | beside.get(queue.definition.name, {})
            for queue in self._queues()
        }
        if self._options.subscription.is_single:
            return next(({"topic": name} | found for name, found in by_topic.items()))
        return summed_figures(by_topic.values()) | {"topics": by_topic}

    @property
    def has_checkpoint(self) -> bool:
        return self._options.checkpoint is not None

    @property
    def learns_size(self) -> bool:
        """Whether the size of a batch comes from the batches before."""
        return self._options.target_batch_ms is not None

    def logged_progress(self, *, must_exist: bool = False) -> LoggedProgress:
        """Read the checkpoint that the option checkpointLocation names; nothing without it."""
        place, subscription = self._options.checkpoint, self._options.subscription
        if place is None:
            return LoggedProgress()
        return read_progress(place, subscription, must_exist=must_exist)

    def _refuse_several(self) -> None:
        """Refuse a query that reads a topic twice, before it reads: a join would lose rows."""
        try:
            self.logged_progress()
        except SeveralSources:
            raise
        except InvalidOption:
            return  # a checkpoint that cannot be read: stop() logs it

    def continue_from(self, end: dict[str, Any]) -> None:
        """Note where a query that starts again stands. It may end without any other call.

        That is so if it has one batch, which it replays, and which its sink has already.
        """
        self._continued = end
        if self.has_checkpoint:
            _exit_on_sigterm()

    def stop(self) -> None:
        """End this run. Its claims keep their lease, unless releaseOnStop is set.

        With checkpointLocation, it commits the last batch if the checkpoint has it as finished.
        Without, Spark does not report that. If a finished batch is released, its messages are
        delivered a second time. releaseOnStop accepts that. Even so, the claims keep their lease in
        these cases:

        - The query has Trigger.Once: Spark never asks for an offset after its only batch.
        - The run has only replayed a batch: then nothing shows whether it has Trigger.Once.
        - The driver has died: it may start again and replay the batch.
        """
        continued, self._continued = self._continued, None
        try:
            if self._run is None and continued and self.logged_progress().finished == continued:
                offset = Offset.from_dict(continued, self._options.subscription)
                self._opened_run(offset, replays=False)
        except RmqError as error:
            _log.warning("rmq: a finished batch was not committed: %s", error)
        if self._run is None:
            return
        run, self._run = self._run, None
        # Spark ends its readers with SIGTERM. A reader that finds the end of its input instead has
        # lost the JVM, which may come back with the same checkpoint while the lease lasts.
        lost_driver = isinstance(sys.exc_info()[1], EOFError | ConnectionError)
        try:
            has_planned = run.last_planned is not None
            finished = self.logged_progress(must_exist=has_planned).finished
            if finished is not None and finished["consumer"] == run.consumer:
                run.commit(int(finished["seq"]))
        except RmqError as error:
            _log.warning("rmq: a batch that may be finished was not committed: %s", error)
        try:
            asks_on = self._asked and not self._once
            run.stop(self._options.release_on_stop and asks_on and not lost_driver)
        except RmqError as error:
            _log.warning("rmq: claims were not released and stay until their lease ends: %s", error)

    def _opened_server(self) -> Server:
        if self._server is None:
            self._server = Server(self._options.connection, self._options.patience_s)
            self._server.warn_if_not_on_disk()
        return self._server

    def _queues(self) -> list[Queue]:
        server = self._opened_server()
        broker = Broker(server, key_prefix=self._options.key_prefix)
        found = self._options.subscription.find(broker)
        return [queue_of(server, self._options, definition) for definition in found]

    def _opened_run(self, start: Offset, replays: bool) -> QueryRun:
        if self._run is None or self._run.consumer != start.consumer:
            self.stop()
            _exit_on_sigterm()
            self._run = QueryRun(
                self._options,
                self._opened_server(),
                start,
                replays=replays,
                backlogs=self._backlogs,
            )
        return self._run

    def _limits(self, limit: ReadLimit) -> Limits | None:
        """Combine Spark's limit of a batch with those of the topics; None for Trigger.Once."""
        if isinstance(limit, ReadAllAvailable):
            return None
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT
        return replace(self._options.limits, total=None if most >= NO_LIMIT else int(most))


# Set once a signal ends this process. Its stop() may begin a run, to commit a finished batch, which
# must not listen to signals again.
_leaving = threading.Event()


def _exit_on_sigterm() -> None:
    """Make SIGTERM end this process through sys.exit, so that the reader's stop() still runs.

    PySpark's runner calls stop() in its ``finally`` (python_streaming_source_runner.py). Spark ends
    the reader of a query with this signal, and often sends it twice. Further signals are ignored,
    because a second exit would interrupt the first one.
    """

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _leaving.set()
        sys.exit(0)

    if threading.current_thread() is threading.main_thread() and not _leaving.is_set():
        signal.signal(signal.SIGTERM, leave)
