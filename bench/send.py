"""How fast do Spark's sinks send, against what Redis itself allows?

One million messages of each type of topic, of 34 bytes and of 1 KiB, from Parquet files into 64
slots: by df.write (the whole call) and by df.writeStream (the whole trigger). The limit is the
barest script that stores as many with such scores (limits.py), called by one plain process with
messages grouped by slot.
"""

from pathlib import Path

import pyarrow.parquet
import redis
from limits import SEND_SIZES, Best, Pairs, send_seconds
from measuring import Figure, Report, arguments_of
from pyspark.sql import SparkSession
from spark_side import folder, numbered, run_to_end, session, spent_s, timed

import rmq_spark
from rmq_spark.local.redis import LocalRedis
from rmq_spark.topics.definition import slot_of

SLOTS = 64
TYPES = {"FixedTime": "fixedTime", "Priority": "priority", "RangeMerge": "timeRange"}
SIZES = {34: "34 bytes", 1024: "1 KiB"}
TARGET = 0.90


def grouped(source: Path, column: str) -> Pairs:
    """The messages as the barest script gets them: by slot, score, content, ..."""
    table = pyarrow.parquet.read_table(source, columns=["content", column])
    contents = [content.encode() for content in table.column("content").to_pylist()]
    # A timeRange becomes a due time like these.
    base = 1_700_000_000_000 if column == "timeRange" else 0
    scores = [b"%d" % (base + score) for score in table.column(column).to_pylist()]
    by_slot: Pairs = {slot: [] for slot in range(SLOTS)}
    for score, content in zip(scores, contents, strict=True):
        by_slot[slot_of(content, SLOTS)] += (score, content)
    return by_slot


class Sender:
    """One server, files of messages, and the ways to send them."""

    def __init__(self, spark: SparkSession, server: LocalRedis, source: Path) -> None:
        self.spark = spark
        self.server = server
        self.source = source
        self.messages = spark.read.parquet(str(source)).count()
        self.client = redis.Redis(port=server.port)

    def limit(self, by_slot: Pairs, best: Best) -> float:
        """Messages a second of the barest script."""

        def once(size: int) -> float:
            self.client.flushdb()
            return send_seconds(self.client, by_slot, size)

        return self.messages / best.of(once)

    def both(self, topic_type: str) -> dict[str, float]:
        """Messages a second of either sink."""
        return {"batch": self.batch(topic_type), "streaming": self.streaming(topic_type)}

    def batch(self, topic_type: str) -> float:
        """Messages a second of df.write."""
        options = self._new_topic(topic_type)
        frame = self.spark.read.parquet(str(self.source)).select("content", TYPES[topic_type])
        seconds = timed(frame.write.format("rmq").options(**options).mode("append").save)
        return self._checked(seconds)

    def streaming(self, topic_type: str) -> float:
        """Messages a second of df.writeStream, in triggers."""
        options = self._new_topic(topic_type)
        schema = self.spark.read.parquet(str(self.source)).schema
        frame = self.spark.readStream.schema(schema).parquet(str(self.source))
        frame = frame.select("content", TYPES[topic_type])
        progress = run_to_end(frame.writeStream.format("rmq").options(**options))
        return self._checked(spent_s(progress, "triggerExecution"))

    def _new_topic(self, topic_type: str) -> dict[str, str]:
        self.client.flushdb()
        rmq_spark.connect(self.server.url).create("Bench", topic_type, SLOTS)
        return {"redis.url": self.server.url, "topic": "Bench"}

    def _checked(self, seconds: float) -> float:
        counters = rmq_spark.connect(self.server.url).queue("Bench").figures().counters
        if counters["accepted"] != self.messages or counters["merged"]:
            raise SystemExit(f"not what was sent: {counters}")
        return self.messages / seconds


def main() -> None:
    """Measures, and writes send.json and send.md."""
    arguments = arguments_of(__doc__, messages=1_000_000, rounds=3).parse_args()
    report = Report.of("send", __doc__)
    with session() as spark, LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        for size, told in SIZES.items():
            with folder() as path:
                numbered(spark, arguments.messages, size).write.parquet(str(path / "messages"))
                measure(report, Sender(spark, server, path / "messages"), told, arguments.rounds)
        report.write(arguments.results, server)


def measure(report: Report, sender: Sender, told: str, rounds: int) -> None:
    """Limit and sinks in turns, after a round to warm up."""
    found: dict[tuple[str, str], list[float]] = {}
    limits: dict[str, list[float]] = {topic_type: [] for topic_type in TYPES}
    for topic_type, column in TYPES.items():
        by_slot, best = grouped(sender.source, column), Best(SEND_SIZES)
        for turn in range(rounds + 1):
            limit, speeds = sender.limit(by_slot, best), sender.both(topic_type)
            if turn:
                limits[topic_type].append(limit)
                for way, speed in speeds.items():
                    found.setdefault((way, topic_type), []).append(speed)
    for (way, topic_type), speeds_of in sorted(found.items()):
        name = f"{way} sink, {topic_type}, {told}"
        limit_of = ("barest script", limits[topic_type])
        report.add(Figure(name, "messages/s", speeds_of, *limit_of, at_least=TARGET))


if __name__ == "__main__":
    main()
