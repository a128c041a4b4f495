"""What does each hop of a larger deployment cost?

Microseconds a message, sent by df.write and received into ``noop`` in triggers, in turns: one
Redis and a local Spark; the slots owned through ZooKeeper; a Redis Cluster of three masters; the
same with a replica each that must confirm; and with all of that a Spark cluster of two workers. All
of it runs on this one machine, so more nodes do not make it faster here: it shows what they cost.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from measuring import Figure, Report, arguments_of
from pyspark.sql import SparkSession
from spark_side import folder, numbered, run_to_end, session, spent_s, timed

from jobs.flights.place import Place
from jobs.flights.redis_cluster import LocalCluster
from jobs.flights.spark_cluster import LocalSpark
from rmq_spark.local.redis import LocalRedis
from rmq_spark.local.zookeeper import LocalEnsemble

SLOTS, BYTES = 64, 34
SETTINGS = {"appendonly": "no"}
FIRST = "one Redis, local Spark"


@dataclass(frozen=True)
class Hops:
    """The servers of all ways."""

    redis: LocalRedis
    cluster: LocalCluster
    replicated: LocalCluster
    zookeeper: LocalEnsemble

    def places(self) -> dict[str, Place]:
        """The ways with a local Spark."""
        one = {"redis.url": self.redis.url}
        owned = {"zookeeper.hosts": self.zookeeper.hosts}
        several = {"redis.url": self.cluster.url, "redis.cluster": "true"}
        return {
            FIRST: Place(one),
            "ZooKeeper": Place(one, reading=owned),
            "Redis Cluster": Place(several),
            "a replica confirms": self.replicated_place(),
        }

    def replicated_place(self) -> Place:
        """A Redis Cluster where each master has a replica that must confirm."""
        return Place(
            {
                "redis.url": self.replicated.url,
                "redis.cluster": "true",
                "redis.minReplicas": "1",
                "redis.replicaTimeout": "10s",
            }
        )

    def everything(self) -> Place:
        """The same with ZooKeeper."""
        connection = self.replicated_place().connection
        return Place(connection, reading={"zookeeper.hosts": self.zookeeper.hosts})


def us(spark: SparkSession, place: Place, messages: int) -> tuple[float, float]:
    """Microseconds to send and to receive a message there."""
    broker = place.connect(f"{uuid.uuid4().hex[:8]}:")
    broker.create("Bench", "FixedTime", SLOTS)
    options = {**place.connection, "topic": "Bench", "keyPrefix": broker.key_prefix}
    with folder() as path:
        numbered(spark, messages, BYTES).write.parquet(str(path / "messages"))
        frame = spark.read.parquet(str(path / "messages")).select("content", "fixedTime")
        sent_s = timed(frame.write.format("rmq").options(**options).mode("append").save)
    reader = spark.readStream.format("rmq").options(**options).options(**place.reading)
    progress = run_to_end(reader.load().writeStream.format("noop"))
    if sum(report.numInputRows for report in progress) != messages:
        raise SystemExit("not all messages came")
    broker.delete("Bench")
    broker.close()
    return 1e6 * sent_s / messages, 1e6 * spent_s(progress, "triggerExecution") / messages


@contextmanager
def started(executable: str | None) -> Iterator[Hops]:
    """All servers but Spark's."""
    with ExitStack() as stack:
        yield Hops(
            stack.enter_context(LocalRedis(executable, SETTINGS)),
            stack.enter_context(LocalCluster(3, 0, executable, SETTINGS)),
            stack.enter_context(LocalCluster(3, 1, executable, SETTINGS)),
            stack.enter_context(LocalEnsemble(3)),
        )


def in_turns(
    spark: SparkSession, places: Mapping[str, Place], messages: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """What each took, round by round, after one to warm up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in places}
    for number in range(rounds + 1):
        for name, place in places.items():
            pair = us(spark, place, messages)
            if number:
                found[name].append(pair)
    return found


def main() -> None:
    """Measures, and writes hops.json and hops.md."""
    arguments = arguments_of(__doc__, messages=500_000, rounds=3).parse_args()
    report = Report.of("hops", __doc__)
    with started(arguments.redis) as hops:
        with session() as spark:
            found = in_turns(spark, hops.places(), arguments.messages, arguments.rounds)
        with LocalSpark(workers=2, cores=1, memory="1g") as cluster:
            settings = {
                "spark.master": cluster.master,
                "spark.cores.max": "2",
                "spark.executor.memory": "600m",
            }
            with session(**settings) as spark:
                places = {"all, and a Spark cluster": hops.everything()}
                found |= in_turns(spark, places, arguments.messages, arguments.rounds)
        for at, way in enumerate(("send", "receive")):
            for name, pairs in found.items():
                figure = Figure(f"{way}: {name}", "us a message", [pair[at] for pair in pairs])
                if name != FIRST:
                    figure.against = FIRST
                    figure.beside = [pair[at] for pair in found[FIRST]]
                report.add(figure)
        report.write(arguments.results, hops.redis)


if __name__ == "__main__":
    main()
