"""Tables of Apache Iceberg that PyIceberg reaches: the target iceberg of an export, and a source.

Spark needs no connector. Iceberg publishes its connector for Spark late, and for each version of
Spark another one. PyIceberg works with any, and reaches catalogs of every kind (SQL, REST, Hive,
Glue). Without PyIceberg, the import raises JobFailed.
"""

import io
from collections.abc import Mapping
from contextlib import redirect_stdout

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.targets.base import ExportBatch, Place, Target, discard, write_accepted
from rmq_spark.jobs.targets.iceberg import (
    TABLE,
    checked,
    conflict,
    first_line,
    is_noted,
    property_of,
    unknown,
)

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchTableError,
    )
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
    from pyiceberg.table import Table, Transaction
except ImportError as error:
    raise JobFailed(
        f"The format iceberg needs {error.name}: pip install 'rmq-spark[iceberg]'"
    ) from error

CATALOG = "catalog"
_DEFAULT = "default"  # PyIceberg's own name for a catalog without a name


def read_table(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the rows that a table holds now. They pass through the driver. Raises JobFailed."""
    try:
        rows = _open_catalog(options).load_table(options[TABLE]).scan().to_arrow()
    except NoSuchTableError as error:
        raise JobFailed(f"There is no Iceberg table {options[TABLE]}.") from error
    return spark.createDataFrame(rows)


def _open_catalog(options: Mapping[str, str]) -> Catalog:
    """Open the catalog that options describe, as PyIceberg names them.

    The option catalog chooses its name. PyIceberg adds what its configuration file and the
    environment say of a catalog with this name, such as secrets.
    """
    properties = {n: value for n, value in options.items() if n not in (TABLE, CATALOG)}
    name = options.get(CATALOG, _DEFAULT)
    try:
        catalog = load_catalog(name, **properties)
        catalog.list_namespaces()  # reaches the server, if there is one
    except Exception as error:  # each kind of catalog has its own errors
        raise JobFailed(
            f"The Iceberg catalog {name} cannot be opened: {first_line(error)}. Describe it with "
            "options such as type=sql, uri=... and warehouse=..., or in PyIceberg's own "
            "configuration. To write with Spark's connector, name a catalog of Spark: --table "
            "CATALOG.NAMESPACE.TABLE and --conf spark.sql.catalog.CATALOG="
            "org.apache.iceberg.spark.SparkCatalog."
        ) from error
    return catalog


class _IsNoted(CommitFailedException):
    """The exception for a commit of a batch that another run has just committed."""


class _OneBatch(Transaction):
    """A transaction that PyIceberg repeats only while the batch is not noted."""

    def __init__(self, table: Table, batch: ExportBatch) -> None:
        super().__init__(table)
        self._batch = batch

    def _rebuild_snapshot_updates(self) -> None:
        """Prepare another try. PyIceberg calls this after it has read the table again."""
        if is_noted(self._table.properties, self._batch):
            raise _IsNoted
        super()._rebuild_snapshot_updates()


class IcebergTarget(Target):
    """A table of Iceberg, to which each batch is written once. The rows pass through the driver.

    One commit adds the rows of a batch and notes its number, in a property of the table whose name
    ends in the id of the query. A batch that is noted already is skipped. The commit demands that
    the table holds the rows that it held when the property was read. If another writer was first,
    the property is read again, so of two exports that write the same batch at once, one skips it.
    Unlike the summary of a snapshot, a property does not expire.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._catalog = _open_catalog(place.options)
        self._name = place.options[TABLE]

    def write(self, batch: ExportBatch) -> int:
        table = self._find()
        if table and is_noted(table.properties, batch):
            return 0
        required = (
            {field.name for field in table.schema().fields if field.required} if table else set()
        )

        def write(rows: DataFrame) -> None:
            self._commit(_arrow(checked(rows, required), required), batch)

        def trial(rows: DataFrame) -> None:
            discard(checked(rows, required))

        return write_accepted(batch, write, lambda: trial, self.place.exceptions)

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
        if not rows.num_rows:
            return
        try:
            table = self._find() or self._create(rows)
            if is_noted(table.properties, batch):
                return
            summary = {"rmq.query": batch.query, "rmq.batch": str(batch.batch)}
            # PyIceberg prints columns that do not fit as a table.
            with redirect_stdout(io.StringIO()), _OneBatch(table, batch) as change:
                change.append(rows, snapshot_properties=summary)
                change.set_properties({property_of(batch): str(batch.batch)})
        except _IsNoted:
            return
        except CommitFailedException as error:
            raise conflict(self._name) from error
        except CommitStateUnknownException as error:
            raise unknown(self._name, first_line(error)) from error
        except (ValueError, UnsupportedPyArrowTypeException) as error:
            raise JobFailed(
                f"The rows do not fit the columns of the Iceberg table {self._name}. Nothing of "
                "the batch was written. Choose and name the columns with --select, with casts to "
                f"the types of the table. The rows have {_columns(rows)}."
            ) from error


def _arrow(rows: DataFrame, required: set[str]) -> pa.Table:
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
