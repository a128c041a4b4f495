"""Where an export writes: files and any other format of Spark. Tables of databases: jdbc_target."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from rmq_spark.jobs.database import Refusal, refusal
from rmq_spark.jobs.formats import FILES
from rmq_spark.jobs.outbox.exceptions_table import Refused
from rmq_spark.jobs.refusals import refused_among

NUMBER = "rmq_number"
# The folder of a batch is a partition of the table by this name.
BATCH = "rmq_batch"


@dataclass(frozen=True)
class ExportBatch:
    """Messages of one batch, each with a number in the column NUMBER, ascending with their order.

    shape: what is written of messages; it keeps NUMBER. query, batch: together they name it for
    ever: a batch that is run again holds the same messages.
    """

    messages: DataFrame
    shape: Callable[[DataFrame], DataFrame]
    query: str
    batch: int
    most_refused: int

    @property
    def name(self) -> str:
        """The same for each run of the batch, another for each other batch."""
        return f"{self.query}-{self.batch}"

    def between(self, first: int, last: int) -> DataFrame:
        """What is written of the messages with these numbers."""
        return self.shape(self.messages.where(sql.col(NUMBER).between(first, last)))

    def numbers(self) -> list[int]:
        """Of all its messages, ascending."""
        return sorted(row[0] for row in self.messages.select(NUMBER).collect())

    def exceptions(self, refused: dict[int, Refusal]) -> list[Refused]:
        """What the exceptions table gets."""
        if not refused:
            return []
        rows = self.messages.where(sql.col(NUMBER).isin(list(refused)))
        # What is no text is shown in hex.
        binary = sql.col("content").cast("binary")
        text = sql.when(sql.is_valid_utf8(binary), binary.cast("string")).otherwise(sql.hex(binary))
        found = rows.select(NUMBER, "topic", text.alias("content")).collect()
        origin = f"export {self.query} batch {self.batch}"
        return [Refused(origin, row.topic, row.content, str(refused[row[NUMBER]])) for row in found]


class Target(Protocol):
    """What an export writes into."""

    def write(self, batch: ExportBatch) -> int:
        """Writes a batch but what is refused for good, which goes to the exceptions.

        Returns how many were refused. Raises for everything else; then the batch comes again.
        """

    def close(self) -> None:
        """Removes what only a running export needs."""


class SparkTarget:
    """A format that Spark writes by name, files so that a batch run again replaces itself.

    Nothing but the transformation refuses a message here. exceptions: a folder of Parquet files.
    """

    def __init__(self, form: str, options: dict[str, str], exceptions: str) -> None:
        self._form = form
        self._options = options
        self._exceptions = exceptions

    def write(self, batch: ExportBatch) -> int:
        """See Target."""
        refused: dict[int, Refusal] = {}
        try:
            self._write(batch, batch.shape(batch.messages))
        except Exception as error:
            if refusal(batch.messages.sparkSession, error) is None:
                raise
            refused = refused_among(batch.numbers(), _tried(batch), batch.most_refused)
            good = batch.messages.where(~sql.col(NUMBER).isin(list(refused)))
            self._write(batch, batch.shape(good))
        self._note(batch, batch.exceptions(refused))
        return len(refused)

    def close(self) -> None:
        """See Target."""

    def _write(self, batch: ExportBatch, rows: DataFrame) -> None:
        rows = rows.drop(NUMBER)
        options, mode = dict(self._options), "append"
        if self._form in FILES:
            options["path"] += f"/{BATCH}={batch.name}"
            mode = "overwrite"
        rows.write.format(self._form).options(**options).mode(mode).save()

    def _note(self, batch: ExportBatch, refused: list[Refused]) -> None:
        if not refused:
            return
        rows = [(row.origin, row.topic, row.content, row.reason) for row in refused]
        schema = "origin STRING, topic STRING, content STRING, reason STRING"
        table = batch.messages.sparkSession.createDataFrame(rows, schema).coalesce(1)
        table = table.select(sql.current_timestamp().alias("refused_at"), "*")
        table.write.mode("overwrite").parquet(f"{self._exceptions}/{BATCH}={batch.name}")


def _tried(batch: ExportBatch) -> Callable[[int, int], Refusal | None]:
    """Works a transformation out and throws the result away."""

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
