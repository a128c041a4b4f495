"""What do keys and payloads cost, beside messages that have only a content?

Keys of 16 bytes with payloads of 100 bytes, and contents of 34 bytes, FixedTime, 64 slots, in
turns: df.write, the source into ``noop`` (AvailableNow, time in triggers), and the memory of Redis.
"""

from measuring import Figure, Report, arguments_of
from pyspark.sql import DataFrame, SparkSession, functions
from spark_side import folder, numbered, run_to_end, session, spent_s, timed

import rmq_spark
from rmq_spark.local.redis import LocalRedis

SLOTS = 64
SENT_AT_LEAST, RECEIVED_AT_LEAST, BYTES_AT_MOST = 0.45, 0.5, 350


class Side:
    """A server, and files of messages for one kind of topic."""

    def __init__(
        self, spark: SparkSession, server: LocalRedis, path: str, messages: int, keyed: bool
    ) -> None:
        self.spark, self.server, self.path = spark, server, path
        self.messages, self.keyed = messages, keyed
        frame = with_keys(spark, messages) if keyed else numbered(spark, messages, 34)
        frame.write.parquet(path)

    def measure(self) -> tuple[float, float, float]:
        """Messages a second sent, received, and bytes of Redis a message."""
        broker = rmq_spark.connect(self.server.url)
        client = broker.server.client
        client.flushdb()
        broker.create("Bench", "FixedTime", SLOTS, keyed=self.keyed)
        columns = ["content", "fixedTime", *["key"] * self.keyed]
        frame = self.spark.read.parquet(self.path).select(columns)
        options = {"redis.url": self.server.url, "topic": "Bench"}
        before = client.info("memory")["used_memory"]
        sent = timed(frame.write.format("rmq").options(**options).mode("append").save)
        stored = client.info("memory")["used_memory"] - before
        source = self.spark.readStream.format("rmq").options(**options).load()
        received = spent_s(run_to_end(source.writeStream.format("noop")), "triggerExecution")
        counters = broker.queue("Bench").figures().counters
        if counters["committed"] != self.messages:
            raise SystemExit(f"not all messages were committed: {counters}")
        return self.messages / sent, self.messages / received, stored / self.messages


def with_keys(spark: SparkSession, messages: int) -> DataFrame:
    """Messages of a keyed topic, each key once."""
    key = functions.concat(functions.lit("number"), functions.substring("content", 11, 10))
    return numbered(spark, messages, 100).withColumn("key", key)


def main() -> None:
    """Measures, and writes keyed.json and keyed.md."""
    arguments = arguments_of(__doc__, messages=2_000_000, rounds=3).parse_args()
    report = Report.of("keyed", __doc__)
    found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    with session() as spark, LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        with folder() as path:
            sides = [
                Side(spark, server, str(path / str(keyed)), arguments.messages, keyed)
                for keyed in (False, True)
            ]
            for turn in range(arguments.rounds + 1):
                for side in sides:
                    measured = side.measure()
                    found[side.keyed] += [measured] if turn else []
        of_keys, plain = (list(zip(*found[keyed], strict=True)) for keyed in (True, False))
        beside = "without keys"
        for name, at, least in (("sent", 0, SENT_AT_LEAST), ("received", 1, RECEIVED_AT_LEAST)):
            rounds, others = list(of_keys[at]), list(plain[at])
            report.add(
                Figure(f"{name}, with keys", "messages/s", rounds, beside, others, at_least=least)
            )
        report.add(Figure("memory, with keys", "bytes", list(of_keys[2]), at_most=BYTES_AT_MOST))
        report.add(Figure("memory, without keys", "bytes", list(plain[2])))
        report.write(arguments.results, server)


if __name__ == "__main__":
    main()
