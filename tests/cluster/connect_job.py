"""A job that knows nothing of Spark Connect: SPARK_REMOTE alone decides where it runs."""

import json
import sys

from pyspark.sql import SparkSession

import rmq_spark

spark = SparkSession.builder.getOrCreate()
url, folder = sys.argv[1:]
redis = {"redis.url": url}
rows = spark.range(100).selectExpr("concat('m', id) content")
told = {"session": type(spark).__module__}


def send(topic: str) -> None:
    new = {"topicType": "FixedTime", "fixedTime": "1", "topic": topic, "slotAmount": "4"}
    rows.write.format("rmq").options(**redis, **new).mode("append").save()


def read(topic: str, **options: str):
    # That of run, below: up to Spark 4.1, AvailableNow needs it.
    options["checkpointLocation"] = f"{folder}/checkpoint-{topic.lower()}"
    return spark.readStream.format("rmq").options(**redis, topic=topic, **options).load()


def run(writer, name: str) -> str:
    query = (
        writer.option("checkpointLocation", f"{folder}/checkpoint-{name}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return str(query.exception())


def each(message) -> None:
    if message.content == "m7":
        raise ValueError("a poison message")


def store(frame, batch_id: int) -> None:
    frame.write.mode("append").parquet(f"{folder}/batches")


send("Plain")
told["plain"] = run(
    read("Plain").writeStream.format("parquet").option("path", f"{folder}/plain"), "plain"
)
told["received"] = spark.read.parquet(f"{folder}/plain").count()

send("Batches")
told["batches"] = run(read("Batches").writeStream.foreachBatch(store), "batches")
told["stored"] = spark.read.parquet(f"{folder}/batches").count()

send("Each")
listener = rmq_spark.each_message(each, options=redis)
told["each"] = run(read("Each").writeStream.foreachBatch(listener), "each")

rows.write.parquet(f"{folder}/rows")
for guarantee in ("atLeastOnce", "exactlyOnce"):
    sink = (
        spark.readStream.schema(rows.schema)
        .parquet(f"{folder}/rows")
        .writeStream.format("rmq")
        .options(**redis, topic=guarantee, topicType="FixedTime", fixedTime="1")
        .option("deliveryGuarantee", guarantee)
    )
    told[guarantee] = run(sink, guarantee)

try:
    rows.write.format("rmq").options(**redis, topic="Plain", fixdTime="1").mode("append").save()
except Exception as error:
    told["refused"] = str(error)
spark.stop()
sys.stdout.write(f"told {json.dumps(told)}\n")
