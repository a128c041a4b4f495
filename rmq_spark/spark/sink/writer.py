"""The writers that Spark calls: they send rows at least once, or check them in a dry run."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from rmq_spark.client.administration import new_definition
from rmq_spark.client.broker import Broker
from rmq_spark.client.hints import describe_missing
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption, TopicError, UnknownTopic
from rmq_spark.process import spare_collections
from rmq_spark.redis.server import Server, shared_server
from rmq_spark.spark.compatibility import DataSourceStreamArrowWriter
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.columns import NOTHING_SENT, Rows, coalesce, locate_columns
from rmq_spark.spark.sink.operations import OPERATIONS, check_names
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.types import TOPIC_TYPES

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result", bound=WriterCommitMessage)
REASON = "rmq_reason"
_NOT_FOUND = (
    "Not found, in each consumer group: no such message waits (for requeue and purge: is dead) in "
    "its slot. If it was sent with a slotBasis, the row needs that, or slot."
)


class SinkTopics:
    """The topics of one write. defines: whether it may create a topic."""

    def __init__(self, options: SinkOptions, defines: bool) -> None:
        self._options = options
        self._defines = defines

    def find(
        self,
        server: Server,
        name: str,
        check: Callable[[TopicDefinition], None] = lambda topic: None,
    ) -> TopicDefinition:
        """Read, or create if the write may, a topic that passes ``check``."""
        options = self._options
        broker = Broker(server, key_prefix=options.key_prefix)
        of_type, amount = options.topic_type, options.slot_amount
        topic = broker.find(name) if self._defines else broker.definition(name)
        if topic is None:
            if of_type is None:
                raise UnknownTopic(
                    f"{describe_missing(broker, name)} Correct the name; or, to create the topic "
                    'with this write, add .option("topicType", ...), one of '
                    f"{', '.join(TOPIC_TYPES)}."
                )
            check(new_definition(name, of_type, amount, **options.settings))
        if topic is None or options.settings or (of_type, amount) != (None, None):
            topic = broker.define(name, of_type, amount, **options.settings)
        check(topic)
        return topic

    def queue(self, server: Server, topic: TopicDefinition) -> Queue:
        """Open the queue for the group that an option names, or for the topic's usual group.

        A claimId of the default group names no group: its rollback takes the group of this queue.
        """
        group = topic.usual_group if self._options.group is None else self._options.group
        return Queue(server, topic, key_prefix=self._options.key_prefix, group=group)

    def split(
        self, server: Server, known: dict[str, Queue], rows: Rows
    ) -> Iterator[tuple[Queue, Rows]]:
        """Split rows by topic.

        The column takes precedence over the option. known: the queues that this task has opened so
        far; adds new ones.
        """
        default = self._options.topic
        if "topic" not in rows.columns:
            assert default is not None  # noqa: S101 - checked when the write began
            yield known[default], rows
            return
        accepted = "the name of a topic"
        rows.check_texts("topic", accepted)
        names = rows.columns["topic"]
        if default is not None:
            names = names.fill_null(default)
        if names.null_count:
            row = pc.index(pc.is_null(names), True).as_py()
            raise rows.refusal("topic", row, accepted)
        for name in pc.unique(names).to_pylist():
            try:
                if name not in known:
                    known[name] = self.queue(server, self.find(server, name))
            except InvalidOption as error:
                raise InvalidMessage(f"In the column topic: {error}{NOTHING_SENT}") from None
            at = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
            yield known[name], rows.only(at)


class Counted(WriterCommitMessage):
    """The result of one task: the number of messages by outcome, such as new and merged."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts


