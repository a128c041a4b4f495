"""Connectors that Spark needs for a format: whether one is loaded, and what to do without it."""

import re
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

from rmq_spark.jobs.program import JobFailed

KAFKA, DELTA = "kafka", "delta"
# By format, a class of its connector, and the Maven coordinates of the release that the tests use.
# {scala} stands for the version of Scala that Spark is built with.
_CONNECTORS = {
    KAFKA: (
        "org.apache.spark.sql.kafka010.KafkaSourceProvider",
        "org.apache.spark:spark-sql-kafka-0-10_{scala}:4.2.0",
    ),
    DELTA: (
        "org.apache.spark.sql.delta.sources.DeltaDataSource",
        "io.delta:delta-spark_4.2_{scala}:4.4.0",
    ),
}
# Settings without which a connector that is loaded does not work.
DELTA_SETTINGS = (
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)


def check_connector(spark: SparkSession, form: str) -> None:
    """Raise JobFailed if Spark does not find the connector of a format. Others pass.

    So does a connector of Delta Lake for another version of Spark: it may write one batch, and fail
    at the next one.
    """
    if form not in _CONNECTORS:
        return
    name, package = _CONNECTORS[form]
    jvm: Any = spark._jvm
    try:
        found = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError as error:
        scala = ".".join(jvm.scala.util.Properties.versionNumberString().split(".")[:2])
        settings = f" {DELTA_SETTINGS}" if form == DELTA else ""
        raise JobFailed(
            f"Spark {spark.version} does not find the connector of the format {form}. Load it with "
            f"--conf spark.jars.packages={package.format(scala=scala)}{settings} (or a later "
            "release, up to that of your Spark), or name its jars with --conf spark.jars=..."
        ) from error
    if form == DELTA:
        _check_version(spark, str(found.getProtectionDomain().getCodeSource().getLocation()))


def _check_version(spark: SparkSession, jar: str) -> None:
    """Raise JobFailed if the name of Delta's jar says that it is built for another Spark."""
    built = re.search(r"delta-spark_(\d+\.\d+)_[^/]*", jar)
    if built and not spark.version.startswith(f"{built[1]}."):
        raise JobFailed(
            f"Delta Lake's connector {built[0]} is built for Spark {built[1]}, but this is Spark "
            f"{spark.version}. Run the job with Spark {built[1]} (pip install "
            f"'pyspark=={built[1]}.*'), or load a connector that is built for this Spark."
        )
