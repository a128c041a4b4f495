"""What each_message costs for a message, against plain foreachBatch functions.

All do the same next to nothing with every message of one topic. A message's cost is the time of
Spark's addBatch, which reads from Redis and runs the function, by the number of messages; it is the
median of the rounds, which take turns.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

import rmq_spark
from rmq_spark.local import LocalRedis

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
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=200_000, help="a round (default: 200000)")
    parser.add_argument("--rounds", type=int, default=3, help="after one to warm up (default: 3)")
    parser.add_argument("--cores", type=int, default=2, help="of the local Spark (default: 2)")
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    logging.basicConfig(level=logging.WARNING)
    spark = (
        SparkSession.builder.master(f"local[{arguments.cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with LocalRedis() as server:
        compared = bodies(server.url)
        spent: dict[str, list[float]] = {name: [] for name in compared}
        broker = rmq_spark.connect(server.url)
        for turn in range(arguments.rounds + 1):
            for number, (name, body) in enumerate(compared.items()):
                broker.create(f"T{number}", "FixedTime", SLOTS)
                us = cost_us(spark, server.url, f"T{number}", arguments.messages, body)
                if turn:
                    spent[name].append(us)
        spark.stop()
    report({name: statistics.median(costs) for name, costs in spent.items()}, arguments.messages)


def report(medians: dict[str, Any], messages: int) -> None:
    """Prints what was measured."""
    plain = next(iter(medians.values()))
    print(f"{messages} messages a round, {Path(__file__).name}")
    print(f"{'':28}{'us a message':>14}{'of plain':>10}{'more, us':>10}")
    for name, us in medians.items():
        print(f"{name:28}{us:14.2f}{us / plain:10.2f}{us - plain:10.2f}")


if __name__ == "__main__":
    main()
