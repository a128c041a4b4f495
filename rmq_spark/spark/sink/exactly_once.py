"""The exactly-once sink: tasks stage messages, and the driver's commit publishes them."""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_spark.client.broker import Broker
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.room import WaitForRoom, fail
from rmq_spark.client.staging import Stage, manifest_of
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.staging import Manifest, Sealed, StageName
from rmq_spark.redis.server import shared_server
from rmq_spark.spark.compatibility import DataSourceStreamArrowWriter
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.writer import SinkWork, results_of
from rmq_spark.topics.definition import TopicDefinition

_log = logging.getLogger(__name__)

# Local properties that Spark sets: StreamExecution.QUERY_ID_KEY and
# MicroBatchExecution.BATCH_ID_KEY. The checkpoint stores the id of the query, so it survives a
# restart.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(Stage, WriterCommitMessage):
    """One attempt of a task. was_sealed: the batch was sealed before, so nothing was staged."""

    topics: dict[str, TopicDefinition] = field(default_factory=dict)
    rows: int = 0
    was_sealed: bool = False


class RmqStagedStreamWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream`` with ``deliveryGuarantee=exactlyOnce``.

    Messages of an attempt whose result does not reach ``commit`` are never published: it failed, or
    a speculative copy was faster.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._work = SinkWork(options, schema)
        self._on_full = WaitForRoom() if options.waits_for_room else fail

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self.stage(iterator, _stage_of_attempt())

    def stage(self, batches: Iterator[pa.RecordBatch], name: StageName) -> Staged:
        """Stage all rows of a partition.

        If an earlier run sealed the batch, the rows are only counted: its replay must not need
        memory on a full server, and must not fail for a time that has passed.
        """
        staged = Staged(name)
        if self._sink(name.query).last().batch == name.batch:
            staged.was_sealed = True
            staged.rows = sum(batch.num_rows for batch in batches)
            return staged
        try:
            for checked in self._work.checked(_counted(batches, staged)):
                for queue, (messages, topic) in checked:
                    staged.topics[topic.name] = topic
                    staged.add(queue, messages, self._on_full)
        except Exception:
            self._discard([staged])
            raise
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a batch that all its tasks have staged, unless an earlier run has done so."""
        staged = results_of(messages, Staged)
        if not staged:
            return
        sink = self._sink(staged[0].name.query)
        was_sealed = any(one.was_sealed for one in staged)
        manifest = _manifest(staged)
        sink.check_unchanged({topic for one in staged for topic in one.topics.values()}, manifest)
        sent = (sink.resume if was_sealed else sink.publish)(batchId, manifest)
        self._warn_if_rows_differ(sink.last(), staged[0].name, manifest.messages)
        if sent is None:
            _log.info("rmq: batch %d was sent before; nothing was sent again", batchId)
        else:
            counts = batchId, sent.new, sent.merged, sent.repeated
            _log.info("rmq: batch %d: %d new, %d merged, %d repeated", *counts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the staged messages of a failed batch, if it cannot have been sealed.

        A missing result of a task shows that no commit began. Spark also calls this after a failed
        commit. In that case no result is missing, and the batch may be sealed already, or a call
        whose reply was lost may still seal it. Its messages must stay: the replay of the batch
        publishes or deletes them.
        """
        if any(message is None for message in messages):
            self._discard([message for message in messages if isinstance(message, Staged)])

    def _warn_if_rows_differ(self, sealed: Sealed, name: StageName, rows: int) -> None:
        """Warn if the replay of a batch has other rows. Only their number can be compared."""
        if sealed.batch != name.batch or sealed.messages in (None, rows):
            return
        _log.warning(
            "rmq: batch %d of the query %s was sealed with %d messages by an earlier run and "
            "replayed with %d rows. The sealed messages are sent, once; the replayed rows are not. "
            "Either the checkpoint was restored from a backup or copied, or the source is not "
            "repeatable.",
            name.batch,
            name.query,
            sealed.messages,
            rows,
        )

    def _discard(self, staged: list[Staged]) -> None:
        if staged:
            self._sink(staged[0].name.query).discard_after_error(_manifest(staged))

    def _sink(self, query: str) -> StagedSink:
        server = shared_server(self._options.connection)
        broker = Broker(server, key_prefix=self._options.key_prefix)
        return StagedSink(broker, query)


def _stage_of_attempt() -> StageName:
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if context is None or query is None or batch is None:
        raise InvalidOption(
            "deliveryGuarantee=exactlyOnce works only in a streaming query: Spark did not pass the "
            "ids of the query and the batch. Accepted elsewhere: atLeastOnce."
        )
    return StageName(query, int(batch), context.partitionId(), uuid.uuid4().hex)


def _manifest(staged: list[Staged]) -> Manifest:
    return manifest_of(staged, sum(one.rows for one in staged))


def _counted(batches: Iterator[pa.RecordBatch], staged: Staged) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        staged.rows += batch.num_rows
        yield batch
