"""What changes when a hundred million messages are stored, and how soon is Redis back with them?

A million warms Spark up. `df.write` then stores 100 000 messages of 34 bytes in 64 slots, and all
the rest in tenths. Claims of 1024 messages, plans, and what people look at and repair are timed
with the 100 000 stored and with all. Then Redis writes its files, is killed, and starts from each.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis
from growing_topic import SLOTS, Backlog
from measuring import NOTING, Figure, Report, arguments_of, noting
from pyspark.sql import SparkSession
from spark_side import numbered, session, timed

from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol import returning, sending
from rmq_spark.protocol.claims import Rollback
from rmq_spark.protocol.pages import QueueKind

FEW, WARM_UP, TENTHS = 100_000, 1_000_000, 10
BYTES = 34
P99_RATIO, LONGEST_MS, LAST_OF_FIRST = 1.2, 20.0, 0.8
NOTED_US = 1000
# Measured: what Redis takes for a message, and what Spark and this bench take meanwhile.
BYTES_STORED, BYTES_BESIDE = 150, 3 * 1024**3
TIMES = 20  # how often calls other than claims are timed in a round
COMMANDED = 1000  # messages of a cancel
ON_DISK = {"appendonly": "yes", "appendfsync": "everysec"}
LOOK_S = 0.05


def main() -> None:
    """Measures, and writes hundred_million.json and hundred_million.md."""
    run(arguments_of(__doc__, messages=100_000_000, claims=1000, rounds=3).parse_args())


def run(arguments: argparse.Namespace) -> None:
    """As main does. arguments: messages, claims and rounds, redis and results."""
    check_memory(arguments.messages)
    report = Report.of("hundred_million", __doc__)
    with LocalRedis(arguments.redis, NOTING) as server:
        backlog = Backlog(server, scattered=True)
        with session() as spark:
            warm_up(spark, backlog)
            send(spark, backlog, FEW)
            few = measure_calls(report, backlog, arguments, {})
            measure_sending(report, spark, backlog, arguments.messages)
        measure_calls(report, backlog, arguments, few)
        measure_memory(report, backlog)
        measure_restarts(report, server, backlog, arguments)
        report.write(arguments.results, server)


def check_memory(messages: int) -> None:
    """Ends the bench, with what would fit, if the messages do not fit into memory."""
    needed, available = messages * BYTES_STORED + BYTES_BESIDE, available_bytes()
    if needed > available:
        fitting = max(0, (available - BYTES_BESIDE) // BYTES_STORED // 1_000_000)
        raise SystemExit(
            f"--messages {messages} needs some {needed / 1e9:.0f} GB of memory, and "
            f"{available / 1e9:.0f} GB are available. Accepted here: up to {fitting} million; "
            "or end other programs first."
        )


def available_bytes() -> int:
    """The memory that programs can still get."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/meminfo does not show MemAvailable")


def warm_up(spark: SparkSession, backlog: Backlog) -> None:
    """Sends messages to another topic, which is deleted again."""
    backlog.broker.create("Warm", "FixedTime", SLOTS)
    write(spark, backlog, "Warm", 0, WARM_UP)
    backlog.broker.delete("Warm")


def send(spark: SparkSession, backlog: Backlog, messages: int) -> float:
    """Sends the next messages. Returns the rate, in messages/s."""
    seconds = timed(lambda: write(spark, backlog, "Bench", backlog.stored, messages))
    backlog.stored += messages
    return messages / seconds


def write(spark: SparkSession, backlog: Backlog, topic: str, first: int, messages: int) -> None:
    """Sends messages, as any job does."""
    port = backlog.client.connection_pool.connection_kwargs["port"]
    frame = numbered(spark, messages, BYTES, first=first).select("content", "fixedTime")
    options = {"redis.url": f"redis://127.0.0.1:{port}/0", "topic": topic}
    frame.write.format("rmq").options(**options).mode("append").save()


