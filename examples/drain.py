"""Write all that is due into Parquet, as a job that a scheduler starts every night.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one. It
needs Spark.

    $ python examples/drain.py
    first night: 5000 sales
    second night: 200 sales
    third night: 0 sales
    in the folder: 5200 sales
"""

from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

import rmq_spark

TOPIC = "Example.Sales"


def drain():
    """Write what is due when it starts, and return the number of messages. This is the job."""
    query = (
        spark.readStream.format("rmq")
        .option("topic", TOPIC)
        .option("checkpointLocation", f"{folder}/checkpoint")  # Spark 4.0 and 4.1 need it here too
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/sales")
    )
    query.awaitTermination()
    # The progress of the last 100 batches.
    return sum(progress.numInputRows for progress in query.recentProgress)


with rmq_spark.connect() as broker, TemporaryDirectory() as folder:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    broker.create(TOPIC, "FixedTime", slot_amount=16)
    sales = broker.queue(TOPIC)
    spark = SparkSession.builder.master("local[2]").getOrCreate()

    # Always the same checkpoint and folder: a run after a failed one repeats its unfinished batch.
    sales.send([f"sale {number}" for number in range(5000)], fixed_time=0)
    print(f"first night: {drain()} sales")
    sales.send([f"late sale {number}" for number in range(200)], fixed_time=0)
    print(f"second night: {drain()} sales")
    print(f"third night: {drain()} sales")
    print(f"in the folder: {spark.read.parquet(f'{folder}/sales').count()} sales")
    spark.stop()
