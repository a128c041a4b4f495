"""Write each message into a table once, although the query dies between write and commit.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one. It
needs Spark.

    $ python examples/exactly_once.py
    batch 0: 500 rows written
    the query died
    batch 0: 500 rows written
    batch 1: 500 rows written
    the table has 1000 rows of 1000 payments

Spark 4.0 and 4.1 write one batch in a run, so the table has 500 rows there.
"""

import sqlite3
from tempfile import TemporaryDirectory

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import rmq_spark

TOPIC = "Example.Payments"
crashes = [RuntimeError("the worst moment: in the table, but not yet committed in the topic")]


def write(batch, batch_id):
    """Write a batch. A repeated batch has the same number and messages: it replaces its rows."""
    rows = [(batch_id, row.content) for row in batch.select("content").toLocalIterator()]
    with sqlite3.connect(database) as connection:  # a single transaction
        connection.execute("DELETE FROM payments WHERE batch = ?", [batch_id])
        connection.executemany("INSERT INTO payments VALUES (?, ?)", rows)
    print(f"batch {batch_id}: {len(rows)} rows written")
    if crashes:
        raise crashes.pop()


def start():
    """Start the query, always on the same checkpoint, and wait until it has read what is due."""
    query = (
        spark.readStream.format("rmq")
        .option("topic", TOPIC)
        .option("maxRecordsPerTrigger", 500)
        .option("checkpointLocation", f"{folder}/checkpoint")  # Spark 4.0 and 4.1 need it here too
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


with rmq_spark.connect() as broker, TemporaryDirectory() as folder:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    broker.create(TOPIC, "FixedTime", slot_amount=16)
    broker.queue(TOPIC).send([f"payment {number}" for number in range(1000)], fixed_time=0)

    database = f"{folder}/shop.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE payments (batch INT, payment TEXT)")

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # Spark would log the wanted crash
    try:
        start()
    except StreamingQueryException:
        print("the query died")
    start()  # as your supervisor would, also after a kill -9

    with sqlite3.connect(database) as connection:
        counts = connection.execute("SELECT count(*), count(DISTINCT payment) FROM payments")
        print("the table has {} rows of {} payments".format(*counts.fetchone()))
    spark.stop()
