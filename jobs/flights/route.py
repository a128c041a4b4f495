"""One topic on its way: sent by the batch sink, received by a streaming query."""

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.flights.failure import DemoFailed
from jobs.flights.place import Place
from rmq_spark.client import Broker, TopicType
from rmq_spark.spark.failure_cause import cause

SLOTS = 16
PATIENCE_S = 60.0
_POLL_S = 0.1


class Route:
    """Sends to a topic, receives it into ``parquet``, and knows how fast both went.

    place: tells the options of the source and the sink.
    """

    def __init__(
        self, broker: Broker, topic: str, kind: TopicType, place: Place, parquet: Path
    ) -> None:
        self.topic = topic
        self.parquet = parquet
        self.sending_s = 0.0
        self._options = {**place.connection, "keyPrefix": broker.key_prefix, "topic": topic}
        self._reading = place.reading
        self._query: StreamingQuery | None = None
        broker.create(topic, kind, SLOTS)
        self.queue = broker.queue(topic)

    def send(self, messages: DataFrame, **options: str) -> None:
        """Sends all of them and returns when Redis has them."""
        begin = time.monotonic()
        writer = messages.write.format("rmq").options(**self._options).options(**options)
        writer.mode("append").save()
        self.sending_s += time.monotonic() - begin

    def receive(self, spark: SparkSession, checkpoints: Path, **options: str) -> None:
        """Starts the query."""
        given = {**self._options, **self._reading, **options}
        messages = spark.readStream.format("rmq").options(**given).load()
        self._query = (
            messages.writeStream.format("parquet")
            .queryName(self.topic)
            .option("checkpointLocation", str(checkpoints / self.topic))
            .start(str(self.parquet))
        )

    def finish(self) -> None:
        """Waits until everything sent has been delivered and committed, then stops the query.

        Raises DemoFailed when the query has failed, or nothing moves while something waits.
        """
        delivered, since = -1, time.monotonic()
        while self.waiting():
            counted = self.queue.figures().counters["committed"]
            if counted > delivered:
                delivered, since = counted, time.monotonic()
            self._check(time.monotonic() - since)
            time.sleep(_POLL_S)
        self.stop()

    def waiting(self) -> int:
        """How many messages were sent and not yet committed."""
        figures = self.queue.figures()
        return figures.store.count + figures.prepare.count + figures.retry.count

    def stop(self) -> None:
        """Stops the query, if it was started."""
        if self._query is not None:
            self._query.stop()

    def received_per_s(self) -> float:
        """Messages by the time of the triggers that had any."""
        batches = [b for b in self._started().recentProgress if b.numInputRows]
        took_ms = sum(batch.durationMs["triggerExecution"] for batch in batches)
        return 1000 * sum(batch.numInputRows for batch in batches) / max(took_ms, 1)

    def _started(self) -> StreamingQuery:
        if self._query is None:
            raise DemoFailed(f"Nothing receives {self.topic}.")
        return self._query

    def _check(self, idle_s: float) -> None:
        query = self._started()
        error = query.exception()
        if error is not None:
            raise DemoFailed(
                f"The query that receives {self.topic} failed: {cause(error)} Spark's log "
                "(spark.log) says more. If the machine was busy, run the demo again."
            )
        if idle_s > PATIENCE_S:
            raise DemoFailed(
                f"{self.topic}: nothing was delivered for {PATIENCE_S:.0f} s, and "
                f"{self.waiting()} messages wait."
            )
