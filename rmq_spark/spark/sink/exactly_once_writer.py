"""The sink that sends each message exactly once: tasks stage, the driver's commit publishes."""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_spark.client.broker import Broker
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.staging import Staging
from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.protocol.sealing import Manifest, Sealed
from rmq_spark.protocol.stages import StageName
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.writers import SinkWork
from rmq_spark.transport.server import shared_server

_log = logging.getLogger(__name__)

# Spark's own: StreamExecution.QUERY_ID_KEY and MicroBatchExecution.BATCH_ID_KEY. The query's id
# lives in the checkpoint, so a restart has the same one.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt of a task staged: by topic and slot, how many messages."""

    name: StageName
    held: dict[str, dict[int, int]] = field(default_factory=dict)
    rows: int = 0  # that the task was given
    again: bool = False  # the batch was sealed before, so nothing is held


class RmqStagedStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("rmq")`` with ``deliveryGuarantee=exactlyOnce``.

    An attempt of a task whose message does not reach commit (it failed, or a speculative twin was
    faster) has staged in vain: nothing of it is ever published.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._work = SinkWork(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Runs in a task."""
        return self.stage(iterator, _name_of_attempt())

    def stage(self, batches: Iterator[pa.RecordBatch], name: StageName) -> Staged:
        """Stages all rows of a partition, each Arrow batch checked whole before it goes.

        Of a batch that is sealed they are only counted: nothing can be added to it any more, and
        its replay must neither need room on a full server nor fail for a time that has passed.
        """
        staged = Staged(name)
        if self._sink(name.query).last().batch == name.batch:
            staged.again = True
            staged.rows = sum(batch.num_rows for batch in batches)
            return staged
        try:
            for checked in self._work.checked(_counted(batches, staged)):
                for queue, by_slot in checked:
                    held = staged.held.setdefault(queue.definition.name, {})
                    held.update({slot: held.get(slot, 0) for slot in by_slot})
                    staging = Staging(queue.server, queue.definition, queue.key_prefix)
                    staging.stage(str(name), by_slot, held)
        except Exception:
            self._discard([staged])
            raise
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of the batch have staged: publishes, unless an earlier run has done so."""
        staged = _staged(messages)
        if not staged:
            return
        sink = self._sink(staged[0].name.query)
        again = any(one.again for one in staged)
        manifest = _manifest(staged)
        sent = (sink.resume if again else sink.publish)(batchId, manifest)
        self._compare(sink.last(), staged[0].name, manifest.messages)
        if sent is None:
            _log.info("rmq: batch %d was sent before: it adds nothing", batchId)
        else:
            _log.info("rmq: batch %d: %d new and %d merged", batchId, sent.new, sent.merged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes what was staged, if it is certain that nobody has begun to publish it.

        Spark calls this after a commit that failed, too. Then no message is missing, and the batch
        may be sealed already, or be so in a moment by a call whose reply was lost: what it consists
        of must stay. The batch's replay publishes or deletes it.
        """
        if any(message is None for message in messages):
            self._discard(_staged(messages))

    def _compare(self, sealed: Sealed, name: StageName, rows: int) -> None:
        """Warns where a batch came again with other rows; only their number can be compared."""
        if sealed.batch != name.batch or sealed.messages in (None, rows):
            return
        _log.warning(
            "rmq: batch %d of the query %s was sealed with %d messages by an earlier run and came "
            "again with %d rows. What was sealed is sent, once; these rows were not. Either the "
            "checkpoint was restored from a backup or copied, or the source is not repeatable.",
            name.batch,
            name.query,
            sealed.messages,
            rows,
        )

    def _discard(self, staged: list[Staged]) -> None:
        try:
            if staged:
                self._sink(staged[0].name.query).discard(_manifest(staged))
        except RmqError as error:
            _log.warning("rmq: what was staged in vain stays until the next batch: %s", error)

    def _sink(self, query: str) -> StagedSink:
        server = shared_server(self._options.connection)
        broker = Broker(server, key_prefix=self._options.key_prefix)
        return StagedSink(broker, query)


def _name_of_attempt() -> StageName:
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if context is None or query is None or batch is None:
        raise InvalidOption(
            "deliveryGuarantee=exactlyOnce cannot be kept here: Spark does not tell which batch of "
            "which streaming query this is. Accepted: atLeastOnce."
        )
    return StageName(query, int(batch), context.partitionId(), uuid.uuid4().hex)


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _manifest(staged: list[Staged]) -> Manifest:
    return Manifest(
        {str(one.name): {topic: dict(held) for topic, held in one.held.items()} for one in staged},
        sum(one.rows for one in staged),
    )


def _counted(batches: Iterator[pa.RecordBatch], staged: Staged) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        staged.rows += batch.num_rows
        yield batch
