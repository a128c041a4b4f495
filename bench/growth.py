"""What does a message cost as slots, partitions, its size and batches grow?

Microseconds a message, sent by df.write and received into ``noop`` in triggers, where one of the
four grows and the others stay at 64 slots, 2 partitions to send and the default ones to receive,
34 bytes, and the default batch. Draws a curve of each.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import redis
from measuring import Figure, Report, arguments_of
from pyspark.sql import SparkSession
from spark_side import folder, numbered, run_to_end, session, spent_s, timed

import rmq_spark
from rmq_spark.local.redis import LocalRedis

mpl.use("Agg")
from matplotlib import pyplot

GROWING: dict[str, tuple[int, ...]] = {
    "slots": (1, 16, 64, 256, 1024),
    "partitions": (1, 2, 4, 8),
    "bytes": (34, 128, 512, 2048, 8192),
    "batch": (1_000, 10_000, 100_000, 500_000, 2_000_000),
}
SLOTS, SENDERS, BYTES = 64, 2, 34
MOST_BYTES = 256 * 1024 * 1024
SHORTEST_TRIGGERS = 20  # a batch size is measured over so many batches at most


class Course:
    """One way to send and receive: what is not named stays as it is by default."""

    def __init__(self, spark: SparkSession, server: LocalRedis, messages: int) -> None:
        self._spark = spark
        self._server = server
        self._messages = messages

    def us(self, growing: str, value: int) -> tuple[float, float]:
        """Microseconds to send and to receive a message."""
        size = value if growing == "bytes" else BYTES
        messages = min(self._messages, MOST_BYTES // size)
        if growing == "batch":
            messages = min(messages, SHORTEST_TRIGGERS * value)
        senders = value if growing == "partitions" else SENDERS
        self._new_topic(value if growing == "slots" else SLOTS)
        with folder() as path:
            numbered(self._spark, messages, size, senders).write.parquet(str(path / "messages"))
            sent_s = self._send(path / "messages")
        received_s = self._receive(self._source_options(growing, value), messages)
        return 1e6 * sent_s / messages, 1e6 * received_s / messages

    def _source_options(self, growing: str, value: int) -> dict[str, str]:
        names = {"partitions": "numPartitions", "batch": "maxRecordsPerTrigger"}
        return {names[growing]: str(value)} if growing in names else {}

    def _new_topic(self, slots: int) -> None:
        redis.Redis(port=self._server.port).flushdb()
        rmq_spark.connect(self._server.url).create("Bench", "FixedTime", slots)

    def _send(self, source: Path) -> float:
        frame = self._spark.read.parquet(str(source)).select("content", "fixedTime")
        return timed(frame.write.format("rmq").options(**self._options()).mode("append").save)

    def _receive(self, more: dict[str, str], messages: int) -> float:
        reader = self._spark.readStream.format("rmq").options(**self._options(), **more)
        progress = run_to_end(reader.load().writeStream.format("noop"))
        if sum(report.numInputRows for report in progress) != messages:
            raise SystemExit("not all messages came")
        return spent_s(progress, "triggerExecution")

    def _options(self) -> dict[str, str]:
        return {"redis.url": self._server.url, "topic": "Bench"}


def main() -> None:
    """Measures, and writes growth.json, growth.md and growth-*.png."""
    arguments = arguments_of(__doc__, messages=500_000, rounds=3).parse_args()
    report = Report.of("growth", __doc__)
    with session() as spark, LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        course = Course(spark, server, arguments.messages)
        course.us("slots", SLOTS)  # warms up
        for growing in GROWING:
            measure(report, course, growing, arguments)
        report.write(arguments.results, server)


def measure(report: Report, course: Course, growing: str, arguments: argparse.Namespace) -> None:
    """All values in turns; each is compared with the first."""
    values = GROWING[growing]
    found: dict[int, list[tuple[float, float]]] = {value: [] for value in values}
    for _ in range(arguments.rounds):
        for value in values:
            found[value].append(course.us(growing, value))
    for at, way in enumerate(("send", "receive")):
        curve = {value: [pair[at] for pair in pairs] for value, pairs in found.items()}
        for value, rounds in curve.items():
            figure = Figure(f"{way}, {value:,} {growing}", "us a message", rounds)
            if value != values[0]:
                figure.against, figure.beside = f"{values[0]:,} {growing}", curve[values[0]]
            report.add(figure)
        draw(curve, way, growing)
    pyplot.legend()
    pyplot.savefig(arguments.results / f"growth-{growing}.png", dpi=100)
    pyplot.close()


def draw(curve: dict[int, list[float]], way: str, growing: str) -> None:
    """Adds a curve, with the range of its rounds, to the picture."""
    middles = [sorted(rounds)[len(rounds) // 2] for rounds in curve.values()]
    lows = [middle - min(rounds) for middle, rounds in zip(middles, curve.values(), strict=True)]
    highs = [max(rounds) - middle for middle, rounds in zip(middles, curve.values(), strict=True)]
    pyplot.errorbar(list(curve), middles, yerr=[lows, highs], marker="o", capsize=3, label=way)
    pyplot.xscale("log", base=2)
    pyplot.ylim(bottom=0)
    pyplot.xlabel(growing)
    pyplot.ylabel("us a message")


if __name__ == "__main__":
    main()
