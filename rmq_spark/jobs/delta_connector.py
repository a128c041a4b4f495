"""What Spark needs to read and write tables of Delta Lake."""

import re
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

from rmq_spark.jobs.program import JobFailed

# The first package of Delta Lake that is built for a version of Spark that the jobs accept.
PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
REMEDY = (
    f"Start the job with Spark 4.2 and --conf spark.jars.packages={PACKAGE} "
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)


def check_delta(spark: SparkSession) -> None:
    """Raise JobFailed if Spark lacks Delta Lake's connector, or has one for another Spark.

    A connector for another Spark may write one batch, and fail at the next one.
    """
    session: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        source = sources.lookupDataSource("delta", session.sessionState().conf())
    except Py4JJavaError as error:
        raise JobFailed(f"Spark has no connector for Delta Lake. {REMEDY}") from error
    jar = str(source.getProtectionDomain().getCodeSource().getLocation())
    built = re.search(r"delta-spark_(\d+\.\d+)_[^/]*", jar)
    if built and not spark.version.startswith(f"{built[1]}."):
        raise JobFailed(
            f"Delta Lake's connector {built[0]} is built for Spark {built[1]}, but this is Spark "
            f"{spark.version}. Run the job with Spark {built[1]} (pip install "
            f"'pyspark=={built[1]}.*'), or load a connector that is built for this Spark."
        )