def measure_sending(report: Report, spark: SparkSession, backlog: Backlog, messages: int) -> None:
    """Fills the topic in tenths."""
    tenth = (messages - backlog.stored) // TENTHS
    first: list[float] = []
    with noting(backlog.broker, NOTED_US) as calls:
        for number in range(1, TENTHS + 1):
            rate = [send(spark, backlog, tenth)]
            figure = Figure(f"send, up to {backlog.stored:,} stored", "messages/s", rate)
            if first:
                figure.against, figure.beside = "the first tenth", first
            if number == TENTHS:
                figure.at_least = LAST_OF_FIRST
            report.add(figure)
            first = first or rate
    add_longest(report, "sending", [spent_ms for spent_ms, _ in calls])


def add_longest(report: Report, name: str, spent_ms: list[float]) -> None:
    """Adds the longest call to Redis."""
    longest = [max(spent_ms, default=NOTED_US / 1000)]
    report.add(Figure(f"longest call, {name}", "ms", longest, at_most=LONGEST_MS))


Times = dict[str, list[float]]


def measure_calls(
    report: Report, backlog: Backlog, arguments: argparse.Namespace, few: Times
) -> Times:
    """Times all calls, and compares them with those at few messages. Returns the times."""
    for _ in range(SLOTS):
        backlog.claim_ms()  # warms up
    with noting(backlog.broker, NOTED_US) as calls:
        claims_ms = [
            [backlog.claim_ms() for _ in range(arguments.claims)] for _ in range(arguments.rounds)
        ]
        found: Times = {
            "claim p50": [statistics.median(times) for times in claims_ms],
            "claim p99": [statistics.quantiles(times, n=100)[98] for times in claims_ms],
            "longest claim": [max(times) for times in claims_ms],
        }
        for name, timing in calls_of(backlog).items():
            found[name] = [
                statistics.median(timing() for _ in range(TIMES)) for _ in range(arguments.rounds)
            ]
    for name, rounds in found.items():
        figure = Figure(f"{name}, {backlog.stored:,} stored", "ms", rounds)
        if few:
            figure.against, figure.beside = f"{FEW:,} stored", few[name]
        if few and name == "claim p99":
            figure.at_most = P99_RATIO
        report.add(figure)
    add_longest(report, f"{backlog.stored:,} stored", [spent_ms for spent_ms, _ in calls])
    return found


def calls_of(backlog: Backlog) -> dict[str, Callable[[], float]]:
    """What is timed beside claims; each returns milliseconds."""
    queue, repairs = backlog.queue, Repairs(backlog)
    return {
        "plan": backlog.plan_ms,
        "`rmq show`": lambda: ms_of(lambda: show(backlog)),
        "figures": lambda: ms_of(queue.figures),
        "first page of a slot": lambda: ms_of(lambda: next(queue.pages(QueueKind.STORE, 0))),
        f"cancel of {COMMANDED}": repairs.cancel_ms,
        "requeue of 1024": repairs.requeue_ms,
    }


