"""Spark registers the DefaultSource of every installed module whose name begins with pyspark_."""

from rmq_spark.spark.datasource import RmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
