"""How fast is a queue read as a table, and how long does a call keep others waiting?

Messages stored in 64 slots are read to ``noop`` with all columns. How long each call of the script
took is what Redis' own slow log says, in which it notes all of them.
"""

from measuring import NOTING, Figure, Report, arguments_of, at, noting
from spark_side import folder, numbered, session, timed

import rmq_spark
from rmq_spark.local.redis import LocalRedis

SLOTS, BYTES = 64, 34
LONGEST_MS = 20.0


def main() -> None:
    """Measures, and writes table.json and table.md."""
    arguments = arguments_of(__doc__, messages=5_000_000, rounds=3).parse_args()
    report = Report.of("table", __doc__)
    speeds, calls_ms = [], []
    with LocalRedis(arguments.redis, NOTING) as server, session() as spark, folder() as path:
        broker = rmq_spark.connect(server.url)
        broker.create("Bench", "FixedTime", SLOTS)
        options = {"redis.url": server.url, "topic": "Bench"}
        numbered(spark, arguments.messages, BYTES).write.parquet(str(path / "messages"))
        stored = spark.read.parquet(str(path / "messages")).select("content", "fixedTime")
        stored.write.format("rmq").options(**options).mode("append").save()
        frame = spark.read.format("rmq").options(**options, queue="store").load()
        read = frame.write.format("noop").mode("overwrite").save
        for number in range(arguments.rounds + 1):
            with noting(broker) as calls:
                spent_s = timed(read)
            if number:
                speeds.append(arguments.messages / spent_s)
                calls_ms.append(sorted(spent_ms for spent_ms, name in calls if name == "page"))
        report.add(Figure("read", "rows/s", speeds))
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            report.add(Figure(f"call {name}", "ms", [at(calls, part) for calls in calls_ms]))
        longest = [calls[-1] for calls in calls_ms]
        report.add(Figure("longest call", "ms", longest, at_most=LONGEST_MS))
        report.write(arguments.results, server)
        broker.close()


if __name__ == "__main__":
    main()
