"""Batches to Kafka through Spark's connector: at least once, by all tasks at the same time."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from rmq_spark.jobs.kafka.kafka_cluster import KafkaCluster
from rmq_spark.jobs.session.connectors import KAFKA
from rmq_spark.jobs.targets.target import NUMBER, ExportBatch


class KafkaConnector:
    """Spark's format kafka. A batch that is replayed is written again, with the same ids."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Check that the cluster answers, and has the topic or creates it.

        Raises JobFailed and InvalidOption.
        """
        self._options = dict(options)
        self._cluster = KafkaCluster(spark, options)
        self._cluster.check_target(options.get("topic"))

    def has(self, batch: ExportBatch) -> bool:
        """Return False: which batches an earlier run has written is not known."""
        return False

    def write(self, batch: ExportBatch, rows: DataFrame) -> None:
        """Write the records of a batch. Raises JobFailed."""
        with self._cluster.explained():
            rows.drop(NUMBER).write.format(KAFKA).options(**self._options).save()
