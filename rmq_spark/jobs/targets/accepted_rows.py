"""A batch without the messages that its target refuses, which go to the exceptions folder."""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from rmq_spark.jobs.databases.database import Refusal, refusal
from rmq_spark.jobs.targets.refusals import Attempt, refused_among
from rmq_spark.jobs.targets.target import LAST, NUMBER, ExportBatch

# The partition of the table that holds a batch is a folder with this name.
BATCH = "rmq_batch"

Write = Callable[[DataFrame], None]


def write_accepted(
    batch: ExportBatch, write: Write, new_trial: Callable[[], Write], exceptions: str
) -> int:
    """Write the rows of a batch without refused messages. Return how many are refused.

    write: writes all rows, which lack NUMBER, or none; if an earlier run wrote the batch, it may do
    nothing. new_trial: returns a function that fails for rows as ``write`` does, but keeps none.
    exceptions: a folder of Parquet files.

    The exceptions are written before the rows. So whenever the target has the batch, its
    exceptions are there, and a replay that the target skips loses none.
    """
    try:
        write(batch.shape(batch.messages).drop(NUMBER))
    except Exception as error:
        if refusal(batch.messages.sparkSession, error) is None:
            raise
    else:
        return 0
    refused = refused_among(batch.numbers(), _attempt(batch, new_trial()), batch.most_refused)
    note_in_folder(batch, refused, exceptions)
    accepted = batch.messages.where(~sql.col(NUMBER).isin(list(refused)))
    write(batch.shape(accepted).drop(NUMBER))
    return len(refused)


def refused_by_shape(batch: ExportBatch) -> dict[int, Refusal]:
    """Run the transformation of a batch without writing. Return the messages that it refuses."""
    attempt = _attempt(batch, discard)
    if attempt(0, LAST) is None:
        return {}
    return refused_among(batch.numbers(), attempt, batch.most_refused)


def note_in_folder(batch: ExportBatch, refused: Mapping[int, object], folder: str) -> None:
    """Write refused messages into the exceptions folder. A replayed batch replaces its own."""
    if not refused:
        return
    rows = [(row.origin, row.topic, row.content, row.reason) for row in batch.refuse(refused)]
    schema = "origin STRING, topic STRING, content STRING, reason STRING"
    table = batch.messages.sparkSession.createDataFrame(rows, schema).coalesce(1)
    table = table.select(sql.current_timestamp().alias("refused_at"), "*")
    table.write.mode("overwrite").parquet(f"{folder}/{BATCH}={batch.name}")


def discard(rows: DataFrame) -> None:
    """Run the transformation of rows, and write them nowhere."""
    rows.write.format("noop").mode("overwrite").save()


def _attempt(batch: ExportBatch, trial: Write) -> Attempt:
    """Return an attempt that tries to write, and returns the reason of a refusal."""

    def attempt(first: int, last: int) -> Refusal | None:
        try:
            trial(batch.between(first, last).drop(NUMBER))
        except Exception as error:
            why = refusal(batch.messages.sparkSession, error)
            if why is None:
                raise
            return why
        return None

    return attempt
