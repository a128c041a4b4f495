"""A job on a real Spark cluster, where only --py-files brings rmq_spark to the executors."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import rmq_spark
from jobs.flights.spark_cluster import LocalSpark

from ..waiting import wait_until
from .conftest import SPARK_HOME

MESSAGES = 600
JOB = """
import json
import os
import sys
import time

import pyarrow as pa
from pyspark.sql import SparkSession
from rmq_spark import register

url, folder, messages = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
connection = {"redis.url": url, "keyPrefix": "cluster:", "topic": "Orders"}
rows = spark.range(int(messages)).selectExpr("concat('m', id) content").repartition(4)
new = {"topicType": "FixedTime", "fixedTime": "1", "slotAmount": "16"}
rows.write.format("rmq").options(**connection, **new).mode("append").save()


def slowly(batches):
    # The first task of each worker waits for its worker's end, or for the other's to have begun.
    import rmq_spark

    assert "rmq_spark.zip" in rmq_spark.__file__, rmq_spark.__file__
    host = os.environ["SPARK_LOCAL_IP"]
    for batch in batches:
        open(f"{folder}/began-{host}", "w").close()
        while not os.path.exists(f"{folder}/go-on"):
            time.sleep(0.05)
        hosts = pa.array([host] * batch.num_rows)
        yield pa.RecordBatch.from_arrays([batch.column(0), hosts], ["content", "host"])


read = spark.readStream.format("rmq").options(**connection, numPartitions="4").load()
query = (
    read.select("content").mapInArrow(slowly, "content STRING, host STRING")
    .writeStream.format("parquet")
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
    .start(folder + "/received")
)
query.awaitTermination()
received = spark.read.parquet(folder + "/received").collect()
json.dump([list(row) for row in received], open(folder + "/received.json", "w"))
"""


@pytest.fixture
def cluster(bare_environ):
    with LocalSpark(workers=2, cores=1, memory="600m", variables=bare_environ) as started:
        yield started


def wait_for(file: Path, job: subprocess.Popen) -> None:
    wait_until(lambda: file.exists() or job.poll() is not None, f"{file.name}", 600)
    assert job.poll() is None, "the job ended before"


@pytest.mark.long
@pytest.mark.timeout(900)  # on a busy machine seven JVMs take minutes to start
def test_a_worker_killed_in_a_batch_leaves_its_claims_to_another(
    cluster, wheel, local_redis, submitting, tmp_path
):
    shutil.copy(wheel, tmp_path / "rmq_spark.zip")
    (tmp_path / "job.py").write_text(JOB)
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "500m",
        "spark.driver.host": "127.0.0.1",
        # Both have to be there, or one would be given everything.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": "2",
        "spark.locality.wait": "0s",
    }
    words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    submit = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.master, *words]
    arguments = (local_redis.url, tmp_path, str(MESSAGES))
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(
            [*submit, "--py-files", "rmq_spark.zip", "job.py", *arguments],
            env=submitting,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
        try:
            for host in cluster.hosts:
                wait_for(tmp_path / f"began-{host}", job)
            victim, other = cluster.hosts[1], cluster.hosts[0]
            cluster.kill_worker(victim)
            (tmp_path / "go-on").touch()
            assert job.wait(300) == 0, (tmp_path / "log").read_text()[-5000:]
        finally:
            job.kill()
            job.wait()
    received = json.loads((tmp_path / "received.json").read_text())
    assert sorted(content for content, _ in received) == sorted(f"m{n}" for n in range(MESSAGES))
    assert {host for _, host in received} == {other}
    broker = rmq_spark.connect(local_redis.url, key_prefix="cluster:")
    counters = broker.queue("Orders").figures().counters
    broker.close()
    # What the dead worker had claimed was read again by its name: no second delivery.
    assert (counters["committed"], counters["rolledBack"]) == (MESSAGES, 0)
