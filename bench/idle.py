"""What does a query cost while nothing is due?

A query with default options and trigger on a topic of 64 and of 1024 slots, in each of which a
message waits for next year. Commands a second (those within scripts, too), and CPU time of Redis
and of the reader's Python process as a part of one core; Spark's own JVM is shown beside them.
"""

import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import redis
from measuring import Figure, Report, arguments_of
from pyspark.sql import SparkSession
from spark_side import session

import rmq_spark
from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol import sending

SLOTS = (64, 1024)
WARM_UP_S = 5.0
READER = b"python_streaming_source_runner"
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
TARGET = {1024: 3.0}


@dataclass
class Spent:
    """What was used up to now: commands, and seconds of CPU."""

    commands: int
    redis: float
    reader: float
    jvm: float


def cpu_s(pid: int) -> float:
    """Seconds of CPU a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICKS_A_SECOND


def children(pid: int) -> list[int]:
    """The processes below one, itself included. One that has ended meanwhile has none below it."""
    below: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            below += map(int, (task / "children").read_text().split())
    return [pid, *(found for child in below for found in children(child))]


def spent(server: LocalRedis, client: "redis.Redis") -> Spent:
    """Reads the meters."""
    commands = client.info("stats")["total_commands_processed"]
    reader, jvm = 0.0, 0.0
    for pid in children(os.getpid()):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if READER in line:
            reader += cpu_s(pid)
        elif b"java" in line.split(b"\0")[0]:
            jvm += cpu_s(pid)
    return Spent(int(commands), cpu_s(server.pid), reader, jvm)


def idle(spark: SparkSession, server: LocalRedis, slots: int, seconds: int) -> dict[str, float]:
    """Commands a second, and % of a core."""
    client = redis.Redis(port=server.port)
    client.flushdb()
    broker = rmq_spark.connect(server.url)
    broker.create("Bench", "FixedTime", slots)
    next_year = broker.queue("Bench").now_ms() + 365 * 86_400_000
    broker.queue("Bench").ask(sending.send, {slot: [next_year, b"m"] for slot in range(slots)})
    frame = spark.readStream.format("rmq").options(**{"redis.url": server.url, "topic": "Bench"})
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as checkpoint:
        writer = frame.load().writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination(int(WARM_UP_S))
        before, start = spent(server, client), time.monotonic()
        query.awaitTermination(seconds)
        after, took = spent(server, client), time.monotonic() - start
        query.stop()
    return {
        "commands": (after.commands - before.commands) / took,
        "Redis": 100 * (after.redis - before.redis) / took,
        "reader": 100 * (after.reader - before.reader) / took,
        "JVM": 100 * (after.jvm - before.jvm) / took,
    }


def main() -> None:
    """Measures, and writes idle.json and idle.md."""
    arguments = arguments_of(__doc__, seconds=20, rounds=3).parse_args()
    report = Report.of("idle", __doc__)
    with session() as spark, LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        for slots in SLOTS:
            rounds = [
                idle(spark, server, slots, arguments.seconds) for _ in range(arguments.rounds)
            ]
            told = f"{slots} slots"
            report.add(Figure(f"commands, {told}", "a second", [r["commands"] for r in rounds]))
            for who in ("Redis", "reader", "JVM"):
                target = TARGET.get(slots) if who != "JVM" else None
                of_core = [found[who] for found in rounds]
                report.add(Figure(f"CPU of {who}, {told}", "% of a core", of_core, at_most=target))
        report.write(arguments.results, server)


if __name__ == "__main__":
    main()
