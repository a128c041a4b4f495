"""Kafka for the kill rounds: as a target, at least once and exactly once, and as a source."""

from contextlib import ExitStack

from confluent_kafka import Producer

from ..kafka_broker import ISOLATIONS, QUIET, KafkaBroker, connector

TOPIC = "delivered"
# What names a message for ever.
ID = ("rmq-topic", "rmq-slot", "rmq-claim", "rmq-position", "rmq-row")


class KafkaPort:
    """A broker, and what is the same in both directions."""

    def __enter__(self):
        self.jars = connector()
        with ExitStack() as stack:
            self.broker = stack.enter_context(KafkaBroker())
            self.broker.create(TOPIC)
            self._servers = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._servers.close()

    def figures(self):
        return {}


class KafkaTarget(KafkaPort):
    """The target of an export, at least once."""

    job, is_once = "export", False
    ways = ()
    _records = 0

    def is_within(self):
        """Whether records have come since it was last asked."""
        before, self._records = self._records, sum(self.broker.ends(TOPIC))
        return before < self._records

    @property
    def arguments(self):
        return [
            *("--conf", f"spark.jars={self.jars}", "--to", "kafka"),
            *("--target-option", f"kafka.bootstrap.servers={self.broker.address}"),
            *("--target-option", f"topic={TOPIC}", *self.ways),
        ]

    def delivered(self):
        for record in self.broker.records(TOPIC):
            headers = dict(record.headers())
            yield int(record.value()), tuple(headers[name] for name in ID)


class KafkaTargetOnce(KafkaTarget):
    """The target of an export, exactly once."""

    is_once = True
    # Several tasks: the records of the first are in Kafka while the next one is computed.
    ways = ("--exactly-once", "-o", "numPartitions=4")

    def is_within(self):
        """Whether a transaction with records is open."""
        committed, every = (self.broker.ends(TOPIC, wanted) for wanted in ISOLATIONS)
        return committed < every

    def figures(self):
        """Count the records of transactions that kills have cut off."""
        every = self.broker.records(TOPIC, isolation="read_uncommitted")
        return {"aborted records": len(every) - len(self.broker.records(TOPIC))}


class KafkaSource(KafkaPort):
    """The source of a stream."""

    job, is_once = "send", True

    @property
    def arguments(self):
        return [
            *("--conf", f"spark.jars={self.jars}", "--stream", "--from", "kafka"),
            *("--source-option", f"kafka.bootstrap.servers={self.broker.address}"),
            *("--source-option", f"subscribe={TOPIC}"),
            *("--source-option", "startingOffsets=earliest"),
            *("--source-option", "maxOffsetsPerTrigger=400"),
            *("--select", "CAST(value AS STRING) AS content, 0 AS fixedTime"),
        ]

    def feed(self, numbers):
        producer = Producer({"bootstrap.servers": self.broker.address, **QUIET})
        for number in numbers:
            producer.produce(TOPIC, str(number), key=str(number % 50))
            producer.poll(0)
        assert producer.flush(60) == 0
