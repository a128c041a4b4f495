"""Targets of an export: files and other formats of Spark. For databases, see jdbc_target."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from rmq_spark.jobs.databases.database import Refusal, refusal
from rmq_spark.jobs.formats import FILES
from rmq_spark.jobs.refusals import refused_among
from rmq_spark.outbox.exceptions import Refused

NUMBER = "rmq_number"
# The partition of the table that holds a batch is a folder with this name.
BATCH = "rmq_batch"


@dataclass(frozen=True)
class ExportBatch:
    """A batch of messages, numbered in their order by the column NUMBER.

    shape: transforms messages into the rows to write, and keeps NUMBER. query, batch: the permanent
    name of the batch; a replay holds the same messages. most_refused: the number of refused
    messages that is allowed.
    """

    messages: DataFrame
    shape: Callable[[DataFrame], DataFrame]
    query: str
    batch: int
    most_refused: int

    @property
    def name(self) -> str:
        """The name of the batch, the same for each replay."""
        return f"{self.query}-{self.batch}"

    def between(self, first: int, last: int) -> DataFrame:
        """Return the rows to write for the messages between two numbers, inclusive."""
        return self.shape(self.messages.where(sql.col(NUMBER).between(first, last)))

    def numbers(self) -> list[int]:
        """Return the numbers of all messages, ascending."""
        return sorted(row[0] for row in self.messages.select(NUMBER).collect())

    def exceptions(self, refused: dict[int, Refusal]) -> list[Refused]:
        """Return the rows of the exceptions table for refused messages."""
        if not refused:
            return []
        rows = self.messages.where(sql.col(NUMBER).isin(list(refused)))
        found = rows.select(NUMBER, "topic", *(_shown(name) for name in ("key", "content")))
        origin = f"export {self.query} batch {self.batch}"
        return [
            Refused(
                origin if row.key is None else f"{origin} key {row.key}",
                *(row.topic, row.content, str(refused[row[NUMBER]])),
            )
            for row in found.collect()
        ]


def _shown(name: str) -> Column:
    """Return a column as text; what is not UTF-8 is shown in hex."""
    binary = sql.col(name).cast("binary")
    text = sql.when(sql.is_valid_utf8(binary), binary.cast("string")).otherwise(sql.hex(binary))
    return text.alias(name)


class Target(Protocol):
    """A place that an export writes to."""

    def write(self, batch: ExportBatch) -> int:
        """Write a batch, and put refused messages into the exceptions table.

        Returns how many messages are refused. Raises any other error; the batch is then replayed.
        """

    def close(self) -> None:
        """Remove the tables that only a running export needs."""


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
            refused = refused_among(batch.numbers(), _tried(batch), batch.most_refused)
            good = batch.messages.where(~sql.col(NUMBER).isin(list(refused)))
            self._write(batch, batch.shape(good))
        self._note(batch, batch.exceptions(refused))
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

    def _note(self, batch: ExportBatch, refused: list[Refused]) -> None:
        if not refused:
            return
        rows = [(row.origin, row.topic, row.content, row.reason) for row in refused]
        schema = "origin STRING, topic STRING, content STRING, reason STRING"
        table = batch.messages.sparkSession.createDataFrame(rows, schema).coalesce(1)
        table = table.select(sql.current_timestamp().alias("refused_at"), "*")
        table.write.mode("overwrite").parquet(f"{self._exceptions}/{BATCH}={batch.name}")


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
