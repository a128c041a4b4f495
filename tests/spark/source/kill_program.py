"""A driver of its own for test_kill.py: queries whose task fails once, and one to be killed.

Prints a line for every step and then waits to be killed in the middle of a batch.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

given = json.loads(sys.argv[1])
folder = Path(given["folder"])


def failing_once(batches):
    """A task that dies after its first rows, the first time it runs."""
    for batch in batches:
        yield batch
        try:
            (folder / "failed").touch(exist_ok=False)
        except FileExistsError:
            continue
        raise ValueError("fails once")


def hanging(batches):
    """A task that hangs in the middle of a batch until the file ``go`` is there."""
    for batch in batches:
        (folder / "hangs").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
        yield batch


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read(topic: str) -> DataFrame:
    options = {**given["options"], "topic": topic, "maxRecordsPerTrigger": "20"}
    return spark.readStream.format("rmq").options(**options).load().select("content")


def drain_into_parquet(frame: DataFrame, name: str) -> None:
    writer = frame.writeStream.format("parquet").trigger(processingTime="0 seconds")
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint{name}"))
    query = writer.start(str(folder / f"out{name}"))
    query.processAllAvailable()
    query.stop()


spark = (
    SparkSession.builder.master("local[2,3]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
drain_into_parquet(read(given["flaky"]).mapInPandas(failing_once, "content STRING"), "-flaky")
tell("flaky done")
drain_into_parquet(read(given["killed"]), "-killed")
tell(str(spark.sparkContext._gateway.proc.pid))
sys.stdin.readline()  # more messages were sent
drain_into_parquet(read(given["killed"]).mapInPandas(hanging, "content STRING"), "-killed")
