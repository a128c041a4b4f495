"""The format rmq for Spark, which registers DefaultSource of every module named pyspark_*."""

from rmq_spark.spark.datasource import RmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
