"""The target kafka of an export: topics of Kafka."""

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from rmq_spark.jobs.targets.accepted_rows import note_in_folder, refused_by_shape
from rmq_spark.jobs.targets.kafka_records import records
from rmq_spark.jobs.targets.target import NUMBER, ExportBatch


class RecordWriter(Protocol):
    """A way to write the records of batches to Kafka."""

    def has(self, batch: ExportBatch) -> bool:
        """Check whether an earlier run has surely written the batch."""

    def write(self, batch: ExportBatch, rows: DataFrame) -> None:
        """Write the records of a batch."""


class KafkaTarget:
    """Topics of Kafka as the target of an export.

    required: the columns that --select must make; None without --select. exceptions: a folder of
    Parquet files. Only the transformation refuses messages; it is tried before anything is written.
    """

    def __init__(
        self, writer: RecordWriter, required: Sequence[str] | None, exceptions: str
    ) -> None:
        self._writer = writer
        self._required = required
        self._exceptions = exceptions

    def write(self, batch: ExportBatch) -> int:
        """Write a batch. See Target.write."""
        if self._writer.has(batch):
            return 0
        refused = refused_by_shape(batch)
        # Before the records: with them, the batch may be done, and then it is not written again.
        note_in_folder(batch, refused, self._exceptions)
        good = batch.messages.where(~sql.col(NUMBER).isin(list(refused)))
        self._writer.write(batch, records(batch, good, self._required))
        return len(refused)

    def close(self) -> None:
        """Do nothing: there are no tables to remove."""
