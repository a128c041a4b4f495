"""The sink: Arrow batches to messages, grouped by slot."""

import logging
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmq_spark.queue.broker import Broker
from rmq_spark.queue.errors import InvalidMessage, InvalidOption
from rmq_spark.queue.queue import Queue
from rmq_spark.queue.server import Server, shared_server
from rmq_spark.queue.topic import TopicDefinition, TopicType, check_topic_name
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.write_columns import Rows, locate_columns

_log = logging.getLogger(__name__)


@dataclass
class SentMessages(WriterCommitMessage):
    """What one task sent."""

    new: int = 0
    merged: int = 0


class _Sender:
    """What both writers do. Made on the driver, pickled to the tasks.

    The definition of the topic that an option names is read on the driver when a batch starts, so
    every task of the batch sends to the same consumer groups.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._places = locate_columns(schema)
        if options.topic is None and "topic" not in self._places:
            raise InvalidOption(
                "Neither an option nor a column names the topic. Accepted: "
                '.option("topic", ...), or a STRING column named topic.'
            )
        self._topic: TopicDefinition | None = None
        if options.topic is not None:
            server = Server(options.connection)
            self._topic = self._defined(
                Broker(server, key_prefix=options.key_prefix), options.topic
            )
            self._check_value(self._topic)
            server.warn_if_volatile()
            server.close()

    def send(self, batches: Iterator[pa.RecordBatch]) -> SentMessages:
        """Sends all rows of a partition, each Arrow batch checked whole before it goes."""
        sent = SentMessages()
        server = shared_server(self._options.connection)
        broker = Broker(server, key_prefix=self._options.key_prefix)
        named = cache(
            lambda name: self._queue(server, self._defined(broker, check_topic_name(name)))
        )
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = Rows.of(batch, self._places)
            contents = rows.contents()
            parts = [
                (queue, self._pairs(queue, part, part_contents))
                for queue, part, part_contents in self._by_topic(server, named, rows, contents)
            ]
            for queue, by_slot in parts:
                result = queue.send_pairs(by_slot)
                sent.new += result.new
                sent.merged += result.merged
        return sent

    def _by_topic(
        self, server: Server, named: Callable[[str], Queue], rows: Rows, contents: Any
    ) -> Iterator[tuple[Queue, Rows, Any]]:
        """The rows of each topic. A row's own topic goes before the option."""
        if "topic" not in self._places:
            assert self._topic is not None  # noqa: S101 - the constructor saw to it
            yield self._queue(server, self._topic), rows, contents
            return
        names = rows.columns["topic"]
        if self._options.topic is not None:
            names = names.fill_null(self._options.topic)
        if names.null_count:
            raise rows.refused(
                "topic", pc.index(pc.is_null(names), True).as_py(), "the name of a topic"
            )
        for name in pc.unique(names).to_pylist():
            try:
                queue = named(name)
            except InvalidOption as error:
                raise InvalidMessage(f"In the column topic: {error} Nothing was sent.") from None
            at = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
            yield queue, rows.only(at), contents[at]

    def _pairs(self, queue: Queue, rows: Rows, contents: Any) -> dict[int, list[Any]]:
        """By slot, score, content, score, content, ..."""
        topic = queue.definition
        refuse_past = self._options.fail_past and topic.type is TopicType.FIXED_TIME
        scores = rows.scores(
            topic, self._default_value(topic), queue.now_ms() if refuse_past else None
        )
        bases = rows.bases(contents, self._options.slot_basis)
        slots = np.fromiter(map(zlib.crc32, bases), np.uint32, len(bases))
        slots &= np.uint32(topic.slot_amount - 1)
        order = np.argsort(slots, kind="stable")
        pairs = np.empty(2 * len(order), object)
        pairs[0::2], pairs[1::2] = scores[order], contents[order]
        slots = slots[order]
        starts = np.flatnonzero(np.diff(slots, prepend=-1)).tolist()
        return {
            int(slots[start]): pairs[2 * start : 2 * end].tolist()
            for start, end in zip(starts, [*starts[1:], len(slots)], strict=True)
        }

    def _default_value(self, topic: TopicDefinition) -> int | None:
        return {
            TopicType.RANGE_MERGE: self._options.time_range_ms,
            TopicType.PRIORITY: self._options.priority,
            TopicType.FIXED_TIME: self._options.fixed_time_ms,
        }[topic.type]

    def _defined(self, broker: Broker, name: str) -> TopicDefinition:
        return broker.define(name, self._options.topic_type, self._options.slot_amount)

    def _queue(self, server: Server, topic: TopicDefinition) -> Queue:
        prefix, group = self._options.key_prefix, topic.groups[0]
        return Queue(server, topic, key_prefix=prefix, group=group)

    def _check_value(self, topic: TopicDefinition) -> None:
        name = topic.type.value_name
        if name not in self._places and self._default_value(topic) is None:
            raise InvalidOption(
                f"Topic {topic.name} is {topic.type.value}, but neither a column nor an option "
                f'gives {name}. Add the column, or .option("{name}", ...).'
            )


class RmqWriter(DataSourceArrowWriter):
    """``df.write.format("rmq")``: at least once; a task that fails and is run again sends again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sender = _Sender(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        """Runs in a task."""
        return self._sender.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have sent."""
        _log.info("rmq: sent %s", _total(messages))


class RmqStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("rmq")``: at least once; a batch that is run again is sent again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sender = _Sender(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        """Runs in a task."""
        return self._sender.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of the batch have sent."""
        _log.info("rmq: batch %d: sent %s", batchId, _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays; when the batch is run again, it merges with it."""
        _log.warning("rmq: batch %d failed after %s were sent", batchId, _total(messages))


def _total(messages: list[WriterCommitMessage | None]) -> str:
    sent = [message for message in messages if isinstance(message, SentMessages)]
    new, merged = sum(message.new for message in sent), sum(message.merged for message in sent)
    return f"{new} new and {merged} merged messages"
