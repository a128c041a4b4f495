"""How fast is a queue read as a table, and how long does a call keep others waiting?

Messages stored in 64 slots are read to ``noop`` with all columns. How long each call of the script
took is what Redis' own slow log says, in which it notes all of them.
"""

import redis
from measuring import Figure, Report, arguments_of
from spark_side import folder, numbered, session, timed

import rmq_spark
from rmq_spark.dev_servers.redis_server import LocalRedis

SLOTS, BYTES = 64, 34
LONGEST_MS = 20.0
SETTINGS = {"appendonly": "no", "slowlog-max-len": "1000000"}


def main() -> None:
    """Measures, and writes table.json and table.md."""
    arguments = arguments_of(__doc__, messages=5_000_000, rounds=3).parse_args()
    report = Report.of("table", __doc__)
    speeds, calls_ms = [], []
    with LocalRedis(arguments.redis, SETTINGS) as server, session() as spark, folder() as path:
        broker = rmq_spark.connect(server.url)
        broker.create("Bench", "FixedTime", SLOTS)
        options = {"redis.url": server.url, "topic": "Bench"}
        numbered(spark, arguments.messages, BYTES).write.parquet(str(path / "messages"))
        stored = spark.read.parquet(str(path / "messages")).select("content", "fixedTime")
        stored.write.format("rmq").options(**options).mode("append").save()
        frame = spark.read.format("rmq").options(**options, queue="store").load()
        read = frame.write.format("noop").mode("overwrite").save
        client = broker.server.client
        for number in range(arguments.rounds + 1):
            client.config_set("slowlog-log-slower-than", 0)
            client.slowlog_reset()
            spent_s = timed(read)
            client.config_set("slowlog-log-slower-than", -1)
            if number:
                speeds.append(arguments.messages / spent_s)
                calls_ms.append(durations_ms(client))
        report.add(Figure("read", "rows/s", speeds))
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            report.add(Figure(f"call {name}", "ms", [at(calls, part) for calls in calls_ms]))
        longest = [calls[-1] for calls in calls_ms]
        report.add(Figure("longest call", "ms", longest, at_most=LONGEST_MS))
        report.write(arguments.results, server)
        broker.close()


def durations_ms(client: "redis.Redis") -> list[float]:
    """How long each call of a script took, in order."""
    noted = client.slowlog_get(1_000_000)
    scripts = [one for one in noted if one["command"].startswith(b"EVALSHA")]
    return sorted(one["duration"] / 1000 for one in scripts)


def at(calls: list[float], part: float) -> float:
    """A quantile."""
    return calls[int(part * (len(calls) - 1))]


if __name__ == "__main__":
    main()
