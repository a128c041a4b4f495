"""What Spark has noted in the checkpoint of a query, before the query starts."""

from typing import Any

from pyspark.sql import SparkSession


def unfinished_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the number of the batch that a query will replay, or None.

    An earlier run has planned it, and Spark has not noted its end.
    """
    planned, ended = (_last(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits"))
    return planned if planned is not None and planned != ended else None


def _last(spark: SparkSession, log: str) -> int | None:
    """Return the highest number among the names of files in a folder."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(log)
    system = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not system.exists(path):
        return None
    names = [str(file.getPath().getName()) for file in system.listStatus(path)]
    return max((int(name) for name in names if name.isdigit()), default=None)
