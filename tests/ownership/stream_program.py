"""One query that works on serial streams: its own driver, so that it can be killed and stopped.

The first argument is a job as JSON. SIGTERM stops the query as a user would. It tells when it
runs; when its query fails it starts it again, as a supervisor would.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

SESSION = {
    "spark.master": "local[4]",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def start(spark, job):
    frame = spark.readStream.format("rmq").options(**job["options"]).load()
    folder = job["out"]

    def work_on(rows):
        place = f"{job['name']}-{os.getpid()}-{threading.get_ident()}"
        with (Path(folder) / f"{place}.jsonl").open("a") as notes:
            for row in rows:
                message = json.loads(row.content)
                consumer, batch, _, _ = row.claimId.rsplit(":", 3)
                begun = time.monotonic()
                time.sleep(message["ms"] / 1000)
                note = {
                    "stream": message["stream"],
                    "number": int(message["number"]),
                    "start": begun,
                    "end": time.monotonic(),
                    "place": place,
                    "consumer": consumer,
                    "batch": int(batch),
                }
                notes.write(json.dumps(note) + "\n")
                notes.flush()

    return (
        frame.writeStream.foreachBatch(lambda batch, _: batch.foreachPartition(work_on))
        .option("checkpointLocation", job["checkpoint"])
        .start()
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    builder = SparkSession.builder
    for name, value in SESSION.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    while not leaving.is_set():
        query = start(spark, job)
        while query.isActive and not leaving.is_set():
            leaving.wait(0.1)
        try:
            query.stop()
            query.awaitTermination()
        except StreamingQueryException as error:
            sys.stderr.write(str(error)[:2000])
    spark.stop()


if __name__ == "__main__":
    main()
