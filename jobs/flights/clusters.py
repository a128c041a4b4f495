"""The demo on clusters of everything, of which it kills a part half-way."""

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from jobs.flights.cli import add_common, run_demo
from jobs.flights.failure import DemoFailed
from jobs.flights.place import Place
from jobs.flights.redis_cluster import LocalCluster
from jobs.flights.spark_cluster import LocalSpark
from rmq_spark.client import Queue, RmqError
from rmq_spark.local.zookeeper import LocalEnsemble

# When so much of the first topic has been delivered, a part of everything dies.
REDIS_DIES_AT, SPARK_DIES_AT = 0.3, 0.5
_POLL_S = 0.1
TAKEN_OVER_WITHIN_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it. Returns 0 when every message came through as it must."""
    parser = argparse.ArgumentParser(
        prog="cluster_demo",
        description="The demo on a Redis Cluster of six nodes, a ZooKeeper ensemble of three and a "
        "Spark cluster of a master and two workers, all on this machine. Half-way a Redis master "
        "and a Spark worker are killed.",
    )
    add_common(parser)
    options = parser.parse_args(arguments)
    return run_demo(options.output, options.flights, _clusters())


@contextmanager
def _clusters() -> Iterator[Place]:
    print("Starting six Redis nodes, three of ZooKeeper, a Spark master and two workers.")
    with (
        LocalCluster(masters=3, replicas=1) as redis,
        LocalEnsemble(3) as zookeeper,
        LocalSpark(workers=2, cores=1, memory="1g") as spark,
    ):
        yield Place(
            connection={
                "redis.url": redis.url,
                "redis.cluster": "true",
                # What one replica has survives the master; it may take a while to come back.
                "redis.minReplicas": "1",
                "redis.replicaTimeout": "10s",
            },
            reading={"zookeeper.hosts": zookeeper.hosts},
            spark={
                "spark.master": spark.master,
                "spark.cores.max": "2",
                "spark.executor.memory": "600m",
                "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
            },
            patience_s=None,
            meanwhile=lambda queue: Deaths(queue, redis, spark),
        )


class Deaths:
    """Kills a Redis master and a Spark worker while its block runs, and says so.

    Raises DemoFailed at the end when one of them was not killed.
    """

    def __init__(self, queue: Queue, redis: LocalCluster, spark: LocalSpark) -> None:
        self._queue = queue
        self._redis = redis
        self._spark = spark
        self._done = threading.Event()
        self._died: list[str] = []
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Deaths":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        if error is None and (self._trouble or len(self._died) < 2):
            killed = " and ".join(self._died) or "nothing"
            raise DemoFailed(f"Only {killed} was killed half-way: {self._trouble or 'no time'}.")

    def _run(self) -> None:
        try:
            if self._delivered(REDIS_DIES_AT):
                self._kill_redis()
            if self._delivered(SPARK_DIES_AT):
                self._kill_spark()
        except Exception as error:  # told at the end
            self._trouble = error

    def _delivered(self, share: float) -> bool:
        """Waits for it; False when the block has ended."""
        while not self._done.wait(_POLL_S):
            try:
                counters = self._queue.figures().counters
            except RmqError:
                continue
            if counters["committed"] > share * max(1, counters["accepted"]):
                return True
        return False

    def _kill_redis(self) -> None:
        """The node comes back, as a service manager would have it, when a replica has taken over.

        Until then a replica that confirms is missing, and all that needs one waits.
        """
        master = self._redis.masters()[0]
        heir = self._redis.replica_of(master)
        master.kill()
        self._say(f"Redis master on port {master.port}", "killed")
        begun = time.monotonic()
        while self._redis.role(heir) != "master":
            if time.monotonic() > begun + TAKEN_OVER_WITHIN_S:
                raise DemoFailed("No replica took over from the Redis master.")
            time.sleep(_POLL_S)
        took_s = time.monotonic() - begun
        print(f"      | its replica has taken over after {took_s:.1f} s", flush=True)
        master.start()

    def _kill_spark(self) -> None:
        host = self._spark.hosts[-1]
        self._spark.kill_worker(host)
        self._say(f"Spark worker at {host}", "killed, and its executor")

    def _say(self, what: str, happened: str) -> None:
        self._died.append(what)
        print(f"      | {what}: {happened}", flush=True)
