"""The target iceberg of an export: a table of Iceberg, to which each batch is written once.

One commit adds the rows of a batch and notes its number, in a property of the table whose name ends
in the id of the query. A batch that is noted already is skipped. The commit demands that the table
holds the rows that it held when the property was read. If another writer was first, the property
is read again, so of two exports that write the same batch at once, one skips it. Unlike the summary
of a snapshot, a property does not expire.
"""

import io
from contextlib import redirect_stdout

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.table import Table, Transaction
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from rmq_spark.jobs.iceberg_tables import first_line
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.targets.accepted_rows import discard, write_accepted
from rmq_spark.jobs.targets.target import ExportBatch

PROPERTY = "rmq.export."


class _IsNoted(CommitFailedException):
    """The exception for a commit of a batch that another run has just committed."""


class _OneBatch(Transaction):
    """A transaction that PyIceberg repeats only while the batch is not noted."""

    def __init__(self, table: Table, batch: ExportBatch) -> None:
        super().__init__(table)
        self._batch = batch

    def _rebuild_snapshot_updates(self) -> None:
        """Prepare another try. PyIceberg calls this after it has read the table again."""
        if _is_noted(self._table, self._batch):
            raise _IsNoted
        super()._rebuild_snapshot_updates()


class IcebergTarget:
    """A table of Iceberg as the target of an export. The rows pass through the driver.

    exceptions: a folder of Parquet files.
    """

    def __init__(self, catalog: Catalog, table: str, exceptions: str) -> None:
        self._catalog = catalog
        self._name = table
        self._exceptions = exceptions

    def write(self, batch: ExportBatch) -> int:
        """Write a batch once, however often it is replayed. See Target.write."""
        table = self._find()
        if table and _is_noted(table, batch):
            return 0
        required = (
            {field.name for field in table.schema().fields if field.required} if table else set()
        )

        def write(rows: DataFrame) -> None:
            self._commit(_arrow(_checked(rows, required), required), batch)

        def trial(rows: DataFrame) -> None:
            discard(_checked(rows, required))

        return write_accepted(batch, write, lambda: trial, self._exceptions)

    def close(self) -> None:
        """Do nothing: there are no tables to remove."""

    def _find(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _create(self, rows: pa.Table) -> Table:
        namespace = self._catalog.namespace_from(self._name)
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
            return self._catalog.create_table_if_not_exists(self._name, schema=rows.schema)
        except Exception as error:  # each kind of catalog has its own errors
            raise JobFailed(
                f"The Iceberg table {self._name} cannot be created: {first_line(error)}. Choose "
                "other columns with --select, or create the table with another program."
            ) from error

    def _commit(self, rows: pa.Table, batch: ExportBatch) -> None:
        """Append rows and note the batch in one commit, unless the batch is noted."""
        if not rows.num_rows:
            return
        try:
            table = self._find() or self._create(rows)
            if _is_noted(table, batch):
                return
            summary = {"rmq.query": batch.query, "rmq.batch": str(batch.batch)}
            # PyIceberg prints columns that do not fit as a table.
            with redirect_stdout(io.StringIO()), _OneBatch(table, batch) as change:
                change.append(rows, snapshot_properties=summary)
                change.set_properties({_property(batch): str(batch.batch)})
        except _IsNoted:
            return
        except CommitFailedException as error:
            raise JobFailed(
                f"Other writers changed the Iceberg table {self._name} at each try to commit. "
                "Nothing of the batch was written. Start the export again; if this happens often, "
                "raise the property commit.retry.num-retries of the table."
            ) from error
        except CommitStateUnknownException as error:
            raise JobFailed(
                f"The catalog did not say whether the Iceberg table {self._name} has the batch: "
                f"{first_line(error)}. Start the export again: it checks this, and writes the "
                "batch once."
            ) from error
        except (ValueError, UnsupportedPyArrowTypeException) as error:
            raise JobFailed(
                f"The rows do not fit the columns of the Iceberg table {self._name}. Nothing of "
                "the batch was written. Choose and name the columns with --select, with casts to "
                f"the types of the table. The rows have {_columns(rows)}."
            ) from error


def _property(batch: ExportBatch) -> str:
    """Return the name of the property that holds the number of the query's last batch."""
    return f"{PROPERTY}{batch.query}"


def _is_noted(table: Table, batch: ExportBatch) -> bool:
    """Check whether a table has a batch."""
    return int(table.properties.get(_property(batch), -1)) >= batch.batch


def _checked(rows: DataFrame, required: set[str]) -> DataFrame:
    """Return rows that fail if a column that the table requires is NULL."""
    for name in required.intersection(rows.columns):
        why = sql.raise_error(sql.lit(f"The column {name} is required, but the value is NULL."))
        rows = rows.withColumn(name, sql.coalesce(sql.col(name), why))
    return rows


def _arrow(rows: DataFrame, required: set[str]) -> pa.Table:
    """Collect rows, with times in UTC as Iceberg wants them."""
    table = rows.toArrow()
    fields = [
        field.with_type(_in_utc(field.type)).with_nullable(field.name not in required)
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    is_instant = pa.types.is_timestamp(kind) and kind.tz is not None
    return pa.timestamp("us", "UTC") if is_instant else kind


def _columns(rows: pa.Table) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in rows.schema)