def ms_of(call: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    return 1000 * timed(call)


def show(backlog: Backlog) -> None:
    """Run the command, whose start takes most of its time."""
    port = backlog.client.connection_pool.connection_kwargs["port"]
    command = [sys.executable, "-m", "rmq_spark.cli", "--redis-url", f"redis://127.0.0.1:{port}/0"]
    subprocess.run([*command, "show", "Bench"], check=True, stdout=subprocess.DEVNULL)


class Repairs:
    """Cancels and requeues, after which as much is stored as before."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        # The first failure of a message is its last one.
        backlog.broker.alter("Bench", max_retries=0)
        self._queue = backlog.broker.queue("Bench")

    def cancel_ms(self) -> float:
        """Milliseconds to cancel messages of a slot."""
        page = next(self._queue.pages(QueueKind.STORE, 1))
        contents = page.contents[:COMMANDED]
        spent_ms = ms_of(lambda: self._queue.cancel({1: contents}))
        pairs = [v for pair in zip(page.scores, contents, strict=False) for v in pair]
        self._queue.ask(sending.send, {1: pairs})
        return spent_ms

    def requeue_ms(self) -> float:
        """Milliseconds to requeue the dead messages of a slot."""
        claim = self._backlog.claim()
        died = Rollback(claim.slot, claim.claim_id, claim.contents, reasons=["ValueError: bench"])
        self._queue.ask(returning.rollbacks, [died])
        return ms_of(lambda: self._queue.requeue({claim.slot: claim.contents}))


def measure_memory(report: Report, backlog: Backlog) -> None:
    """What Redis takes for a message, as it counts and as the system counts."""
    found = backlog.client.info("memory")
    report.add(Figure("memory", "bytes a message", [backlog.bytes_a_message()]))
    report.add(Figure("memory of the process", "GB", [found["used_memory_rss"] / 1e9]))


def measure_restarts(
    report: Report, server: LocalRedis, backlog: Backlog, arguments: argparse.Namespace
) -> None:
    """Has Redis write its append-only file and its snapshot, kills it, and starts it from each."""
    client = backlog.client
    begun = time.monotonic()
    for name, value in ON_DISK.items():
        client.config_set(name, value)
    with noting(backlog.broker, NOTED_US) as calls:
        spent_ms = []
        while writes(client, "aof_rewrite_in_progress", "aof_rewrite_scheduled"):
            spent_ms.append(backlog.claim_ms())
    add_writing(report, client, "append-only file", time.monotonic() - begun)
    if len(spent_ms) > 1:
        p99 = statistics.quantiles(spent_ms, n=100)[98]
        report.add(Figure("claim p99 while Redis writes it", "ms", [p99]))
    add_longest(report, "while Redis writes it", [one for one, _ in calls])
    for _ in range(arguments.claims):
        backlog.claim_ms()  # goes behind what was rewritten
    time.sleep(2)  # everysec
    server.settings |= ON_DISK
    add_restart(report, server, backlog, "append-only file")
    begun = time.monotonic()
    client.bgsave()
    while writes(client, "rdb_bgsave_in_progress"):
        time.sleep(LOOK_S)
    add_writing(report, client, "snapshot", time.monotonic() - begun)
    server.settings["appendonly"] = "no"
    add_restart(report, server, backlog, "snapshot")


def writes(client: "redis.Redis", *fields: str) -> bool:
    """Whether Redis writes a file. fields: those of INFO that say so."""
    found = client.info("persistence")
    return any(found[name] for name in fields)


def add_writing(report: Report, client: "redis.Redis", name: str, seconds: float) -> None:
    """Adds how long Redis wrote a file, and how long it stood still for the fork."""
    report.add(Figure(f"{name}: written in", "s", [seconds]))
    stood_ms = client.info("stats")["latest_fork_usec"] / 1000
    report.add(Figure(f"{name}: Redis stood still for the fork", "ms", [stood_ms]))


def add_restart(report: Report, server: LocalRedis, backlog: Backlog, name: str) -> None:
    """Adds how soon Redis is back from a file."""
    seconds = [restart_s(server, backlog)]
    report.add(Figure(f"{name}: from the start to the first claim", "s", seconds))


def restart_s(server: LocalRedis, backlog: Backlog) -> float:
    """Seconds from the start of a killed Redis to its first claim. Nothing may be missing."""
    server.kill(signal.SIGKILL)
    begun = time.monotonic()
    server.start()
    while True:
        try:
            backlog.client.ping()
            break
        except (redis.BusyLoadingError, redis.ConnectionError):
            time.sleep(LOOK_S)
    backlog.claim_ms()
    seconds = time.monotonic() - begun
    there = backlog.queue.figures().store.count
    if there != backlog.stored:
        raise SystemExit(f"{there:,} of {backlog.stored:,} messages are there again")
    return seconds


if __name__ == "__main__":
    main()
