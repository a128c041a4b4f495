"""Queues as tables: ``spark.read.format("rmq")``, and tables in Spark's catalog.

Spark 4.3 passes the options of CREATE TABLE ... USING to the data source only when it asks for the
schema. For a SELECT, it passes only the options of the SELECT (PythonTable.newScanBuilder). It also
passes the metadata of the columns, so the options of CREATE TABLE are stored there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption
from rmq_spark.options import (
    ENDING_TIME,
    GROUP,
    KEY_PREFIX,
    MOST_TASKS,
    NUM_PARTITIONS,
    QUEUE,
    SENTINELS,
    SLOTS,
    STARTING_TIME,
    TABLE,
    TABLE_TOPIC,
    URL,
)
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import Bounds, Page, Scope
from rmq_spark.redis.connection import ConnectionOptions, connection_of
from rmq_spark.redis.server import shared_server
from rmq_spark.spark.compatibility import arrow_schema
from rmq_spark.spark.schemas import times
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsing import Option

_METADATA_KEY = "rmq.options"
_CATALOG_PREFIX = "option."
# Spark needs about 20 ms to start a task; reading this many rows takes 0.16 s (bench/table.py).
ROWS_A_TASK = 50_000


@dataclass(frozen=True)
class TableOptions:
    connection: ConnectionOptions
    key_prefix: str
    topic: str
    group: str
    scope: Scope
    num_partitions: int | None


def is_table(given: Mapping[str, str]) -> bool:
    return any(TABLE.find(name) is QUEUE for name in given)


def parse_table_options(given: Mapping[str, str]) -> TableOptions:
    values = TABLE.parse(given)
    topic, queues = values.get(TABLE_TOPIC), values.get(QUEUE)
    if topic is None:
        raise InvalidOption("The option topic is missing. Accepted: the name of a topic.")
    if queues is None:
        raise InvalidOption(
            f"The option queue is missing. Accepted: {QUEUE.parser.accepted_plain}."
        )
    return TableOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        topic=topic,
        group=values[GROUP],
        scope=Scope(
            queues=queues,
            slots=values.get(SLOTS),
            times=Bounds(values.get(STARTING_TIME), values.get(ENDING_TIME)),
        ),
        num_partitions=values.get(NUM_PARTITIONS),
    )


def user_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the properties that CREATE TABLE mixes in, and its prefix."""
    own = {
        name.removeprefix(_CATALOG_PREFIX): value
        for name, value in given.items()
        if name.startswith(_CATALOG_PREFIX)
    }
    return own or dict(given)


def is_from_catalog(given: Mapping[str, str]) -> bool:
    return any(name.startswith(_CATALOG_PREFIX) for name in given)


def with_stored_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Store the options of CREATE TABLE in the metadata of a schema.

    Returns the new schema. Refuses a password, which every user of the catalog could read.
    """
    _refuse_secrets(options)
    first, *others = schema.fields
    marked = StructField(first.name, first.dataType, first.nullable, {_METADATA_KEY: dict(options)})
    return StructType([marked, *others])


def stored_options(schema: StructType) -> dict[str, str]:
    for field in schema.fields:
        if _METADATA_KEY in field.metadata:
            return dict(field.metadata[_METADATA_KEY])
    return {}


def _refuse_secrets(options: Mapping[str, str]) -> None:
    found = ((TABLE.find(name), text) for name, text in options.items())
    if any(option and _holds_secret(option, text) for option, text in found):
        raise InvalidOption(
            "CREATE TABLE would keep the password of Redis in the catalog for all to read. Leave "
            "out the password and redis.url, and give the address with its password to Spark's "
            "driver and executors as RMQ_REDIS_URL; or use CREATE TEMPORARY VIEW, which is not "
            "kept."
        )


def _holds_secret(option: Option[Any], text: str) -> bool:
    is_address = option in (URL, SENTINELS)
    return option.is_secret and (not is_address or "@" in text or "?" in text)


class TablePartition(InputPartition):
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
        """Distribute the selected slots over tasks, each slot to one."""
        options = self._options
        server = shared_server(options.connection)
        topic = Broker(server, key_prefix=options.key_prefix).definition(options.topic)
        queue = Queue(server, topic, key_prefix=options.key_prefix, group=options.group)
        slots = options.scope.slots_of(topic)
        tasks = min(options.num_partitions or self._tasks_by_size(queue, slots), len(slots))
        return [TablePartition(topic, options.scope, slots[at::tasks]) for at in range(tasks)]

    def _tasks_by_size(self, queue: Queue, slots: Sequence[int]) -> int:
        rows = sum(queue.ask(reading.sizes, self._options.scope.queues, slots))
        return max(1, min(MOST_TASKS, rows // ROWS_A_TASK))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)  # noqa: S101 - Spark hands back our own
        options, topic = self._options, partition.topic
        server = shared_server(options.connection)
        queue = Queue(server, topic, key_prefix=options.key_prefix, group=options.group)
        schema = arrow_schema(self._schema)
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
        "expiresat": lambda: times(page.expire_at_ms(), field.type),
        "duetime": lambda: times(page.due_times_ms(), field.type),
        "priority": lambda: pa.array(page.priorities(), pa.int64()),
        "retriesleft": lambda: pa.array(page.retries_left(), pa.int32()),
        "preparedat": lambda: times(page.prepared_at_ms(), field.type),
        "diedat": lambda: times(page.died_at_ms(), field.type),
        "consumer": lambda: pa.array(page.consumers(), pa.string()),
        "reason": lambda: pa.array(page.reasons(), pa.string()),
    }
    return builders[field.name.lower()]()


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