class SinkWork:
    """The steps of one write.

    The driver creates the object, and each task runs a pickled copy. The driver reads the
    definition of the option's topic, so that every task of a batch sends to the same consumer
    groups.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._operation = does = OPERATIONS[options.operation](options)
        columns = does.columns, does.required
        self._positions = locate_columns(schema, options.operation, *columns)
        self._topics = SinkTopics(options, self._operation.creates)
        self._known: dict[str, TopicDefinition] = {}
        if options.topic is not None:
            with closing(Server(options.connection)) as server:
                self._known[options.topic] = self._topics.find(server, options.topic, self._check)
                server.warn_if_not_on_disk()
        elif "topic" not in self._positions:
            raise InvalidOption(
                "Neither an option nor a column names the topic. Accepted: "
                '.option("topic", ...), or a STRING column named topic. Spark does not pass the '
                "options of CREATE TABLE to a write: in SQL, give them to the statement, INSERT "
                "INTO t WITH (topic = 'T') SELECT ..., or insert into a temporary view."
            )
        elif options.topic_type is not None:
            self._operation.check_type("topicType", options.topic_type, set(self._positions))

    def _check(self, topic: TopicDefinition) -> None:
        check_names(topic, set(self._positions))
        self._operation.check_topic(topic, set(self._positions))

    def run(self, batches: Iterator[pa.RecordBatch]) -> Counted:
        """Check and write all rows of a partition, each batch as a whole.

        While Redis executes one, the next is read and checked.
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
        """Join small batches and check them. Yields, for each, pairs of a queue and its work."""
        spare_collections()
        server = shared_server(self._options.connection)
        known = {name: self._topics.queue(server, topic) for name, topic in self._known.items()}
        for queue in known.values():
            queue.distrust()
        for batch in coalesce(batches):
            columns = {name: batch.column(at) for name, at in self._positions.items()}
            rows = Rows(columns, batch.num_rows)
            yield [
                (queue, self._operation.work_of(queue, queue.definition, part))
                for queue, part in self._topics.split(server, known, rows)
            ]


class _Writing:
    """What the writers of a batch and of a stream do in a task."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._work = SinkWork(options, schema)
        topic = "" if options.topic is None else f", topic {options.topic}"
        self._does = f"{options.operation}{topic}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return self._work.run(iterator)


class RmqWriter(_Writing, DataSourceArrowWriter):
    """The writer of ``df.write``: at least once. A task that Spark retries sends its rows again."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._does, results_of(messages, Counted))


class RmqStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``: at least once. A replayed batch is sent again."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        report(f"{self._does}, batch {batchId}", results_of(messages, Counted))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts of a failed batch. Its replay sends them again, and equal ones merge."""
        counted = [message for message in messages if isinstance(message, Counted)]
        _log.warning("rmq: batch %d failed after: %s", batchId, _text_of(_total(counted)))


def results_of(messages: list[WriterCommitMessage | None], kind: type[_Result]) -> list[_Result]:
    """Return the results of all tasks of a write that is to be committed.

    Refuse it if a task has none: Spark has not called its ``write``, but dropped its rows
    (PythonBatchWriterFactory.write in Spark 4.3).
    """
    results = [message for message in messages if isinstance(message, kind)]
    if len(results) < len(messages):
        raise InvalidOption(
            f"Spark passed no rows to {len(messages) - len(results)} of {len(messages)} tasks of "
            "the sink, as it does with trigger(continuous=...), so nothing of theirs was sent. "
            "Accepted: trigger(processingTime=...) or trigger(availableNow=True)."
        )
    return results


def report(what: str, messages: list[Counted]) -> None:
    total = _total(messages)
    missed = total["left alone"] + total["not found"]
    hint = f". {_NOT_FOUND}" if total["not found"] else ""
    text = f"{_text_of(total)}{hint}"
    _log.log(logging.WARNING if missed else logging.INFO, "rmq: %s: %s", what, text)


def _text_of(total: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in total.items()) or "nothing"


def _total(messages: list[Counted]) -> Counter[str]:
    return sum((message.counts for message in messages), Counter())


def with_refusals(rows: DataFrame, columns: list[str], options: SinkOptions) -> DataFrame:
    """Add the column REASON to rows: why the sink refuses a row, or null if it accepts it."""
    sent = rows.select(columns).schema
    work = SinkWork(options, sent)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            reasons = _reasons(work, batch.select(sent.names))
            yield batch.append_column(REASON, pa.array(reasons, pa.string()))

    schema = StructType([*rows.schema.fields, StructField(REASON, StringType())])
    return rows.mapInArrow(check, schema)


def _reasons(work: SinkWork, batch: pa.RecordBatch) -> list[str | None]:
    """Return why the sink refuses each row. Halve a batch, which it refuses as a whole."""
    try:
        for _ in work.checked(iter([batch])):
            pass
    except (InvalidMessage, TopicError) as error:
        if batch.num_rows == 1:
            return [str(error).removesuffix(NOTHING_SENT)]
        half = batch.num_rows // 2
        return _reasons(work, batch.slice(0, half)) + _reasons(work, batch.slice(half))
    return [None] * batch.num_rows
