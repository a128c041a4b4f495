"""The table of targets: which one the arguments of an export choose."""

import argparse
import logging

from pyspark.sql import SparkSession

from rmq_spark.jobs.formats import DELTA, FILES, ICEBERG, is_jdbc, place_options
from rmq_spark.jobs.iceberg_tables import TABLE, open_catalog
from rmq_spark.jobs.targets.delta_target import DeltaTarget
from rmq_spark.jobs.targets.jdbc_target import JdbcTarget
from rmq_spark.jobs.targets.spark_target import SparkTarget
from rmq_spark.jobs.targets.target import Target
from rmq_spark.outbox.tables import SUFFIX

TESTED = ("parquet", "orc", "json", "csv", "jdbc", "delta", "iceberg", "console")
_log = logging.getLogger(__name__)


def chosen_target(spark: SparkSession, given: argparse.Namespace) -> Target:
    """Return the target that the arguments of an export choose. Raises InvalidOption."""
    if given.format not in TESTED:
        _log.warning(
            "The format %s is not one of those that are tested (%s). Each message is written at "
            "least once.",
            *(given.format, ", ".join(TESTED)),
        )
    options = place_options(given)
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
    return SparkTarget(given.format, options, exceptions)
