"""The queries under test: files to rmq, and rmq to Parquet or into a foreachBatch."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import rmq_spark
from rmq_spark.protocol import returning
from rmq_spark.protocol.claims import Rollback

from .gates import note_attempt, pass_gate
from .ledger import FAILING

# Of the messages that fail, those that wait before they come again.
WAITING = "57$"
FAILS = f"deliveryCount = 1 AND content RLIKE '{FAILING}'"
DELAY_MS = 400
ROWS_AT_ONCE = 500
# The claim tells the batch, and so the order of a key's payloads.
COLUMNS = ("content", "deliveryCount", "claimId", "claimedAt", "key")
KEPT = "content STRING, deliveryCount INT, claimId STRING, claimedAt TIMESTAMP, key STRING"


def start(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Starts the query that a job describes, or goes on from its checkpoint.

    A job's "sends" are the columns of its source, in which a file is one batch of one task.
    """
    kinds = {
        **{"producer": _produce, "parquet": _into_parquet},
        **{"keyed": _into_batches, "twice": _into_batches_read_twice},
    }
    return kinds[job["kind"]](spark, job)


def _produce(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    schema = job["sends"]
    rows = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", "1")
        .parquet(job["source"])
        .mapInArrow(_gated(job["gates"], "producer-"), schema)
    )
    writer = rows.writeStream.format("rmq").options(**job["options"])
    return writer.option("checkpointLocation", job["checkpoint"]).start()


def _read(spark: SparkSession, job: dict[str, Any]) -> DataFrame:
    return spark.readStream.format("rmq").options(**job["options"]).load()


def _into_parquet(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Parquet by the file sink; what fails is rolled back in plain Python, in the task."""
    gated = _gated(job["gates"])

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return gated(_without_failing(batch, job) for batch in batches)

    writer = _read(spark, job).mapInArrow(work, KEPT).writeStream.format("parquet")
    return writer.option("checkpointLocation", job["checkpoint"]).start(job["out"])


def _into_batches(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """A foreachBatch that overwrites the folder of its batch; what fails is rolled back by rows."""

    def work(frame: DataFrame, batch: int) -> None:
        # The rollback is what reads: without a note there, a twin of a reading task is not seen.
        kept = frame.mapInArrow(_noted(job["gates"]), frame.schema).persist()
        _roll_back_failing(kept, job)
        if "attempts" in job:
            _note_rest(kept, batch, job["attempts"])
        _write_rest(kept, batch, job)
        pass_gate(job["gates"], "written")
        kept.unpersist()

    writer = _read(spark, job).writeStream.foreachBatch(work)
    return writer.option("checkpointLocation", job["checkpoint"]).start()


def _into_batches_read_twice(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """The same without persist: each of its two actions claims the batch by its names."""

    def work(frame: DataFrame, batch: int) -> None:
        _write_rest(frame, batch, job)
        pass_gate(job["gates"], "between")
        _roll_back_failing(frame, job)

    writer = _read(spark, job).writeStream.foreachBatch(work)
    return writer.option("checkpointLocation", job["checkpoint"]).start()


def _note_rest(frame: DataFrame, batch: int, attempts: str) -> None:
    """Adds what an attempt of a batch delivers to a file, which keeps all attempts in order."""
    rows = frame.where(f"NOT ({FAILS})").select("key", "content", "claimId").collect()
    with open(attempts, "a", encoding="utf-8") as file:
        file.write(json.dumps({"batch": batch, "rows": [[*row] for row in rows]}) + "\n")


def _write_rest(frame: DataFrame, batch: int, job: dict[str, Any]) -> None:
    kept = frame.where(f"NOT ({FAILS})").select(*COLUMNS)
    gated = kept.mapInArrow(_gated(job["gates"]), KEPT)
    gated.write.mode("overwrite").parquet(f"{job['out']}/batch={batch}")


def _roll_back_failing(frame: DataFrame, job: dict[str, Any]) -> None:
    (
        frame.where(FAILS)
        .selectExpr(
            "topic",
            "slot",
            "claimId",
            "key" if job["keyed"] else "content",
            f"CAST(IF(content RLIKE '{WAITING}', {DELAY_MS}, NULL) AS BIGINT) AS delay",
        )
        .write.format("rmq")
        .options(**job["sinkOptions"])
        .option("operation", "rollback")
        .mode("append")
        .save()
    )


def _noted(gates: str):
    """Passes rows on as they are."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        note_attempt(gates)
        yield from batches

    return work


def _gated(gates: str, before: str = ""):
    """Passes rows on, in slices, through the gates of a task: first, rows and end."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        note_attempt(gates)
        seen = 0
        for batch in batches:
            if not seen and batch.num_rows:
                pass_gate(gates, f"{before}first")
            for at in range(0, batch.num_rows, ROWS_AT_ONCE):
                yield batch.slice(at, ROWS_AT_ONCE)
                seen += 1
                if seen == 1:
                    pass_gate(gates, f"{before}rows")
        if seen:
            pass_gate(gates, f"{before}end")

    return work


def _without_failing(batch: pa.RecordBatch, job: dict[str, Any]) -> pa.RecordBatch:
    """Rolls back what fails; the rest, as it is kept."""
    fails = [
        count == 1 and re.search(FAILING, content) is not None
        for content, count in zip(
            batch["content"].to_pylist(), batch["deliveryCount"].to_pylist(), strict=True
        )
    ]
    failed = batch.filter(pa.array(fails))
    if failed.num_rows:
        there = {name: text for name, text in job["options"].items() if name.startswith("redis.")}
        queue = _queue(job["options"]["topic"], tuple(there.items()))
        queue.ask(returning.rollbacks, _rollbacks(failed))
    return batch.filter(pa.array([not each for each in fails])).select(list(COLUMNS))


def _rollbacks(failed: pa.RecordBatch) -> list[Rollback]:
    return [
        Rollback(
            row["slot"],
            row["claimId"],
            [(row["key"] or row["content"]).encode()],
            DELAY_MS if re.search(WAITING, row["content"]) else None,
        )
        for row in failed.to_pylist()
    ]


@cache
def _queue(topic: str, there: tuple[tuple[str, str], ...]) -> Any:
    """One connection a worker's process."""
    options = {name.removeprefix("redis."): text for name, text in there}
    return rmq_spark.connect(**options).queue(topic)
