"""Read orders that are due into a table, and send a reminder for each, due a week later.

    $ cd examples/pipeline && python seed.py && spark-pipelines run

It needs `pip install 'pyspark[pipelines]'`. A run takes what is due and ends. Redis is at
RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table
def example_orders() -> DataFrame:
    """All orders that were due."""
    due = spark.readStream.format("rmq").option("topic", "Example.Orders").load()
    return due.select("content", "dueTime", "deliveryCount")


dp.create_sink(
    "reminders",
    "rmq",
    {"topic": "Example.Reminders", "topicType": "FixedTime", "slotAmount": "16", "delay": "7d"},
)


@dp.append_flow(target="reminders")
def remind() -> DataFrame:
    """A reminder for each order."""
    orders = spark.readStream.table("example_orders")
    return orders.select(F.concat(F.lit("remind: "), "content").alias("content"))
