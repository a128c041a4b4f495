"""The targets that Spark writes by the name of a format: files, and any other format."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from rmq_spark.jobs.databases.database import Refusal, refusal
from rmq_spark.jobs.formats import FILES
from rmq_spark.jobs.targets.refusals import refused_among
from rmq_spark.jobs.targets.target import LAST, NUMBER, ExportBatch

# The partition of the table that holds a batch is a folder with this name.
BATCH = "rmq_batch"


class SparkTarget:
    """A format that Spark writes by name. In files, a replayed batch replaces itself.

    Only the transformation refuses messages here, never the format. exceptions: a folder of Parquet
    files.
    """

    def __init__(self, form: str, options: dict[str, str], exceptions: str) -> None:
        self._form = form
        self._options = options
        self._exceptions = exceptions

    def write(self, batch: ExportBatch) -> int:
        """Write a batch, into its own subfolder if the format is files. See Target.write."""
        refused: dict[int, Refusal] = {}
        try:
            self._write(batch, batch.shape(batch.messages))
        except Exception as error:
            if refusal(batch.messages.sparkSession, error) is None:
                raise
            refused = refused_by_shape(batch)
            good = batch.messages.where(~sql.col(NUMBER).isin(list(refused)))
            self._write(batch, batch.shape(good))
        self._note(batch, refused)
        return len(refused)

    def close(self) -> None:
        """Do nothing: there are no tables to remove."""

    def _write(self, batch: ExportBatch, rows: DataFrame) -> None:
        rows = rows.drop(NUMBER)
        options, mode = dict(self._options), "append"
        if self._form in FILES:
            options["path"] += f"/{BATCH}={batch.name}"
            mode = "overwrite"
        rows.write.format(self._form).options(**options).mode(mode).save()

    def _note(self, batch: ExportBatch, refused: dict[int, Refusal]) -> None:
        note_in_folder(batch, refused, self._exceptions)


def refused_by_shape(batch: ExportBatch) -> dict[int, Refusal]:
    """Run the transformation of a batch without writing. Return the messages that it refuses."""
    attempt = _tried(batch)
    if attempt(0, LAST) is None:
        return {}
    return refused_among(batch.numbers(), attempt, batch.most_refused)


def note_in_folder(batch: ExportBatch, refused: dict[int, Refusal], folder: str) -> None:
    """Write refused messages into the exceptions folder. A replayed batch replaces its own."""
    if not refused:
        return
    rows = [(row.origin, row.topic, row.content, row.reason) for row in batch.exceptions(refused)]
    schema = "origin STRING, topic STRING, content STRING, reason STRING"
    table = batch.messages.sparkSession.createDataFrame(rows, schema).coalesce(1)
    table = table.select(sql.current_timestamp().alias("refused_at"), "*")
    table.write.mode("overwrite").parquet(f"{folder}/{BATCH}={batch.name}")


def _tried(batch: ExportBatch) -> Callable[[int, int], Refusal | None]:
    """Return an attempt that runs the transformation and discards the rows."""

    def attempt(first: int, last: int) -> Refusal | None:
        try:
            batch.between(first, last).write.format("noop").mode("overwrite").save()
        except Exception as error:
            why = refusal(batch.messages.sparkSession, error)
            if why is None:
                raise
            return why
        return None

    return attempt
