"""A sink that sends exactly once, driven call by call, and what ends its processes."""

import itertools
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from rmq_spark.protocol import staging
from rmq_spark.protocol.staging import StageName
from rmq_spark.redis.server import Server
from rmq_spark.spark.datasource import RmqDataSource

from ..driving import DUE

SCHEMA = StructType([StructField("content", StringType()), StructField("topic", StringType())])
_attempts = itertools.count()


class Killed(BaseException):
    """What ends a process here."""


class Sink:
    """A query with an exactly-once sink, by hand. Every call is that of a process just started."""

    def __init__(self, rmq, queue, query):
        self.rmq, self.queue, self.query = rmq, queue, query
        self.topic = queue.definition.name
        self.options = {}

    def writer(self, **options):
        given = {"redis.url": self.rmq.url, "topic": self.topic, "fixedTime": str(DUE)}
        given |= {"deliveryGuarantee": "exactlyOnce", **self.options, **options}
        return RmqDataSource(given).streamWriter(SCHEMA, overwrite=False)

    def stage(self, batch, contents, partition=0, topic=None):
        """What one attempt of a task stages, in two Arrow batches."""
        half = len(contents) // 2
        batches = [
            pa.record_batch({"content": part, "topic": pa.array([topic] * len(part), pa.string())})
            for part in (contents[:half], contents[half:])
            if part
        ]
        name = StageName(self.query, batch, partition, f"attempt{next(_attempts)}")
        return self.writer().stage(iter(batches), name)

    def staged(self, batch, *partitions):
        return [self.stage(batch, contents, n) for n, contents in enumerate(partitions)]

    def run(self, batch, *partitions):
        """A batch from its tasks to its end."""
        self.writer().commit(self.staged(batch, *partitions), batch)

    def consume(self):
        """What a consumer takes now, and commits."""
        taken = []
        with self.rmq.broker.consumer(self.topic, "consumer") as consumer:
            for batch in consumer.batches(100_000, wait=False):
                taken += [message.content.decode() for message in batch]
                batch.commit()
        return taken

    def stages(self):
        """Of all slots: the names that are registered and unpublished, and the lists there are."""
        begun = self.queue.ask(staging.begun, self.queue.slots)
        lists = self.queue.server.client.keys(f"stage_?{self.topic}_*")
        waiting = {name for of in begun for name, stage in of.items() if not stage.published}
        return sorted(waiting), lists


@contextmanager
def killed(monkeypatch, script, nth=0, after=False):
    """The process dies at its nth call of a script: before Redis gets it, or before it answers."""
    calls = itertools.count()
    pipeline = Server.pipeline

    def until(self, wanted):
        called = any(getattr(call, "script", None) == script for call in wanted)
        dies = called and next(calls) == nth
        if dies and not after:
            raise Killed
        replies = pipeline(self, wanted)
        if dies:
            raise Killed
        return replies

    with monkeypatch.context() as patched:
        patched.setattr(Server, "pipeline", until)
        patched.setattr(staging, "PUBLISHES_A_PIPELINE", 1)
        with pytest.raises(Killed):
            yield


def numbers(start, end):
    return [f"m{n}" for n in range(start, end)]
