"""Connectors that Spark needs for a format: whether one is loaded, and what to do without it."""

from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

from rmq_spark.jobs.program import JobFailed

KAFKA = "kafka"
# By format, a class of its connector, and the Maven coordinates of the release that the tests use.
# {scala} stands for the version of Scala that Spark is built with.
_CONNECTORS = {
    KAFKA: (
        "org.apache.spark.sql.kafka010.KafkaSourceProvider",
        "org.apache.spark:spark-sql-kafka-0-10_{scala}:4.2.0",
    ),
}


def check_connector(spark: SparkSession, form: str) -> None:
    """Raise JobFailed if Spark does not find the connector of a format. Others pass."""
    if form not in _CONNECTORS:
        return
    name, package = _CONNECTORS[form]
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError as error:
        scala = ".".join(jvm.scala.util.Properties.versionNumberString().split(".")[:2])
        raise JobFailed(
            f"Spark {spark.version} does not find the connector of the format {form}. Load it with "
            f"--conf spark.jars.packages={package.format(scala=scala)} (or a later release, up to "
            "that of your Spark), or name its jars with --conf spark.jars=..."
        ) from error
