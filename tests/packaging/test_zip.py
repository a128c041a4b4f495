"""The wheel as a zip that spark-submit sends along, where rmq_spark is not installed."""

import shutil
import subprocess

import pytest

from .conftest import SPARK_HOME

JOB = """
import sys

import rmq_spark
from pyspark.sql import SparkSession
from rmq_spark import register

assert "rmq_spark.zip" in rmq_spark.__file__, rmq_spark.__file__
spark = SparkSession.builder.getOrCreate()
register(spark)

url, folder = sys.argv[1:]
connection = {"redis.url": url, "keyPrefix": "zip:", "topic": "Orders"}
rows = spark.createDataFrame([("one",), ("two",)], "content STRING")
new = {"topicType": "FixedTime", "fixedTime": "1", "slotAmount": "2"}
rows.write.format("rmq").options(**connection, **new).mode("append").save()
query = (
    spark.readStream.format("rmq").options(**connection).load()
    .writeStream.format("parquet")
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
    .start(folder + "/received")
)
query.awaitTermination()
received = spark.read.parquet(folder + "/received").collect()
print("received", *sorted(row.content for row in received))
"""


@pytest.mark.long
def test_as_py_files_it_sends_and_reads_after_register(wheel, local_redis, submitting, tmp_path):
    shutil.copy(wheel, tmp_path / "rmq_spark.zip")
    (tmp_path / "job.py").write_text(JOB)
    submit = [SPARK_HOME / "bin" / "spark-submit", "--master", "local[2]"]
    settings = ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
    job = ["--py-files", "rmq_spark.zip", "job.py", local_redis.url, tmp_path]
    done = subprocess.run(
        [*submit, *settings, *job],
        env=submitting,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "received one two" in done.stdout
