"""The table of targets: which one the arguments of an export choose."""

import argparse
import logging

from pyspark.sql import SparkSession

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.formats import FILES, ICEBERG, ROCKETMQ, is_jdbc, place_options
from rmq_spark.jobs.iceberg_tables import TABLE, open_catalog
from rmq_spark.jobs.rocketmq.rocketmq_client import RocketMQTopic
from rmq_spark.jobs.session.connectors import DELTA, KAFKA
from rmq_spark.jobs.targets.checkpoint_log import unfinished_batch
from rmq_spark.jobs.targets.delta_target import DeltaTarget
from rmq_spark.jobs.targets.jdbc_target import JdbcTarget
from rmq_spark.jobs.targets.kafka_connector import KafkaConnector
from rmq_spark.jobs.targets.kafka_target import KafkaTarget, RecordWriter
from rmq_spark.jobs.targets.kafka_transactions import KafkaTransactions
from rmq_spark.jobs.targets.rocketmq_target import RocketMQTarget
from rmq_spark.jobs.targets.spark_target import SparkTarget
from rmq_spark.jobs.targets.target import Target
from rmq_spark.outbox.tables import SUFFIX

TESTED = ("parquet", "orc", "json", "csv", "jdbc", DELTA, ICEBERG, "console", KAFKA, ROCKETMQ)
_log = logging.getLogger(__name__)


def chosen_target(spark: SparkSession, given: argparse.Namespace) -> Target:
    """Return the target that the arguments of an export choose. Raises InvalidOption."""
    if given.format not in TESTED:
        _log.warning(
            "The format %s is not tested with rmq-spark (tested: %s). Each message is written at "
            "least once.",
            *(given.format, ", ".join(TESTED)),
        )
    options = place_options(given)
    if given.exactly_once and given.format != KAFKA:
        raise InvalidOption(
            "--exactly-once is for --to kafka. Files and tables get each message once without it."
        )
    if is_jdbc(given):
        return JdbcTarget(spark, options, given.exceptions or options["dbtable"] + SUFFIX)
    folder = options["path"] if given.format in FILES else given.checkpoint
    exceptions = given.exceptions or folder.rstrip("/") + SUFFIX
    if given.format == DELTA:
        return DeltaTarget(spark, given.table, options, exceptions, given.checkpoint)
    if given.format == ICEBERG:
        catalog = open_catalog(options)
        from rmq_spark.jobs.targets.iceberg_target import IcebergTarget  # needs PyIceberg

        return IcebergTarget(catalog, options[TABLE], exceptions)
    if given.format == KAFKA:
        needed = ["value", *([] if "topic" in options else ["topic"])]
        writer = _record_writer(spark, options, given)
        return KafkaTarget(writer, needed if given.select else None, exceptions)
    if given.format == ROCKETMQ:
        return RocketMQTarget(RocketMQTopic.of(options), bool(given.select), exceptions)
    return SparkTarget(given.format, options, exceptions)


def _record_writer(
    spark: SparkSession, options: dict[str, str], given: argparse.Namespace
) -> RecordWriter:
    if given.exactly_once:
        return KafkaTransactions(options, unfinished_batch(spark, given.checkpoint))
    return KafkaConnector(spark, options)
