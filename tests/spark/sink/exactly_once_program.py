"""A driver of its own for test_exactly_once.py, to be killed: files to rmq, a task fails once."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

given = json.loads(sys.argv[1])
folder = Path(given["folder"])


def failing_once(batches):
    """A task that dies in the middle of its rows, the first time it runs."""
    for number, batch in enumerate(batches):
        yield batch
        if number == 3:
            try:
                (folder / "failed").touch(exist_ok=False)
            except FileExistsError:
                continue
            raise ValueError("fails once")


spark = (
    SparkSession.builder.master("local[1,3]")
    .config("spark.ui.enabled", "false")
    # Short-lived code is not worth compiling twice, nor 2 cores many collectors.
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.sql.codegen.wholeStage", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
(
    spark.readStream.schema("id BIGINT")
    .option("maxFilesPerTrigger", "1")
    .parquet(str(folder / "source"))
    .selectExpr("concat('m', id) AS content")
    .mapInArrow(failing_once, "content STRING")
    .writeStream.format("rmq")
    .options(**given["options"])
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
