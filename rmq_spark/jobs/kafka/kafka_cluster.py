"""A Kafka cluster that Spark's connector reaches: whether it answers, and has a topic."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.kafka.kafka_errors import address_of, failure, no_such_topic, settings_of
from rmq_spark.jobs.session.connectors import KAFKA, check_connector

# How long brokers may take to answer when a job begins, in ms, unless the options differ.
_ANSWERS_MS = "15000"
_MOST_CAUSES = 30
_UNKNOWN = "UnknownTopicOrPartitionException"


class KafkaCluster:
    """A cluster, as the options of Spark's format kafka name it."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Raise JobFailed without the connector, and InvalidOption without an address."""
        check_connector(spark, KAFKA)
        if not address_of(options):
            raise InvalidOption(
                "Kafka has no address. Accepted: the option kafka.bootstrap.servers=HOST:PORT."
            )
        self._jvm: Any = spark._jvm
        self._options = dict(options)
        self._settings = settings_of(options)

    def check_target(self, topic: str | None) -> None:
        """Check that brokers answer, and have a topic or create it. Raises JobFailed.

        topic: None if the records name their topics.
        """
        self._check([] if topic is None else [topic], self._ask_for)

    def check_source(self) -> None:
        """Check that brokers answer, and have the topics to subscribe. Raises JobFailed."""
        given = {name.lower(): value for name, value in self._options.items()}
        topics = [name.strip() for name in given.get("subscribe", "").split(",")]
        self._check([name for name in topics if name], self._refuse)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise JobFailed in place of an error of Kafka; others pass."""
        try:
            yield
        except Exception as error:
            of_kafka = [one for one in _causes(error) if "kafka" in one.getClass().getName()]
            if not of_kafka:
                raise
            cause = of_kafka[-1]
            raise failure(_name(cause), str(cause.getMessage()), self._options) from None

    def _check(self, topics: list[str], missing: Callable[[str], None]) -> None:
        patience = {"default.api.timeout.ms": _ANSWERS_MS, "request.timeout.ms": "5000"}
        with self.explained():
            admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(
                patience | self._settings
            )
            try:
                admin.describeCluster().nodes().get()
                for topic in topics:
                    if not _has(admin, topic):
                        missing(topic)
            finally:
                admin.close(self._jvm.java.time.Duration.ZERO)

    def _refuse(self, topic: str) -> None:
        raise no_such_topic(topic, self._options)

    def _ask_for(self, topic: str) -> None:
        """Ask for a topic as a producer does: brokers that create topics then create it."""
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        serializers = {"key.serializer": serializer, "value.serializer": serializer}
        patience = {"max.block.ms": _ANSWERS_MS}
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            patience | self._settings | serializers
        )
        try:
            producer.partitionsFor(topic)
        except Py4JJavaError as error:
            if _name(_causes(error)[-1]) in ("TimeoutException", _UNKNOWN):
                raise no_such_topic(topic, self._options) from error
            raise
        finally:
            producer.close(self._jvm.java.time.Duration.ZERO)


def _has(admin: Any, topic: str) -> bool:
    try:
        admin.describeTopics([topic]).allTopicNames().get()
    except Py4JJavaError as error:
        if _name(_causes(error)[-1]) == _UNKNOWN:
            return False
        raise
    return True


def _causes(error: BaseException) -> list[Any]:
    """Return the Java exception of an error and its causes, the deepest last."""
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    found: list[Any] = []
    while java is not None and len(found) < _MOST_CAUSES:
        found.append(java)
        java = java.getCause()
    return found


def _name(java: Any) -> str:
    return str(java.getClass().getSimpleName())
