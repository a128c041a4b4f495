"""Tries what an environment offers, and prints a line for each part: its name, and ok or the error.

python environment_program.py REDIS_URL
"""

import platform
import subprocess
import sys
import tempfile
import traceback
from importlib import metadata

from pyspark.sql import SparkSession

import rmq_spark
from rmq_spark.local.zookeeper import LocalEnsemble

[URL] = sys.argv[1:]
PACKAGES = ("pyspark", "pyarrow", "redis", "kazoo")
TEXTS = [str(number) for number in range(100)]


def at(topic):
    return {"redis.url": URL, "topic": topic}


def rows_of(spark):
    return spark.createDataFrame([(text,) for text in TEXTS], "content STRING")


def create(broker, topic):
    if broker.find(topic):  # of another environment
        broker.delete(topic)
    broker.create(topic, "FixedTime", 4)
    return broker.queue(topic)


def received(broker, topic, **options):
    """The contents that a consumer in plain Python gets, until there are as many as TEXTS."""
    got = []
    with broker.consumer(topic, "plain", **options) as consumer:
        for batch in consumer.batches():
            got += [message.content.decode() for message in batch]
            batch.commit()
            if len(got) >= len(TEXTS):
                break
    return sorted(got, key=int)


def run_to_end(writer, checkpoint):
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def plain_python(broker, spark, folder):
    create(broker, "Plain").send(TEXTS, fixed_time=1)
    assert received(broker, "Plain") == TEXTS


def ownership(broker, spark, folder):
    create(broker, "Owned").send(TEXTS, fixed_time=1)
    with LocalEnsemble() as ensemble:
        assert received(broker, "Owned", zookeeper=ensemble.hosts) == TEXTS


def sink(broker, spark, folder):
    create(broker, "Written")
    rows_of(spark).write.format("rmq").options(**at("Written"), fixedTime="1").mode("append").save()
    assert received(broker, "Written") == TEXTS


def source(broker, spark, folder, topic="Read"):
    create(broker, topic).send(TEXTS, fixed_time=1)
    rows = spark.readStream.format("rmq").options(**at(topic)).load()
    writer = rows.writeStream.format("parquet").option("path", f"{folder}/{topic}.parquet")
    run_to_end(writer, f"{folder}/{topic}")
    got = [row.content for row in spark.read.parquet(f"{folder}/{topic}.parquet").collect()]
    assert sorted(got, key=int) == TEXTS


def exactly_once(broker, spark, folder):
    create(broker, "Once")
    rows_of(spark).write.parquet(f"{folder}/once")
    rows = spark.readStream.schema("content STRING").parquet(f"{folder}/once")
    options = {**at("Once"), "fixedTime": "1", "deliveryGuarantee": "exactlyOnce"}
    run_to_end(rows.writeStream.format("rmq").options(**options), f"{folder}/once.checkpoint")
    assert received(broker, "Once") == TEXTS


def each_message(broker, spark, folder):
    create(broker, "Each").send(TEXTS, fixed_time=1)
    create(broker, "Seen")

    def see(row):
        rmq_spark.connect(URL).queue("Seen").send([row.content], fixed_time=1)

    rows = spark.readStream.format("rmq").options(**at("Each")).load()
    listener = rmq_spark.each_message(see, options={"redis.url": URL})
    run_to_end(rows.writeStream.foreachBatch(listener), f"{folder}/each")
    assert received(broker, "Seen") == TEXTS


def job(broker, spark, folder):
    create(broker, "Exported").send(TEXTS, fixed_time=1)
    target = ["--to", "parquet", "--path", f"{folder}/exported"]
    words = ["--topic", "Exported", *target, "--checkpoint", f"{folder}/job", "--once"]
    program = [sys.executable, "-m", "rmq_spark.cli", "--redis-url", URL, "job", "export", *words]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    got = [row.content for row in spark.read.parquet(f"{folder}/exported").collect()]
    assert sorted(got, key=int) == TEXTS


def connect(broker, spark, folder):
    """The last one: a program has either a session of Spark or of Spark Connect."""
    spark.stop()
    remote = SparkSession.builder.remote("local[2]").getOrCreate()
    source(broker, remote, folder, "Connected")


def tell(*words):
    sys.stdout.write(" ".join(words) + "\n")


def main():
    tell(platform.python_version(), *(f"{name} {metadata.version(name)}" for name in PACKAGES))
    broker = rmq_spark.connect(URL)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    rmq_spark.register(spark)
    parts = (plain_python, ownership, sink, source, exactly_once, each_message, job, connect)
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            try:
                part(broker, spark, folder)
            except Exception as error:
                traceback.print_exc()
                tell(part.__name__, f"{type(error).__name__}: {error}".partition("\n")[0])
            else:
                tell(part.__name__, "ok")


if __name__ == "__main__":
    main()
