"""How fast are our source and sink beside Spark's for Kafka, on the same machine and messages?

With default options and triggers: df.write, df.writeStream, a query that drops rows and one that
calls a Python function for each, the latency of single messages from their send to foreachBatch,
and the CPU of server and query while nothing comes. One broker, which writes to disk as Redis does
with its append-only file. `make bench-peers` installs what it needs.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import redis
from broker_side import PARTITIONS, Kafka, versions
from confluent_kafka import Producer
from idle import WARM_UP_S, children, cpu_s
from latency import latencies_ms
from measuring import Figure, Report, arguments_of
from peers import Ours as Receiving
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from send import SLOTS, Sender
from spark_side import folder, numbered, run_to_end, session, spent_s, timed

import rmq_spark
from rmq_spark.local.redis import LocalRedis
from tests.kafka_broker import connector

A_SECOND = 100
WAYS = {
    "df.write": "df.write",
    "df.writeStream": "df.writeStream",
    "noop": "source to noop",
    "call": "source, a function for each row",
}
NOTES = (
    "A ratio above 1 says that we are better: of a time it is theirs by ours.",
    "Redis writes its append-only file and has it on disk each second; Kafka leaves that to the "
    f"system. Kafka's topic has {PARTITIONS} partitions, ours {SLOTS} slots.",
    "Ours is a FixedTime topic: delayed, merged, claimed and committed. Kafka appends, and Spark "
    "remembers offsets. The function for each row is called by `each_message` and by `foreach`.",
)


class ThroughKafka:
    """Kafka's sink and source of Spark, and what they are measured with."""

    def __init__(self, spark: SparkSession, kafka: Kafka, source: Path) -> None:
        self._spark = spark
        self._kafka = kafka
        self._source = source
        self._messages = spark.read.parquet(str(source)).count()
        self._topics = 0
        self.server_pid = kafka.pid

    def speeds(self) -> dict[str, float]:
        """Messages a second of each way."""
        return {
            "df.write": self._messages / timed(self._batch),
            "df.writeStream": self._streaming(),
            "noop": self._received(lambda frame: frame.writeStream.format("noop")),
            "call": self._received(lambda frame: frame.writeStream.foreach(nothing)),
        }

    def new_topic(self) -> None:
        """Have an empty topic."""
        self._topics += 1
        self._topic = f"spark-{self._topics}"
        self._kafka.create(self._topic, PARTITIONS)

    @property
    def trickle(self) -> tuple[Any, ...]:
        """What sends single messages, and where to."""
        return trickle_into_kafka, self._kafka.address, self._topic

    def contents(self) -> DataFrame:
        """A stream of the topic's messages, by default from now on."""
        return self._read().selectExpr("CAST(value AS STRING) AS content")

    def _read(self, **options: str) -> DataFrame:
        where = {"kafka.bootstrap.servers": self._kafka.address, "subscribe": self._topic}
        return self._spark.readStream.format("kafka").options(**where, **options).load()

    def _written(self, frame: DataFrame, writer: Callable[[DataFrame], Any]) -> Any:
        self.new_topic()
        options = {"kafka.bootstrap.servers": self._kafka.address, "topic": self._topic}
        return writer(frame.selectExpr("content AS value")).format("kafka").options(**options)

    def _batch(self) -> None:
        frame = self._spark.read.parquet(str(self._source))
        self._written(frame, lambda frame: frame.write).mode("append").save()

    def _streaming(self) -> float:
        schema = self._spark.read.parquet(str(self._source)).schema
        frame = self._spark.readStream.schema(schema).parquet(str(self._source))
        return self._speed(self._written(frame, lambda frame: frame.writeStream))

    def _received(self, write: Callable[[DataFrame], DataStreamWriter]) -> float:
        frame = self._read(startingOffsets="earliest")
        return self._speed(write(frame.selectExpr("CAST(value AS STRING) AS content")))

    def _speed(self, writer: DataStreamWriter) -> float:
        progress = run_to_end(writer)
        rows = sum(each.numInputRows for each in progress)
        if rows != self._messages:
            raise SystemExit(f"Kafka: {rows} of {self._messages} messages came")
        return self._messages / spent_s(progress, "triggerExecution")


class ThroughOurs:
    """Our sink and source, measured in the same way."""

    def __init__(self, spark: SparkSession, server: LocalRedis, source: Path) -> None:
        self._spark = spark
        self._server = server
        self._sender = Sender(spark, server, source)
        self._receiving = Receiving(self._sender)
        self.server_pid = server.pid

    def speeds(self) -> dict[str, float]:
        """Messages a second of each way."""
        return {
            "df.write": self._sender.batch("FixedTime"),
            "df.writeStream": self._sender.streaming("FixedTime"),
            "noop": self._receiving.noop(),
            "call": self._receiving.each_message(),
        }

    def new_topic(self) -> None:
        """Have an empty topic."""
        redis.Redis(port=self._server.port).flushdb()
        rmq_spark.connect(self._server.url).create("Bench", "FixedTime", SLOTS)

    @property
    def trickle(self) -> tuple[Any, ...]:
        """What sends single messages, and where to."""
        return trickle_into_ours, self._server.url

    def contents(self) -> DataFrame:
        """A stream of the topic's messages."""
        options = {"redis.url": self._server.url, "topic": "Bench"}
        return self._spark.readStream.format("rmq").options(**options).load().select("content")


