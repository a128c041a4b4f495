"""What the tests here share: topics, DataFrames on them, and queries driven call by call."""

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

import rmq_spark
from rmq_spark.client.queue import Queue
from rmq_spark.spark.compatibility import (
    TELLS_START,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
)
from rmq_spark.spark.options import parse_sink_options, parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.sink.writer import RmqWriter
from rmq_spark.spark.source.reader import NO_LIMIT, RmqStreamReader

_numbers = itertools.count()
DUE = 1_000_000  # ms: long past, so due at once
knows_available_now = pytest.mark.skipif(
    not TELLS_START, reason="the source needs Spark 4.2 to know of Trigger.AvailableNow"
)


def chained_text(error: BaseException | None) -> str:
    """Everything an error and those behind it say."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


class Rmq:
    """The server of the tests, seen by one test."""

    def __init__(self, url: str, test: str, folder: Path) -> None:
        self.url = url
        self.broker = rmq_spark.connect(url)
        self.folder = folder
        self._test = test[:80]

    def close(self) -> None:
        self.broker.close()

    def name(self) -> str:
        """A topic name that nobody has."""
        return f"{self._test}.{next(_numbers)}"

    def queue(self, topic_type: str = "FixedTime", slots: int = 4, **settings: Any) -> Queue:
        """A new topic."""
        name = self.name()
        self.broker.create(name, topic_type, slots, **settings)
        return self.broker.queue(name)

    def due(self, count: int, slots: int = 4, **settings: Any) -> Queue:
        """A new FixedTime topic with messages m0, m1, ... that fall due in this order."""
        queue = self.queue("FixedTime", slots, **settings)
        send_due(queue, range(count))
        return queue

    def options(self, queue: Queue, **more: Any) -> dict[str, str]:
        given = {
            "redis.url": self.url,
            "topic": queue.definition.name,
            "pollInterval": "20ms",
            **more,
        }
        return {name: str(value) for name, value in given.items()}

    def by_hand(self, queue: Queue, schema: StructType = SOURCE_SCHEMA, **options: Any) -> "Run":
        return Run(self.options(queue, **options), schema)

    def read(self, spark: SparkSession, queue: Queue, **options: Any) -> DataFrame:
        schema = options.pop("schema", None)
        if not TELLS_START:
            options = {"checkpointLocation": self.folder / "checkpoint", **options}
        reader = spark.readStream.format("rmq").options(**self.options(queue, **options))
        return (reader.schema(schema) if schema else reader).load()

    def write(self, frame: DataFrame, topic: str | None, **options: Any) -> None:
        given = {"redis.url": self.url, **({"topic": topic} if topic else {}), **options}
        frame.write.format("rmq").options(**given).mode("append").save()

    def writer(self, schema: StructType, **options: Any) -> RmqWriter:
        return RmqWriter(parse_sink_options({"redis.url": self.url, **options}), schema)

    def into_parquet(self, frame: DataFrame, name: str = "", **trigger: Any) -> Any:
        """Starts a query into <folder>/out with its checkpoint beside; AvailableNow by default."""
        trigger = trigger or {"availableNow": True}
        writer = self._into_parquet(frame, name)
        return writer.trigger(**trigger).start(str(self.folder / f"out{name}"))

    def _into_parquet(self, frame: DataFrame, name: str) -> Any:
        writer = frame.writeStream.format("parquet")
        return writer.option("checkpointLocation", str(self.folder / f"checkpoint{name}"))

    def drain(self, frame: DataFrame, name: str = "") -> Any:
        """Runs such a query until it has read all that is due."""
        return drained(self._into_parquet(frame, name), str(self.folder / f"out{name}"))

    def parquet(self, spark: SparkSession, name: str = "") -> DataFrame:
        return spark.read.parquet(str(self.folder / f"out{name}"))

    def contents(self, spark: SparkSession, name: str = "") -> list[str]:
        """What the query wrote, sorted, duplicates and all."""
        return sorted(row.content for row in self.parquet(spark, name).select("content").collect())


def drained(writer: DataStreamWriter, *place: str) -> StreamingQuery:
    """Runs a query until it has read all that is due, in as many batches as it takes."""
    if TELLS_START:
        query = writer.trigger(availableNow=True).start(*place)
        assert query.awaitTermination(60)
        return query
    query = writer.trigger(processingTime="0 seconds").start(*place)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


def send_due(queue: Queue, numbers: Iterator[int] | range) -> None:
    queue.send([rmq_spark.Message(f"m{n}", fixed_time=DUE + n) for n in numbers])


def names(count: int) -> list[str]:
    return sorted(f"m{n}" for n in range(count))


class Run:
    """One run of a query, call by call as Spark makes them, without Spark."""

    begun: ClassVar[list["Run"]] = []  # within a test

    def __init__(self, options: dict[str, str], schema: StructType = SOURCE_SCHEMA) -> None:
        self.options = options
        self.reader = RmqStreamReader(parse_source_options(options), schema)
        self.begun.append(self)

    def initial(self) -> dict[str, Any]:
        return self.reader.initialOffset()

    def plan(self, start: dict[str, Any], all_available: bool = False) -> dict[str, Any]:
        limit = ReadAllAvailable() if all_available else self.reader.getDefaultReadLimit()
        return self._latest(start, limit)

    def plan_of(self, start: dict[str, Any], rows: int) -> dict[str, Any]:
        return self._latest(start, ReadMaxRows(rows or NO_LIMIT))

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Plans a batch and, once there is one, commits that before it."""
        end = self.reader.latestOffset(start, limit)
        if end != start and start["seq"]:
            self.reader.commit(start)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return self.reader.partitions(start, end)

    def read(self, partitions: list[Any]) -> list[dict[str, Any]]:
        batches: list[pa.RecordBatch] = []
        for partition in partitions:
            batches += self.reader.read(partition)
        return [row for batch in batches for row in batch.to_pylist()]

    def batch(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        return self.read(self.partitions(start, end))

    def next(self, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Plans and reads one batch."""
        end = self.plan(start)
        return end, self.batch(start, end)

    def until(
        self, start: dict[str, Any], count: int
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Plans and reads batches until they have so many messages together."""
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            start, more = self.next(start)
            rows += more
        return start, rows

    def again(self, schema: StructType | None = None, **options: str) -> "Run":
        """A later run of the same query."""
        return Run({**self.options, **options}, schema or self.reader._schema)

    @property
    def number(self) -> int:
        """Its number in Redis, where each run of a query has a higher one."""
        return self.reader._run._run

    def die(self) -> None:
        """What a hard kill leaves: nobody renews, nothing is released."""
        if self.reader._run is not None:
            self.reader._run._lease.end()

    def stop(self) -> None:
        self.reader.stop()

    def end_threads(self) -> None:
        """Without a word to Redis, which may be gone."""
        if self.reader._run is not None:
            self.reader._run._watch.bell.close()
            self.reader._run._lease.end()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:  # Spark, too, stops a reader in a finally
        self.stop()


class CheckpointFiles:
    """What Spark writes: the offsets of planned batches, and the marks of finished ones."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def plan(self, batch: int, *offsets: Any) -> None:
        lines = ["v1", "{}", *map(json.dumps, offsets)]
        self._file("offsets", str(batch)).write_text("\n".join(lines))
        self._file("offsets", f".{batch}.crc").write_bytes(b"crc")

    def finish(self, batch: int) -> None:
        self._file("commits", str(batch)).write_text("v1\n{}")

    def empty(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _file(self, folder: str, name: str) -> Path:
        (self.path / folder).mkdir(parents=True, exist_ok=True)
        return self.path / folder / name


def contents(rows: list[dict[str, Any]]) -> list[str]:
    return [row["content"] for row in rows]


def rest_of(run: "Run", start: dict[str, Any]) -> list[str]:
    """What the batches behind start hold, until nothing is due."""
    taken: list[str] = []
    while (end := run.plan(start)) != start:
        taken += contents(run.batch(start, end))
        start = end
    return taken


@contextmanager
def refused(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """The block raises this error, and its message holds all parts."""
    with pytest.raises(kind) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)
