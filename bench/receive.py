"""How fast does the Spark source receive, against what Redis itself allows?

Five million messages of 34 bytes in 64 slots, by default options and schema, AvailableNow: into
``noop`` and, by foreachBatch, into Parquet files. What counts is the time spent in triggers. The
limit is the barest script that moves as many and returns them, and one range removal a slot
(limits.py), called by one plain process.
"""

from collections.abc import Callable

from limits import RECEIVE_SIZES, SEND_SIZES, Best, Pairs, receive_seconds, send_seconds
from measuring import Figure, Report, arguments_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from send import Sender, grouped
from spark_side import folder, numbered, run_to_end, session, spent_s

import rmq_spark
from rmq_spark.local.redis import LocalRedis

TARGET = 0.70


class Receiver:
    """Messages to send once a round, and the ways to receive them."""

    def __init__(self, sender: Sender, by_slot: Pairs) -> None:
        self._sender = sender
        self._by_slot = by_slot
        self._best = Best(RECEIVE_SIZES)

    def limit(self) -> float:
        """Messages a second of the barest script."""
        each = {slot: len(pairs) // 2 for slot, pairs in self._by_slot.items()}

        def once(size: int) -> float:
            self._sender.client.flushdb()
            send_seconds(self._sender.client, self._by_slot, SEND_SIZES[1])
            return receive_seconds(self._sender.client, each, size)

        return self._sender.messages / self._best.of(once)

    def noop(self) -> float:
        """Messages a second of a query that drops them."""
        return self._speed(lambda frame, path: frame.writeStream.format("noop"))

    def parquet(self) -> float:
        """Messages a second of a query that writes each batch to Parquet files."""

        def write(frame: DataFrame, path: str) -> DataStreamWriter:
            def each(batch: DataFrame, number: int) -> None:
                batch.write.parquet(f"{path}/batch={number}")

            return frame.writeStream.foreachBatch(each)

        return self._speed(write)

    def _speed(self, written: Callable[[DataFrame, str], DataStreamWriter]) -> float:
        sender = self._sender
        sender.batch("FixedTime")
        options = {"redis.url": sender.server.url, "topic": "Bench"}
        with folder() as path:
            frame = sender.spark.readStream.format("rmq").options(**options).load()
            seconds = spent_s(run_to_end(written(frame, str(path))), "triggerExecution")
        counters = rmq_spark.connect(sender.server.url).queue("Bench").figures().counters
        if counters["committed"] != sender.messages:
            raise SystemExit(f"not all messages were committed: {counters}")
        return sender.messages / seconds


def main() -> None:
    """Measures, and writes receive.json and receive.md."""
    arguments = arguments_of(__doc__, messages=5_000_000, rounds=3).parse_args()
    report = Report.of("receive", __doc__)
    with session() as spark, LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        measure(report, spark, server, arguments.messages, arguments.rounds)
        report.write(arguments.results, server)


def measure(
    report: Report, spark: SparkSession, server: LocalRedis, messages: int, rounds: int
) -> None:
    """Limit and sinks in turns, after a round to warm up."""
    ways = ("limit", "noop", "parquet")
    found: dict[str, list[float]] = {way: [] for way in ways}
    with folder() as path:
        numbered(spark, messages, 34).write.parquet(str(path / "messages"))
        sender = Sender(spark, server, path / "messages")
        receiver = Receiver(sender, grouped(path / "messages", "fixedTime"))
        for turn in range(rounds + 1):
            speeds = {way: getattr(receiver, way)() for way in ways}
            for way, speed in speeds.items():
                found[way] += [speed] if turn else []
    limit = ("barest script", found["limit"])
    report.add(Figure("source to noop", "messages/s", found["noop"], *limit, at_least=TARGET))
    report.add(Figure("source to Parquet by foreachBatch", "messages/s", found["parquet"], *limit))


if __name__ == "__main__":
    main()