def nothing(row: Row) -> None:
    """What is called for each row."""


def trickle_into_kafka(url: str, topic: str) -> None:
    """Send single messages that say when they were sent, until it is ended."""
    producer = Producer({"bootstrap.servers": url, "linger.ms": 0})
    while True:
        producer.produce(topic, f"{time.time():.6f}")
        producer.flush()
        time.sleep(1 / A_SECOND)


def trickle_into_ours(url: str) -> None:
    """Send the same."""
    queue = rmq_spark.connect(url).queue("Bench")
    while True:
        queue.send([f"{time.time():.6f}"], fixed_time=0)
        time.sleep(1 / A_SECOND)


@contextmanager
def another_process(target: Callable[..., None], *arguments: str) -> Iterator[None]:
    """Run a function in a process of its own meanwhile."""
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=arguments, daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def latency_ms(side: ThroughOurs | ThroughKafka, length: argparse.Namespace) -> list[float]:
    """Milliseconds from the sends of single messages until foreachBatch has them."""
    side.new_topic()
    frame = side.contents().selectExpr(
        "content", "CAST(CAST(content AS DOUBLE) AS TIMESTAMP) AS dueTime"
    )
    with another_process(*side.trickle):
        found: list[float] = latencies_ms(frame, length).tolist()
    return found


def idle(side: ThroughOurs | ThroughKafka, seconds: int) -> dict[str, float]:
    """CPU of the server and of the query's JVM and Python, in % of a core."""
    side.new_topic()
    jvm = spark_jvm()
    with folder() as checkpoint:
        writer = side.contents().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination(int(WARM_UP_S))
        before, start = spent_by(side.server_pid, *children(jvm)), time.monotonic()
        query.awaitTermination(seconds)
        after, took = spent_by(side.server_pid, *children(jvm)), time.monotonic() - start
        query.stop()
    used = {pid: 100 * (spent - before.get(pid, 0)) / took for pid, spent in after.items()}
    server = used.pop(side.server_pid)
    return {"server": server, "query": sum(used.values())}


def spent_by(*pids: int) -> dict[int, float]:
    """Seconds of CPU of those processes that have not ended."""
    found = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = cpu_s(pid)
    return found


def spark_jvm() -> int:
    """The process of Spark, which is not the only JVM that this one has started."""
    for pid in children(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise SystemExit("Spark has no process")


def main() -> None:
    """Measures, and writes beside_kafka.json and beside_kafka.md."""
    sizes = {"messages": 1_000_000, "seconds": 10, "warmup": 20, "rounds": 3}
    arguments = arguments_of(__doc__, **sizes).parse_args()
    report = Report.of("beside_kafka", __doc__)
    # Told to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    report.notes += [*NOTES, versions("kafka_2.13", "spark-sql-kafka-0-10_2.13")]
    with LocalRedis(arguments.redis) as server, Kafka() as kafka:
        with session(**{"spark.jars": connector()}) as spark, folder() as path:
            numbered(spark, arguments.messages, 34).write.parquet(str(path / "messages"))
            ours = ThroughOurs(spark, server, path / "messages")
            theirs = ThroughKafka(spark, kafka, path / "messages")
            many_at_once(report, ours, theirs, arguments.rounds)
            one_by_one(report, ours, theirs, arguments)
        report.write(arguments.results, server)


def many_at_once(report: Report, ours: ThroughOurs, theirs: ThroughKafka, rounds: int) -> None:
    """Both in turns, after a round to warm up, unless there is only one."""
    own, beside = [], []
    warm_up = int(rounds > 1)
    for _ in range(rounds + warm_up):
        own.append(ours.speeds())
        beside.append(theirs.speeds())
    for way, told in WAYS.items():
        mine, kafkas = ([each[way] for each in side[warm_up:]] for side in (own, beside))
        report.add(Figure(told, "messages/s", mine, "Kafka", kafkas))


def one_by_one(
    report: Report, ours: ThroughOurs, theirs: ThroughKafka, arguments: argparse.Namespace
) -> None:
    """Latency of single messages, and the cost of waiting for them, in turns."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(arguments.rounds):
        for at, side in enumerate((ours, theirs)):
            late = latency_ms(side, arguments)
            values = {f"latency p{part}": float(np.percentile(late, part)) for part in (50, 99)}
            cpu = idle(side, arguments.seconds)
            for name, value in (values | {f"idle: {who}": cpu[who] for who in cpu}).items():
                found.setdefault(name, ([], []))[at].append(value)
    for name, (own, beside) in found.items():
        if name.startswith("idle"):  # a ratio to nothing says nothing
            report.add(Figure(f"{name}, ours", "% of a core", own))
            report.add(Figure(f"{name}, Kafka", "% of a core", beside))
        else:
            report.add(Figure(f"{name}, single messages", "ms", own, "Kafka", beside, inverse=True))


if __name__ == "__main__":
    main()
