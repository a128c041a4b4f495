"""Batches to Kafka through Spark's connector: at least once, by all tasks at the same time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import DataFrame, SparkSession

from rmq_spark.jobs.connectors import KAFKA, check_connector
from rmq_spark.jobs.targets.kafka_errors import failure, no_such_topic, settings_of
from rmq_spark.jobs.targets.target import NUMBER, ExportBatch

# How long brokers may take to answer when an export begins, in ms, unless the options differ.
_ANSWERS_MS = "15000"
_MOST_CAUSES = 30
_UNKNOWN = "UnknownTopicOrPartitionException"


class KafkaConnector:
    """Spark's format kafka. A batch that is replayed is written again, with the same ids."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Check that the cluster answers, and has the topic or creates it. Raises JobFailed."""
        check_connector(spark, KAFKA)
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._options = dict(options)
        with self._explained():
            self._check(options.get("topic"))

    def has(self, batch: ExportBatch) -> bool:
        """Return False: which batches an earlier run has written is not known."""
        return False

    def write(self, batch: ExportBatch, rows: DataFrame) -> None:
        """Write the records of a batch. Raises JobFailed."""
        with self._explained():
            rows.drop(NUMBER).write.format(KAFKA).options(**self._options).save()

    def close(self) -> None:
        """Do nothing: Spark closes its producers."""

    def _check(self, topic: str | None) -> None:
        patience = {"default.api.timeout.ms": _ANSWERS_MS, "request.timeout.ms": "5000"}
        admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(
            patience | settings_of(self._options)
        )
        try:
            if topic is None:
                admin.describeCluster().nodes().get()
            elif not self._is_there(admin, topic):
                self._ask_for(topic)
        finally:
            admin.close(self._jvm.java.time.Duration.ZERO)

    def _is_there(self, admin: Any, topic: str) -> bool:
        try:
            admin.describeTopics([topic]).allTopicNames().get()
        except Py4JJavaError as error:
            if _name(_causes(error)[-1]) == _UNKNOWN:
                return False
            raise
        return True

    def _ask_for(self, topic: str) -> None:
        """Ask for a topic as a producer does: brokers that create topics then create it."""
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        serializers = {"key.serializer": serializer, "value.serializer": serializer}
        patience = {"max.block.ms": _ANSWERS_MS}
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            patience | settings_of(self._options) | serializers
        )
        try:
            producer.partitionsFor(topic)
        except Py4JJavaError as error:
            if _name(_causes(error)[-1]) in ("TimeoutException", _UNKNOWN):
                raise no_such_topic(topic, self._options) from error
            raise
        finally:
            producer.close(self._jvm.java.time.Duration.ZERO)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise JobFailed in place of an error of Kafka; others pass."""
        try:
            yield
        except Exception as error:
            of_kafka = [one for one in _causes(error) if "kafka" in one.getClass().getName()]
            if not of_kafka:
                raise
            cause = of_kafka[-1]
            raise failure(_name(cause), str(cause.getMessage()), self._options) from None


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
