"""What does each_message cost for a message, against plain foreachBatch functions?

All do the same next to nothing with every message of one topic. A message's cost is the time of
Spark's addBatch, which reads from Redis and runs the function, by the number of messages.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from measuring import Figure, Report, arguments_of
from pyspark.sql import DataFrame, Row, SparkSession
from spark_side import session

import rmq_spark
from rmq_spark.local.redis import LocalRedis

Body = Callable[[DataFrame, int], None]
SLOTS = 64


def work(message: Row) -> None:
    """What a function does at the least: look at a message."""
    if not message.content:
        raise ValueError("empty")


def plain_rows(frame: DataFrame, batch_id: int) -> None:
    """A plain foreachBatch: Rows, by foreachPartition."""

    def each(rows: Iterable[Row]) -> None:
        for row in rows:
            work(row)

    frame.foreachPartition(each)


def plain_arrow(frame: DataFrame, batch_id: int) -> None:
    """A plain foreachBatch: the columns as lists, by mapInArrow, with a count collected."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen = sum(1 for row in batch.to_pylist() if row["content"])
            yield pa.RecordBatch.from_pydict({"seen": [seen]})

    frame.mapInArrow(count, "seen BIGINT").collect()


def bodies(url: str) -> dict[str, Body]:
    """What is compared, by name; the first is what the others are compared with."""
    options = {"redis.url": url}
    return {
        "plain: foreachPartition": plain_rows,
        "plain: mapInArrow": plain_arrow,
        "each_message": rmq_spark.each_message(work, options=options),
        "each_message, timeout": rmq_spark.each_message(work, options=options, timeout="5s"),
        "each_message, batch=True": rmq_spark.each_message(
            lambda batch: None, options=options, batch=True
        ),
    }


def cost_us(spark: SparkSession, url: str, topic: str, messages: int, body: Body) -> float:
    """Microseconds for a message, with so many sent before."""
    queue = rmq_spark.connect(url).queue(topic)
    for start in range(0, messages, 50_000):
        numbers = range(start, min(start + 50_000, messages))
        queue.send([f'{{"order": {number:012}}}' for number in numbers], fixed_time=1000)
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as checkpoint:
        query = (
            spark.readStream.format("rmq")
            .options(**{"topic": topic, "redis.url": url})
            .load()
            .writeStream.foreachBatch(body)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    if queue.figures().counters["committed"] % messages:
        raise SystemExit(f"{topic}: not all messages were committed")
    spent_ms = sum(progress.durationMs.get("addBatch", 0) for progress in query.recentProgress)
    return 1000 * spent_ms / messages


def main() -> None:
    """Measures, and writes each_message.json and each_message.md."""
    arguments = arguments_of(__doc__, messages=200_000, rounds=3).parse_args()
    logging.basicConfig(level=logging.WARNING)
    report = Report.of("each_message", __doc__)
    with session() as spark, LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        spent = costs_us(spark, server.url, arguments.messages, arguments.rounds)
        plain, *others = spent.items()
        report.add(Figure(plain[0], "us a message", plain[1]))
        for name, rounds in others:
            report.add(Figure(name, "us a message", rounds, *plain))
        report.write(arguments.results, server)


def costs_us(spark: SparkSession, url: str, messages: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a message of each body, by round; they take turns, after one to warm up."""
    compared = bodies(url)
    spent: dict[str, list[float]] = {name: [] for name in compared}
    broker = rmq_spark.connect(url)
    for turn in range(rounds + 1):
        for number, (name, body) in enumerate(compared.items()):
            broker.create(f"T{number}", "FixedTime", SLOTS)
            us = cost_us(spark, url, f"T{number}", messages, body)
            if turn:
                spent[name].append(us)
    return spent


if __name__ == "__main__":
    main()
