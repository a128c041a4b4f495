"""Whatever is killed and whenever: an idempotent sink ends with each message exactly once."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_spark.errors import RmqError
from rmq_spark.spark.compatibility import EarlierStreamReader

from ..driving import CheckpointFiles, Run, contents, names, send_due

# How far a batch comes before its driver is killed.
STEPS = (
    "begun",
    "not logged",
    "planned",
    "listed",
    "half read",
    "read",
    "read twice",
    "in the sink",
    "done",
)


class Checkpoint:
    """What Spark keeps: the offsets it logged, how many batches are done, and the sink."""

    def __init__(self) -> None:
        self.offsets: list[dict] = []
        self.done = 0
        self.sink: dict[int, list[str]] = {}


class Driver:
    """One start of a query on a checkpoint; asks the reader for what Spark asks, in its order."""

    def __init__(self, options: dict[str, str], checkpoint: Checkpoint) -> None:
        self.run = Run(options)
        self.kept = checkpoint
        self.late: list = []
        self.begin()

    def begin(self) -> None:
        self.made_up = self.run.initial()

    def plan(self, start: dict) -> dict:
        return self.run.plan(start)

    def partitions(self, start: dict, end: dict) -> list:
        return self.run.partitions(start, end)

    def batch(self, until: str) -> bool:
        """One batch, up to a step; False when there is nothing to read."""
        kept, number = self.kept, self.kept.done
        start = kept.offsets[number - 1] if number else self.made_up
        if until == "begun":
            return True
        if len(kept.offsets) == number:
            end = self.plan(start)
            if end == start:
                return False
            if until == "not logged":
                return True
            kept.offsets.append(end)
        if until in ("planned", "not logged"):
            return True
        end = kept.offsets[number]
        partitions = self.partitions(start, end)
        self.late += partitions
        if until == "listed":
            return True
        half = self.run.read(partitions[: len(partitions) // 2])
        if until == "half read":
            return True
        rows = half + self.run.read(partitions[len(partitions) // 2 :])
        if until == "read":
            return True
        assert self.run.read(partitions) == rows
        if until == "read twice":
            return True
        kept.sink.setdefault(number, contents(rows))
        if until != "in the sink":
            kept.done += 1
        return True

    def wake_up(self) -> None:
        """Tasks of this driver's batches go on although a newer driver has begun."""
        for partition in self.late:
            try:
                self.run.read([partition])
            except RmqError:
                continue

    def die(self, softly: bool) -> None:
        if softly:
            self.run.stop()
        else:
            self.run.die()


class EarlierDriver(Driver):
    """The same in the order of Spark 4.0 and 4.1."""

    def begin(self) -> None:
        self.reader = EarlierStreamReader(self.run.reader)
        self.made_up = self.reader.initialOffset()
        self.note_last()

    def note_last(self) -> None:
        if self.kept.offsets:
            last = self.kept.offsets[-1]
            assert self.reader.partitions(last, last) == []

    def plan(self, start: dict) -> dict:
        end = self.reader.latestOffset()
        if end != start and start["seq"]:
            self.reader.commit(start)
        return end

    def partitions(self, start: dict, end: dict) -> list:
        return self.reader.partitions(start, end)


class OnceDriver(EarlierDriver):
    """The same with Trigger.AvailableNow: it plans one batch, before anything else."""

    def begin(self) -> None:
        path = self.run.reader._options.checkpoint
        files = CheckpointFiles(Path(path))
        files.empty()
        for batch, offset in enumerate(self.kept.offsets):
            files.plan(batch, offset)
        for batch in range(self.kept.done):
            files.finish(batch)
        self.reader = EarlierStreamReader(self.run.reader)
        self.planned = self.reader.latestOffset()
        self.made_up = self.reader.initialOffset()
        self.note_last()

    def plan(self, start: dict) -> dict:
        if self.planned != start and start["seq"]:
            self.reader.commit(start)
        return self.planned


@pytest.mark.long(every=1)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(STEPS), st.booleans(), st.integers(0, 9)),
        max_size=8,
    ),
    st.sampled_from([1, 5, 0]),
    st.sampled_from([Driver, EarlierDriver, OnceDriver]),
)
def test_each_message_arrives_once_whatever_is_killed(rmq, lives, limit, kind):
    queue = rmq.due(12, slots=4)
    options = rmq.options(
        queue, maxRecordsPerTrigger=limit, pollInterval="1ms", visibilityTimeout="1h"
    )
    if kind is OnceDriver:
        options["checkpointLocation"] = str(rmq.folder / "checkpoint")
    checkpoint, sent, dead = Checkpoint(), 12, []
    for batches, last, softly, more in lives:
        for zombie in dead[-1:]:
            zombie.wake_up()  # before any newer driver has begun
        driver = kind(options, checkpoint)
        for _ in range(batches):
            driver.batch("done")
        send_due(queue, range(sent, sent + more))
        sent += more
        driver.batch(last)
        driver.die(softly)
        for zombie in dead:
            if driver.run.reader._run is not None:
                zombie.wake_up()
        dead.append(driver)
    while (driver := kind(options, checkpoint)).batch("done"):
        while driver.batch("done"):
            pass
        driver.run.stop()
    for zombie in dead:
        zombie.wake_up()
    driver.run.stop()
    assert sorted(content for rows in checkpoint.sink.values() for content in rows) == names(sent)
    figures = queue.figures()
    assert (figures.store.count, figures.prepare.count, figures.dead.count) == (0, 0, 0)
