"""How long after its due time is a message in the sink, and how much of that is Spark itself?

FixedTime messages are sent ahead of their times, at 1 000 and at 20 000 a second, by a plain
process; a query with the default trigger and default options hands each batch to foreachBatch,
which collects content and dueTime. A message's latency is the time at which its batch is there,
less its due time. The floor is the same query over a source that makes such rows from the clock,
without any I/O. The first batches of each query only warm up. Draws a histogram of both.
"""

import argparse
import math
import multiprocessing
import tempfile
import threading
import time
from typing import Any

import clock_source
import matplotlib as mpl
import numpy as np
import redis
from clock_source import ClockSource
from measuring import Figure, Report, arguments_of
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from spark_side import session

import rmq_spark
from rmq_spark import Message
from rmq_spark.local.redis import LocalRedis

mpl.use("Agg")
from matplotlib import pyplot

# Spark's workers do not find the modules beside this one.
cloudpickle.register_pickle_by_value(clock_source)

RATES = (1_000, 20_000)
SLOTS = 64
AHEAD_S = 2.0  # messages are stored so long before they are due
SEND_EVERY_S = 0.25
START_S = 30.0  # at most, until a query's first batch
TARGETS = {1_000: 1.5}
BIN_MS = 20  # a bar of the histogram


def send_ahead(url: str, rate: int) -> None:
    """Sends ``rate`` messages for each second, AHEAD_S before it comes, until it is ended."""
    queue = rmq_spark.connect(url).queue("Bench")
    start, sent, every_ms = time.time() + AHEAD_S, 0, 1000 / rate
    while True:
        until = int(rate * (time.time() + AHEAD_S - start))
        queue.send(
            Message(f'{{"order": {number:010d}, "x": "xxxx"}}', fixed_time=due)
            for number, due in (
                (number, int(start * 1000 + number * every_ms)) for number in range(sent, until)
            )
        )
        sent = until
        time.sleep(SEND_EVERY_S)


def latencies_ms(frame: DataFrame, length: argparse.Namespace) -> Any:
    """Of all rows that arrived, after the first batches, within some seconds."""
    found: list[Any] = []
    enough = threading.Event()
    begin = [math.inf]

    def collect(batch: DataFrame, number: int) -> None:
        due = batch.select("content", "dueTime").toArrow().column("dueTime")
        now = time.time()
        if number == length.warmup:
            begin[0] = now
        if number > length.warmup and len(due):
            found.append(now * 1000 - due.cast("int64").to_numpy() / 1000)
        if now > begin[0] + length.seconds:
            enough.set()

    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as checkpoint:
        query = (
            frame.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
        )
        if not enough.wait(4 * (START_S + length.seconds)):
            raise SystemExit(f"too few batches: {query.lastProgress}, {query.exception()}")
        query.stop()
    return np.concatenate(found)


def of_rmq(spark: SparkSession, server: LocalRedis, rate: int, length: argparse.Namespace) -> Any:
    """Latencies of messages."""
    redis.Redis(port=server.port).flushdb()
    rmq_spark.connect(server.url).create("Bench", "FixedTime", SLOTS)
    sender = multiprocessing.get_context("spawn").Process(
        target=send_ahead, args=(server.url, rate), daemon=True
    )
    sender.start()
    try:
        options = {"redis.url": server.url, "topic": "Bench"}
        return latencies_ms(spark.readStream.format("rmq").options(**options).load(), length)
    finally:
        sender.terminate()
        sender.join()


def of_clock(spark: SparkSession, rate: int, length: argparse.Namespace) -> Any:
    """Latencies of the floor."""
    return latencies_ms(spark.readStream.format("clock").option("rate", rate).load(), length)


def main() -> None:
    """Measures, and writes latency.json, latency.md and latency.png."""
    arguments = arguments_of(__doc__, seconds=15, warmup=20, rounds=3).parse_args()
    report = Report.of("latency", __doc__)
    with session() as spark, LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        spark.dataSource.register(ClockSource)
        figure, panels = pyplot.subplots(1, len(RATES), figsize=(10, 3), layout="constrained")
        for rate, panel in zip(RATES, panels, strict=True):
            draw(panel, rate, *measure(report, spark, server, rate, arguments))
        report.write(arguments.results, server)
        figure.savefig(arguments.results / "latency.png", dpi=100)


def measure(
    report: Report,
    spark: SparkSession,
    server: LocalRedis,
    rate: int,
    arguments: argparse.Namespace,
) -> tuple[Any, Any]:
    """Messages and the floor in turns. Returns the latencies of both."""
    ours, floor = [], []
    for _ in range(arguments.rounds):
        ours.append(of_rmq(spark, server, rate, arguments))
        floor.append(of_clock(spark, rate, arguments))
    for percent in (50, 99):
        report.add(
            Figure(
                f"p{percent} at {rate:,} messages/s",
                "ms",
                [float(np.percentile(found, percent)) for found in ours],
                "Spark's floor",
                [float(np.percentile(found, percent)) for found in floor],
                at_most=TARGETS.get(rate) if percent == 99 else None,
            )
        )
    return np.concatenate(ours), np.concatenate(floor)


def draw(panel: Any, rate: int, ours: Any, floor: Any) -> None:
    """Draws which part of the messages came how late; the last bar has all that came later."""
    last_ms = BIN_MS * math.ceil(np.percentile(np.concatenate([ours, floor]), 99.8) / BIN_MS)
    bins = range(0, last_ms + 1, BIN_MS)
    for found, label in ((floor, "Spark's floor"), (ours, "RMQ")):
        parts = np.full(len(found), 100 / len(found))
        panel.hist(np.minimum(found, last_ms), bins, weights=parts, alpha=0.6, label=label)
    panel.set(title=f"{rate:,} messages/s", xlabel="ms after its due time", ylabel="% of messages")
    panel.legend()


if __name__ == "__main__":
    main()
