"""The writers that Spark calls for at-least-once delivery.

The module operations defines what a write does with each row.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption
from rmq_spark.spark.garbage_collection import freeze_live_objects
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.arrow_pairs import coalesce
from rmq_spark.spark.sink.columns import Rows, locate_columns
from rmq_spark.spark.sink.operations import OPERATIONS, check_names
from rmq_spark.spark.sink.target_topics import SinkTopics
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.transport.server import Server
from rmq_spark.transport.shared_servers import shared_server

_log = logging.getLogger(__name__)


class Counted(WriterCommitMessage):
    """The result of one task: the number of messages by outcome, such as new and merged."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts


class SinkWork:
    """The steps of one write. The driver creates the object, and each task runs a pickled copy.

    If an option names the topic, the driver reads its definition when a batch starts. So every task
    of the batch sends to the same consumer groups.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._operation = OPERATIONS[options.operation](options)
        self._positions = locate_columns(schema, options.operation, self._operation)
        self._topics = SinkTopics(options, self._operation.creates)
        self._known: dict[str, TopicDefinition] = {}
        if options.topic is not None:
            server = Server(options.connection)
            self._known[options.topic] = self._topics.find(server, options.topic, self._check)
            server.warn_if_not_on_disk()
            server.close()
        elif "topic" not in self._positions:
            raise InvalidOption(
                "Neither an option nor a column names the topic. Accepted: "
                '.option("topic", ...), or a STRING column named topic.'
            )
        elif options.topic_type is not None:
            self._operation.check_type("topicType", options.topic_type, set(self._positions))

    def _check(self, topic: TopicDefinition) -> None:
        """Check columns and options for a topic. Raises InvalidOption and InvalidMessage."""
        check_names(topic, set(self._positions))
        self._operation.check_topic(topic, set(self._positions))

    def run(self, batches: Iterator[pa.RecordBatch]) -> Counted:
        """Check and write all rows of a partition. Returns the counts.

        Each batch is checked as a whole before any of its rows is written. While Redis executes one
        batch, the next is read and checked. Raises InvalidMessage, TopicError or ServerError; rows
        that were written before stay written.
        """
        counts: Counter[str] = Counter()
        under_way: Future[None] | None = None
        with ThreadPoolExecutor(1, "rmq-send") as sender:
            for checked in self.checked(batches):
                if under_way is not None:
                    under_way.result()
                under_way = sender.submit(self._do, checked, counts)
            if under_way is not None:
                under_way.result()
        return Counted(+counts)  # without zeros

    def _do(self, checked: list[tuple[Queue, Any]], counts: Counter[str]) -> None:
        for queue, work in checked:
            counts.update(self._operation.do(queue, work))

    def checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[tuple[Queue, Any]]]:
        """Join small batches and check them. Yields, for each, pairs of a queue and its work.

        The work is what the operation's ``work_of`` returns.
        """
        freeze_live_objects()
        server = shared_server(self._options.connection)
        known = {name: self._topics.queue(server, topic) for name, topic in self._known.items()}
        for queue in known.values():
            queue._distrust()
        for batch in coalesce(batches):
            rows = Rows.of(batch, self._positions)
            yield [
                (queue, self._operation.work_of(queue, queue.definition, part))
                for queue, part in self._topics.split(server, known, rows)
            ]


class RmqWriter(DataSourceArrowWriter):
    """The writer of ``df.write``: at least once. A task that Spark retries sends its rows again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._work = SinkWork(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Write the rows of one task. Spark calls this on an executor."""
        return self._work.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the counts of a write. Spark calls this when all tasks have succeeded."""
        report("the write", messages)


class RmqStreamWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``: at least once. A replayed batch is sent again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._work = SinkWork(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Write the rows of one task. Spark calls this on an executor."""
        return self._work.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts of a batch. Spark calls this when all its tasks have succeeded."""
        report(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts of a failed batch.

        The messages that it sent stay in Redis. Its replay sends them again, and equal messages
        merge.
        """
        _log.warning("rmq: batch %d failed after: %s", batchId, _total(messages))


def report(what: str, messages: list[WriterCommitMessage | None]) -> None:
    """Log the counts of a write, as a warning if some messages were not found or left alone.

    what: the name of the write in the log.
    """
    total = _total(messages)
    missed = total["left alone"] + total["not found"]
    _log.log(logging.WARNING if missed else logging.INFO, "rmq: %s: %s", what, dict(total))


def _total(messages: list[WriterCommitMessage | None]) -> Counter[str]:
    counted = (message.counts for message in messages if isinstance(message, Counted))
    return sum(counted, Counter())
