"""How long does the driver of a query plan with 65 536 slots, and with a thousand topics?

What Spark asks a source is asked here in Spark's place, in a process for each world: the first
offset, which opens the run; the tasks of a batch; the next offset, which commits that batch and
plans one; and the figures of a progress report. A message is due in every slot, so that every slot
is planned, claimed and committed. Beside stands a sixteenth of the slots: what is far from 16 times
as long there grows faster than the slots.
"""

import multiprocessing
import pickle
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from measuring import NOTING, Figure, Report, arguments_of
from spark_side import timed

import rmq_spark
from rmq_spark.client import Broker
from rmq_spark.local.redis import LocalRedis
from rmq_spark.spark.compatibility import ReadMaxRows
from rmq_spark.spark.datasource import RmqDataSource
from rmq_spark.spark.source.reader import NO_LIMIT

SLOTS_A_TOPIC, PART = 64, 16
MOST_GROWTH = 1.5 * PART
COMMANDS_A_PIPELINE = 10_000


@dataclass(frozen=True)
class World:
    """What one query reads. slots: of each topic."""

    topics: int
    slots: int

    def __str__(self) -> str:
        topics = "1 topic" if self.topics == 1 else f"{self.topics:,} topics"
        return f"{topics} of {self.slots:,} slots"

    @property
    def all_slots(self) -> int:
        """Slots that the query reads."""
        return self.topics * self.slots


@dataclass
class Found:
    """What was measured in one world."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    calls: int = 0  # of scripts, for a batch: planned, and the one before committed
    redis_s: float = 0.0  # that Redis worked for that
    task_bytes: int = 0  # of all tasks of a batch, as Spark sends them
    memory_bytes: int = 0  # of the process at most, beyond what it took at first


class Driver:
    """A query's driver, as far as its source is concerned."""

    def __init__(self, url: str, world: World) -> None:
        self._broker = rmq_spark.connect(url)
        self._world = world
        source = RmqDataSource({"redis.url": url, "topicPattern": "T.*"})
        self._reader = source.streamReader(source.schema())
        self._start = self._end = self._reader.initialOffset()
        self._found = Found()

    def run(self, rounds: int) -> Found:
        """Plan, hand out and commit some batches."""
        first_bytes = peak_bytes()
        fill(self._broker, self._world)
        self._time("open and plan", self._plan)
        for _ in range(rounds):
            self._time("tasks", self._hand_out)
            self._claim()
            fill(self._broker, self._world)
            calls, redis_s = scripts_run(self._broker), redis_cpu_s(self._broker)
            self._time("commit and plan", self._plan)
            self._found.calls = scripts_run(self._broker) - calls
            self._found.redis_s = redis_cpu_s(self._broker) - redis_s
        self._found.memory_bytes = peak_bytes() - first_bytes
        self._time("figures of a progress report", self._reader.reportLatestOffset)
        self._reader.stop()
        self._broker.close()
        return self._found

    def _time(self, name: str, call: Callable[[], object]) -> None:
        self._found.seconds.setdefault(name, []).append(timed(call))

    def _plan(self) -> None:
        self._start, self._end = (
            self._end,
            self._reader.latestOffset(self._end, ReadMaxRows(NO_LIMIT)),
        )
        if self._start == self._end:
            raise SystemExit("nothing was planned")
        self._reader.commit(self._start)  # as Spark does

    def _hand_out(self) -> None:
        self._tasks = self._reader.partitions(self._start, self._end)

    def _claim(self) -> None:
        """Read all tasks, as executors do. Every slot must have given its message."""
        self._found.task_bytes = sum(len(pickle.dumps(task)) for task in self._tasks)
        rows = sum(batch.num_rows for task in self._tasks for batch in self._reader.read(task))
        if rows != self._world.all_slots:
            raise SystemExit(f"{rows:,} of {self._world.all_slots:,} messages came")


def fill(broker: Broker, world: World) -> None:
    """Stores a message that is due in each slot, as if it had been sent."""
    pipeline = broker.server.client.pipeline(transaction=False)
    for number in range(world.topics):
        keys = broker.queue(f"T{number}").keys
        for slot in range(world.slots):
            pipeline.zadd(keys.store(slot), {b"due": 1000})
            if len(pipeline) == COMMANDS_A_PIPELINE:
                pipeline.execute()
    pipeline.execute()


def scripts_run(broker: Broker) -> int:
    """How many calls of scripts Redis has run."""
    found = broker.server.client.info("commandstats")
    return int(found.get("cmdstat_evalsha", {"calls": 0})["calls"])


def redis_cpu_s(broker: Broker) -> float:
    """The CPU time that Redis has used."""
    found = broker.server.client.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


def peak_bytes() -> int:
    """The most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def drive(url: str, world: World, rounds: int) -> Found:
    """Measures one world."""
    with rmq_spark.connect(url) as broker:
        broker.server.client.flushdb()
        for number in range(world.topics):
            broker.create(f"T{number}", "FixedTime", world.slots)
    return Driver(url, world).run(rounds)


def main() -> None:
    """Measures, and writes planning_scale.json and planning_scale.md."""
    arguments = arguments_of(__doc__, slots=65_536, topics=1000, rounds=3).parse_args()
    report = Report.of("planning_scale", __doc__)
    with LocalRedis(arguments.redis, NOTING) as server:
        for whole in (World(1, arguments.slots), World(arguments.topics, SLOTS_A_TOPIC)):
            measure(report, server, whole, arguments.rounds)
        report.write(arguments.results, server)


def measure(report: Report, server: LocalRedis, whole: World, rounds: int) -> None:
    """Compares a world with a sixteenth of it."""
    topics = max(1, whole.topics // PART)
    part = World(topics, whole.slots if topics > 1 else max(1, whole.slots // PART))
    few, all_of = (in_process(server.url, world, rounds) for world in (part, whole))
    for name, seconds in all_of.seconds.items():
        figure = Figure(f"{name}, {whole}", "s", seconds, str(part), few.seconds[name])
        figure.at_most = MOST_GROWTH
        report.add(figure)
    for name, value, unit in (
        ("calls of scripts a batch", all_of.calls, "calls"),
        ("Redis worked for a batch", all_of.redis_s, "s"),
        ("tasks of a batch, as sent", all_of.task_bytes / 1e6, "MB"),
        ("memory of the driver's process for it", all_of.memory_bytes / 1e6, "MB"),
    ):
        report.add(Figure(f"{name}, {whole}", unit, [value]))


def in_process(url: str, world: World, rounds: int) -> Found:
    """Measures a world in a process of its own, whose memory tells only of it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(drive, url, world, rounds).result()


if __name__ == "__main__":
    main()
