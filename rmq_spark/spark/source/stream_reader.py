"""The source as Spark calls it. What it does is in consumer_run and partition_reader."""

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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import RmqError
from rmq_spark.protocol.names import ConsumerName
from rmq_spark.spark.batch_limits import Limits
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.source.backlog import Backlog, backlog_figures, summed_figures
from rmq_spark.spark.source.offsets import Offset
from rmq_spark.spark.source.query_run import ConsumerRun
from rmq_spark.spark.source.task_reader import RmqPartition, read_partition
from rmq_spark.spark.source.topic_run import queue_of
from rmq_spark.transport.server import Server

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
        self._server: Server | None = None
        self._run: ConsumerRun | None = None
        self._backlogs: dict[str, Backlog] | None = None
        self._once = False
        self._asked = False  # for an offset, by this run
        self._figures: _Reported | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        """A consumer of a new name, before its first batch."""
        subscription = self._options.subscription
        consumer = str(ConsumerName(uuid.uuid4().hex, subscription.group))
        return Offset(consumer, 0, subscription.text).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxRecordsPerTrigger, where it is one number for the whole batch."""
        return ReadMaxRows(self._options.limits.total or NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Notes what is due now; later messages are left for the next query."""
        queues = self._queues()
        now_ms = queues[0].now_ms() if queues else 0
        self._backlogs = {queue.definition.name: Backlog(queue, now_ms) for queue in queues}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commits what is before start and plans the next batch.

        Spark asks only when the batch that ends at start is done.
        """
        offset = Offset.from_dict(start, self._options.subscription)
        self._asked = True
        if isinstance(limit, ReadAllAvailable) and self._backlogs is None:
            self._once = True
        run = self._opened_run(offset, replays=False)
        if self._backlogs is not None or self._once:
            run.wait_for_slots()
        return run.plan(offset, self._limits(limit)).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The claims of one batch, by task."""
        if start == end:
            return []
        until = Offset.from_dict(end, self._options.subscription)
        # The consumer is the one of the end: the start of a first batch that is run again was
        # made up anew.
        since = Offset(until.consumer, int(start["seq"]), until.topic)
        run = self._opened_run(since, replays=True)
        return list(run.partitions(since, until))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        assert isinstance(partition, RmqPartition)  # noqa: S101 - Spark hands back our own
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commits everything up to end."""
        offset = Offset.from_dict(end, self._options.subscription)
        self._opened_run(offset, replays=False).commit(offset.seq)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The backlog: due, delayed, prepared, retry, dead (messages), oldestDueMs (ms, or null).

        And the topic's name, and its counters: accepted, committed, rolledBack, dead and so on.

        With ZooKeeper also slotsOwned, by this query, and members, all that read the topic; with
        targetBatchDuration messageMs, what a message is thought to take. Where several topics may
        be read, they stand below topics, by name, and their sums beside that.

        Spark shows it as latestOffset of the source in every progress report, and asks for it all
        the time: it is counted anew for every batch, and every 10 s where there is none.
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
            queue.definition.name: backlog_figures(queue.figures())
            | beside.get(queue.definition.name, {})
            for queue in self._queues()
        }
        if self._options.subscription.is_single:
            return next(({"topic": name} | found for name, found in by_topic.items()))
        return summed_figures(by_topic.values()) | {"topics": by_topic}

    def stop(self) -> None:
        """Ends this run; its claims stay for their lease.

        Spark does not tell whether it has finished the batch in work, and a finished batch that is
        given back comes a second time. With releaseOnStop it is given back all the same, except by
        a query triggered once, which never asks for anything behind its one batch (of one that only
        replays a batch nothing else tells), and a query whose driver died, which may be started
        again.
        """
        if self._run is None:
            return
        run, self._run = self._run, None
        # Spark ends its readers by SIGTERM. One that reads the end of its input has lost the JVM:
        # killed, it may come back with the same checkpoint while the lease lasts.
        lost_driver = isinstance(sys.exc_info()[1], EOFError | ConnectionError)
        try:
            asks_on = self._asked and not self._once
            run.stop(self._options.release_on_stop and asks_on and not lost_driver)
        except RmqError as error:
            _log.warning(
                "rmq: claims were not released, they last until their lease ends: %s", error
            )

    def _opened_server(self) -> Server:
        if self._server is None:
            self._server = Server(self._options.connection, self._options.patience_s)
            self._server.warn_if_volatile()
        return self._server

    def _queues(self) -> list[Queue]:
        """The queues of all topics that there are now. Raises UnknownTopic."""
        server = self._opened_server()
        broker = Broker(server, key_prefix=self._options.key_prefix)
        found = self._options.subscription.find(broker)
        return [queue_of(server, self._options, definition) for definition in found]

    def _opened_run(self, start: Offset, replays: bool) -> ConsumerRun:
        if self._run is None or self._run.consumer != start.consumer:
            self.stop()
            _exit_on_sigterm()
            self._run = ConsumerRun(
                self._options,
                self._opened_server(),
                start,
                replays=replays,
                backlogs=self._backlogs,
            )
        return self._run

    def _limits(self, limit: ReadLimit) -> Limits | None:
        """The limits of a batch; None for Trigger.Once, which takes all there is."""
        if isinstance(limit, ReadAllAvailable):
            return None
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT
        return replace(self._options.limits, total=None if most >= NO_LIMIT else int(most))


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
