"""The reader of queues as tables, which reads page by page and consumes nothing."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.options.source_options import MOST_TASKS
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import Page
from rmq_spark.spark.table.selection import Scope, TableOptions
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.transport.shared_servers import shared_server

# Spark needs about 20 ms to start a task; reading this many rows takes 0.16 s (bench/table.py).
ROWS_A_TASK = 50_000


class TablePartition(InputPartition):
    """The part of a table that one task reads.

    scope: the queues and times to read. slots: the slots of this task, a part of the scope's.
    """

    def __init__(self, topic: TopicDefinition, scope: Scope, slots: Sequence[int]) -> None:
        self.topic = topic
        self.scope = scope
        self.slots = slots

    def __repr__(self) -> str:
        return f"TablePartition({self.topic.name}, slots {self.slots})"


class RmqTableReader(DataSourceReader):
    """The reader of a topic's queues, which Spark calls.

    It does not implement pushFilters, because Spark 4.3 also applies the filters of one query on a
    DataFrame to the next query. We saw that after where("a = 1") the same DataFrame had one row,
    and that a union of two filters returned only the rows of the second. Options select slots and
    times instead.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[TablePartition]:
        """Distribute the selected slots over tasks. Each slot belongs to one task.

        Without numPartitions, the number of tasks follows from the number of rows. Raises
        UnknownTopic, InvalidOption for a slot or group that the topic lacks, and ServerError.
        """
        options = self._options
        server = shared_server(options.connection)
        topic = Broker(server, key_prefix=options.key_prefix).definition(options.topic)
        queue = Queue(server, topic, key_prefix=options.key_prefix, group=options.group)
        slots = options.scope.slots_of(topic)
        tasks = min(options.num_partitions or self._tasks_by_size(queue, slots), len(slots))
        return [TablePartition(topic, options.scope, slots[at::tasks]) for at in range(tasks)]

    def _tasks_by_size(self, queue: Queue, slots: Sequence[int]) -> int:
        """Return the number of tasks for all rows: one per ROWS_A_TASK, 1 to MOST_TASKS."""
        rows = sum(queue.ask(reading.sizes, self._options.scope.queues, slots))
        return max(1, min(MOST_TASKS, rows // ROWS_A_TASK))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the slots of one task. Yields an Arrow batch for each page. Raises ServerError."""
        assert isinstance(partition, TablePartition)  # noqa: S101 - Spark hands back our own
        options, topic = self._options, partition.topic
        server = shared_server(options.connection)
        queue = Queue(server, topic, key_prefix=options.key_prefix, group=options.group)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for kind in partition.scope.queues:
            scores = partition.scope.scores_of(kind, topic)
            if scores is None:
                continue
            for slot in partition.slots:
                for page in queue.pages(kind, slot, scores):
                    yield _batch(page, schema)


def _batch(page: Page, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(page, field) for field in schema], schema=schema)


def _column(page: Page, field: pa.Field) -> pa.Array:
    size = len(page.contents)
    builders: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.repeat(page.topic.name, size),
        "queue": lambda: pa.repeat(page.kind.value, size),
        "slot": lambda: pa.repeat(pa.scalar(page.slot, pa.int32()), size),
        "content": lambda: _texts(page.payloads(), field.type),
        "key": lambda: _texts(page.keys(), field.type),
        "headers": lambda: pa.array(page.headers(), field.type),
        "expiresat": lambda: _times(page.expire_at_ms(), field.type),
        "duetime": lambda: _times(page.due_times_ms(), field.type),
        "priority": lambda: pa.array(page.priorities(), pa.int64()),
        "retriesleft": lambda: pa.array(page.retries_left(), pa.int32()),
        "preparedat": lambda: _times(page.prepared_at_ms(), field.type),
        "diedat": lambda: _times(page.died_at_ms(), field.type),
        "consumer": lambda: pa.array(page.consumers(), pa.string()),
        "reason": lambda: pa.array(page.reasons(), pa.string()),
    }
    return builders[field.name.lower()]()


def _times(times_ms: Sequence[int | None], of_type: pa.DataType) -> pa.Array:
    return pa.array(times_ms, pa.timestamp("ms", "UTC")).cast(of_type)


def _texts(texts: Sequence[bytes | None], of_type: pa.DataType) -> pa.Array:
    """Convert texts to a column. In a STRING column, a text that is not UTF-8 is null."""
    binary = pa.array(texts, pa.binary())
    try:
        return binary.cast(of_type)
    except pa.ArrowInvalid:
        return pa.array([_text_or_none(text) for text in texts], of_type)


def _text_or_none(text: bytes | None) -> str | None:
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None
