"""What happens when a million messages fall due in one second, with 1, 4 and 16 queries?

The queries run in one Spark on this machine, each with a checkpoint of its own, and share the 64
slots of a topic. They are warm and wait. Then the messages fall due, evenly over a second, and each
query hands its batches to foreachBatch, which collects the due times. A message's lateness is the
time at which its batch is there, less its due time. Another process asks Redis for an answer a
thousand times a second: the longest wait is the longest stall.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import redis
from measuring import NOTING, Figure, Report, arguments_of, noting
from pyspark.sql import DataFrame, SparkSession
from spark_side import session

import rmq_spark
from rmq_spark import Message
from rmq_spark.client import Queue
from rmq_spark.local.redis import LocalRedis

QUERIES = (1, 4, 16)
SLOTS = 64
MESSAGES_A_SEND = 50_000
SEND_MESSAGES_S = 40_000  # that a plain process sends at least, to know when all are stored
START_S, END_S, LOOK_EVERY_S = 180.0, 600.0, 0.25
WARM_EVERY_S, WARM_MESSAGES, WARM_BATCHES = 0.5, 64, 3
NOTED_US = 1000


class Receiver:
    """What one query received of the burst."""

    def __init__(self, begins_ms: list[float]) -> None:
        """begins_ms: when the burst begins, once that is known."""
        self._begins_ms = begins_ms
        self.batches = self.messages = 0
        self.late_ms: list[Any] = []  # arrays
        self.last_s = 0.0

    def collect(self, batch: DataFrame, number: int) -> None:
        """The function of foreachBatch."""
        due = batch.select("dueTime").toArrow().column("dueTime").cast("int64").to_numpy() / 1000
        now_s, begins_ms = time.time(), self._begins_ms[0]
        first = due[due >= begins_ms]
        again = int(np.isnan(due).sum()) if now_s * 1000 >= begins_ms else 0  # has no due time
        self.late_ms.append(now_s * 1000 - first)
        if len(first):
            self.last_s = now_s
        self.messages += len(first) + again
        self.batches += 1


@contextmanager
def queries(spark: SparkSession, server: LocalRedis, receivers: list[Receiver]) -> Iterator[None]:
    """Runs a query for each receiver; all of them have had batches when the body begins."""
    options = {"redis.url": server.url, "topic": "Bench"}
    queue = rmq_spark.connect(server.url).queue("Bench")
    with ExitStack() as stack:
        for receiver in receivers:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-bench-"))
            frame = spark.readStream.format("rmq").options(**options).load()
            writer = frame.writeStream.foreachBatch(receiver.collect)
            stack.callback(writer.option("checkpointLocation", folder).start().stop)
        warm_up(queue, receivers)
        yield


def warm_up(queue: Queue, receivers: list[Receiver]) -> None:
    """Sends a few messages again and again, until every query has had batches."""
    end, number = time.monotonic() + START_S, 0
    while any(receiver.batches < WARM_BATCHES for receiver in receivers):
        queue.send([f"warm {number} {at}" for at in range(WARM_MESSAGES)], fixed_time=0)
        number += 1
        time.sleep(WARM_EVERY_S)
        if time.monotonic() > end:
            raise SystemExit(f"batches after {START_S:.0f} s: {[r.batches for r in receivers]}")


def send(queue: Queue, messages: int) -> float:
    """Stores the burst, which begins later. Returns when it begins, in ms since 1970."""
    begins_ms = queue.now_ms() + 5000 + 1000 * messages // SEND_MESSAGES_S
    for start in range(0, messages, MESSAGES_A_SEND):
        queue.send(
            Message(f'{{"order": {number:010d}, "x": "xxxx"}}', fixed_time=due)
            for number, due in (
                (number, begins_ms + number * 1000 // messages)
                for number in range(start, min(messages, start + MESSAGES_A_SEND))
            )
        )
    if queue.now_ms() >= begins_ms:
        raise SystemExit("the messages fell due before all of them were sent")
    return begins_ms


def wait_for_all(queue: Queue) -> None:
    """Until the queries have committed all messages."""
    end = time.monotonic() + END_S
    while left := queue.figures().messages:
        time.sleep(LOOK_EVERY_S)
        if time.monotonic() > end:
            raise SystemExit(f"{left:,} messages are left after {END_S:.0f} s")


def ask_often(port: int, told: Connection) -> None:
    """Asks Redis for an answer until told to end; then tells the longest wait, in ms."""
    client, longest_s = redis.Redis(port=port), 0.0
    client.ping()
    while not told.poll(0.001):
        begun = time.perf_counter()
        client.ping()
        longest_s = max(longest_s, time.perf_counter() - begun)
    told.send(longest_s * 1000)


@contextmanager
def asking(port: int) -> Iterator[list[float]]:
    """Asks meanwhile; the list then holds the longest wait."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=ask_often, args=(port, there), daemon=True)
    process.start()
    longest_ms: list[float] = []
    try:
        yield longest_ms
        here.send("end")
        longest_ms.append(here.recv())
    finally:
        process.terminate()
        process.join()


def burst(
    spark: SparkSession, server: LocalRedis, number: int, arguments: argparse.Namespace
) -> dict[tuple[str, str], float]:
    """One burst. Returns values by name and unit."""
    redis.Redis(port=server.port).flushdb()
    broker = rmq_spark.connect(server.url)
    broker.create("Bench", "FixedTime", SLOTS)
    begins_ms = [float("inf")]
    receivers = [Receiver(begins_ms) for _ in range(number)]
    messages = arguments.messages
    with queries(spark, server, receivers):
        begins_ms[0] = send(broker.queue("Bench"), messages)
        with noting(broker, NOTED_US) as calls, asking(server.port) as waits_ms:
            wait_for_all(broker.queue("Bench"))
            connections = len(broker.server.client.client_list())
    late_s = np.concatenate([part for one in receivers for part in one.late_ms]) / 1000
    last_s = max(receiver.last_s for receiver in receivers)
    shares = [receiver.messages * number / messages for receiver in receivers]
    return {
        ("rate until the last", "messages/s"): messages / (last_s - begins_ms[0] / 1000),
        ("lateness p50", "s"): float(np.percentile(late_s, 50)),
        ("lateness p99", "s"): float(np.percentile(late_s, 99)),
        ("lateness of the last", "s"): float(late_s.max()),
        ("longest wait for an answer of Redis", "ms"): waits_ms[0],
        ("longest call", "ms"): max((spent_ms for spent_ms, _ in calls), default=NOTED_US / 1000),
        ("the query with the fewest messages", "of an equal share"): min(shares),
        ("the query with the most messages", "of an equal share"): max(shares),
        ("connections to Redis", "connections"): connections,
        ("delivered again", "messages"): sum(r.messages for r in receivers) - messages,
    }


def main() -> None:
    """Measures, and writes burst.json and burst.md."""
    arguments = arguments_of(__doc__, messages=1_000_000, queries=16, rounds=3).parse_args()
    report = Report.of("burst", __doc__)
    with session() as spark, LocalRedis(arguments.redis, NOTING) as server:
        for number in (number for number in QUERIES if number <= arguments.queries):
            found = [burst(spark, server, number, arguments) for _ in range(arguments.rounds)]
            plural = "query" if number == 1 else "queries"
            for name, unit in found[0]:
                rounds = [of_round[name, unit] for of_round in found]
                report.add(Figure(f"{name}, {number} {plural}", unit, rounds))
        report.write(arguments.results, server)


if __name__ == "__main__":
    main()
