"""The target iceberg of an export: a table of Apache Iceberg, to which each batch is written once.

Two ways lead to a table. If its name begins with a catalog of Spark, Iceberg's connector for Spark
writes, in all tasks. Otherwise PyIceberg writes, on the driver (``iceberg_python``). That works
with any version of Spark, also those for which Iceberg publishes no connector.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j has no types
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructField, StructType

from rmq_spark.errors import InvalidOption, without_login
from rmq_spark.jobs.program import ICEBERG, JobFailed
from rmq_spark.jobs.spark_session import check_connector, java_causes
from rmq_spark.jobs.targets.base import ExportBatch, Place, Target, Write, discard, write_accepted

TABLE = "table"
# The property of a table that holds the number of the last batch of a query begins with this.
PROPERTY = "rmq.export."
_PACKAGE = "org.apache.iceberg"
_CONFLICT = f"{_PACKAGE}.exceptions.CommitFailedException"
_UNKNOWN = f"{_PACKAGE}.exceptions.CommitStateUnknownException"
# What lets a write stage its snapshot: a property of the table, and a setting of the session.
_CAN_STAGE, _STAGE = "write.wap.enabled", "spark.wap.id"
_WAP_ID = "wap.id"  # in the summary of a staged snapshot
_RETRIES, _DEFAULT_RETRIES = "commit.retry.num-retries", 4  # Iceberg's own
_FIRST_WAIT_S, _MOST_WAIT_S = 0.1, 60.0  # likewise
_NOT_FOR_EXPORTS = ("branch", "rewritten-file-scan-task-set-id")  # these lead the rows elsewhere


def new_target(place: Place) -> Target:
    if is_in_spark(place.spark, place.options[TABLE]):
        return SparkIcebergTarget(place)
    from rmq_spark.jobs.targets.iceberg_python import IcebergTarget  # needs PyIceberg

    return IcebergTarget(place)


def is_in_spark(spark: SparkSession, table: str) -> bool:
    """Check whether the name of a table begins with a catalog that the settings of Spark name."""
    return spark.conf.get(_setting(table), None) is not None


def check_catalog(spark: SparkSession, options: Mapping[str, str], kind: str) -> None:
    """Raise JobFailed or InvalidOption if Iceberg's connector cannot reach a table.

    options: the table, and options of the connector. kind: of these, "Write" or "Read".
    """
    table = options[TABLE]
    catalog = _catalog(table)
    check_connector(spark, ICEBERG)
    jspark: Any = spark._jsparkSession
    try:
        plugin = jspark.sessionState().catalogManager().catalog(catalog)
    except (PySparkException, Py4JJavaError) as error:
        raise JobFailed(
            f"The catalog {catalog} of Spark cannot be opened: {first_line(error)}. Check the "
            f"settings --conf {_setting(table)}=... and {_setting(table)}.*"
        ) from error
    if not is_instance_of(spark.sparkContext._gateway, plugin, f"{_PACKAGE}.spark.BaseCatalog"):
        raise InvalidOption(
            f"--table {table} is in the catalog {catalog} of Spark, which is not one of Iceberg. "
            f"Set --conf {_setting(table)}={_PACKAGE}.spark.SparkCatalog, or remove that setting "
            "to write with PyIceberg."
        )
    if len(_parts(spark, table)) < 3:
        raise InvalidOption(
            f"--table {table} names no namespace in the catalog {catalog} of Spark. Accepted: "
            f"{catalog}.NAMESPACE.TABLE. For PyIceberg, remove --conf {_setting(table)}."
        )
    accepted = _options_of(spark, kind) - set(_NOT_FOR_EXPORTS if kind == "Write" else ())
    for name in options:
        if name != TABLE and name not in accepted:
            raise InvalidOption(
                f"Iceberg's connector for Spark, which reaches --table {table}, has no option "
                f"{name} here. Accepted: {', '.join(sorted(accepted))}. Describe the catalog with "
                f"settings such as --conf {_setting(table)}.type=...; for PyIceberg and its "
                f"options, remove --conf {_setting(table)}."
            )


def _catalog(table: str) -> str:
    return table.split(".")[0].strip("`")


def _setting(table: str) -> str:
    return f"spark.sql.catalog.{_catalog(table)}"


def _parts(spark: SparkSession, table: str) -> list[str]:
    jspark: Any = spark._jsparkSession
    parts = jspark.sessionState().sqlParser().parseMultipartIdentifier(table)
    return [str(parts.apply(at)) for at in range(parts.size())]


def _options_of(spark: SparkSession, kind: str) -> set[str]:
    """Return the names that the connector has as constants, for options to "Write" or "Read"."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    fields = loader.loadClass(f"{_PACKAGE}.spark.Spark{kind}Options").getFields()
    return {str(one.get(None)) for one in fields if not str(one.getName()).endswith("_DEFAULT")}


class SparkIcebergTarget(Target):
    """A table in a catalog of Spark. The tasks write the files of a batch.

    First, Spark stages the rows as a snapshot that no reader sees (Iceberg's write-audit-publish).
    Then one commit publishes this snapshot and notes the number of the batch in a property of the
    table. The commit succeeds only if nobody has changed the table since the property was read.
    Otherwise, the property is read again. So of two exports that write the same batch at once, one
    publishes it. What is staged and not published goes when snapshots are expired.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        check_catalog(place.spark, place.options, "Write")
        self._name = place.options[TABLE]
        self._options = {name: value for name, value in place.options.items() if name != TABLE}

    def write(self, batch: ExportBatch) -> int:
        # A streaming query has a session of its own, and with it catalogs that keep tables.
        spark = batch.messages.sparkSession
        table = self._find(spark)
        if table and is_noted(table.properties(), batch):
            return 0
        schema = spark.table(self._name).schema if table else StructType()

        def write(rows: DataFrame) -> None:
            table, wap_id = self._stage(_fitted(rows, schema), batch)
            self._publish(table, wap_id, batch)

        return write_accepted(batch, write, lambda: _trial(schema), self.place.exceptions)

    def _find(self, spark: SparkSession) -> Any:
        """Return the table as it is now, or None."""
        if not spark.catalog.tableExists(self._name):
            return None
        jvm: Any = spark._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, self._name
        )
        table.refresh()
        return table

    def _create(self, rows: DataFrame) -> None:
        spark = rows.sparkSession
        *namespace, _ = (f"`{part.replace('`', '``')}`" for part in _parts(spark, self._name))
        columns = StructType([StructField(one.name, one.dataType) for one in rows.schema])
        try:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(namespace)}")
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._name} ({columns.toDDL()}) USING iceberg "
                f"TBLPROPERTIES ('{_CAN_STAGE}' = 'true')"
            )
        except (PySparkException, Py4JJavaError) as error:
            raise JobFailed(
                f"The Iceberg table {self._name} cannot be created: {first_line(error)}. Choose "
                "other columns with --select, or create the table with another program."
            ) from error

    def _stage(self, rows: DataFrame, batch: ExportBatch) -> tuple[Any, str]:
        """Write the files of a batch. Return the table, and the id in the staged summary."""
        spark = rows.sparkSession
        table = self._find(spark)
        if table is None:
            self._create(rows)
            table = self._find(spark)
        if table.properties().get(_CAN_STAGE) != "true":
            with self._told(batch):
                table.updateProperties().set(_CAN_STAGE, "true").commit()
        wap_id = f"rmq-{batch.name}-{uuid.uuid4().hex}"
        spark.conf.set(_STAGE, wap_id)
        try:
            rows.writeTo(self._name).options(**self._options).append()
        except AnalysisException as error:
            # Its SQLSTATE may be one of a value that does not fit, but no row is at fault.
            raise JobFailed(
                f"The rows do not fit the columns of the Iceberg table {self._name}: "
                f"{first_line(error)}. Nothing of the batch was written. Choose and name the "
                "columns with --select, with casts to the types of the table. The rows have "
                f"{', '.join(f'{name} {kind}' for name, kind in rows.dtypes)}."
            ) from error
        finally:
            spark.conf.unset(_STAGE)
        return table, wap_id

    def _publish(self, table: Any, wap_id: str, batch: ExportBatch) -> None:
        """Make a staged batch visible and note its number, in one commit, unless it is noted."""
        with self._told(batch):
            left = int(table.properties().get(_RETRIES) or _DEFAULT_RETRIES)
            wait_s = _FIRST_WAIT_S
            while not self._try_to_publish(table, wap_id, batch, is_last=not left):
                time.sleep(wait_s)
                left, wait_s = left - 1, min(2 * wait_s, _MOST_WAIT_S)

    def _try_to_publish(self, table: Any, wap_id: str, batch: ExportBatch, is_last: bool) -> bool:
        """Return whether the table has the batch now, or False if another writer was first.

        Does not let Iceberg repeat the commit, because Iceberg would not read the property again.
        """
        jvm: Any = self.place.spark._jvm
        change = jvm.org.apache.iceberg.Transactions.newTransaction(self._name, table.operations())
        start = change.startMetadata()
        if is_noted(start.properties(), batch):
            return True
        staged = next(
            (one for one in reversed(start.snapshots()) if one.summary().get(_WAP_ID) == wap_id),
            None,
        )
        if staged is None:
            raise JobFailed(
                f"The Iceberg table {self._name} does not have the snapshot that was staged for "
                f"batch {batch.batch}. Either snapshots were expired that are younger than the "
                f"batch, or the property {_CAN_STAGE} was changed. In the latter case, the batch "
                f"may be in the table: look for {_WAP_ID} {wap_id} among its snapshots. "
                "Otherwise, start the export again: it writes the batch."
            )
        change.manageSnapshots().cherrypick(staged.snapshotId()).commit()
        change.updateProperties().set(property_of(batch), str(batch.batch)).commit()
        try:
            table.operations().commit(start, change.currentMetadata())
        except Py4JJavaError as error:
            if is_last or not self._is(error, _CONFLICT):
                raise
            return False
        return True

    @contextmanager
    def _told(self, batch: ExportBatch) -> Iterator[None]:
        """Turn errors of a commit into JobFailed."""
        try:
            yield
        except Py4JJavaError as error:
            if self._is(error, _CONFLICT):
                raise conflict(self._name) from error
            if self._is(error, _UNKNOWN):
                raise unknown(self._name, first_line(error)) from error
            raise

    def _is(self, error: Py4JJavaError, kind: str) -> bool:
        gateway = self.place.spark.sparkContext._gateway
        return bool(is_instance_of(gateway, error.java_exception, kind))


def _trial(schema: StructType) -> Write:
    """Return a function that fails for rows that a table with these columns does not take."""

    def trial(rows: DataFrame) -> None:
        fitted = _fitted(rows, schema)
        kinds = {one.name.lower(): one.dataType for one in schema}
        columns = [
            fitted[name].cast(kinds.get(name.lower(), fitted.schema[name].dataType))
            for name in fitted.columns
        ]
        discard(fitted.select(columns))

    return trial


def _fitted(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return rows with all optional columns of a table, which fail where a required one is NULL."""
    given = {name.lower() for name in rows.columns}
    missing = {
        one.name: sql.lit(None).cast(one.dataType)
        for one in schema
        if one.nullable and one.name.lower() not in given
    }
    required = {one.name.lower() for one in schema if not one.nullable}
    named = {name for name in rows.columns if name.lower() in required}
    return checked(rows.withColumns(missing), named)


# -- what both ways share


def property_of(batch: ExportBatch) -> str:
    return f"{PROPERTY}{batch.query}"


def is_noted(properties: Mapping[str, str], batch: ExportBatch) -> bool:
    return int(properties.get(property_of(batch)) or -1) >= batch.batch


def checked(rows: DataFrame, required: set[str]) -> DataFrame:
    """Return rows that fail if a column that the table requires is NULL."""
    for name in required.intersection(rows.columns):
        why = sql.raise_error(sql.lit(f"The column {name} is required, but the value is NULL."))
        rows = rows.withColumn(name, sql.coalesce(sql.col(name), why))
    return rows


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, without its full stop."""
    java = java_causes(error)
    text = str(java[0].getMessage() if java else error).strip()
    return without_login(text.splitlines()[0].rstrip(".")) if text else type(error).__name__


def conflict(table: str) -> JobFailed:
    return JobFailed(
        f"Other writers changed the Iceberg table {table} at each try to commit. Nothing of the "
        "batch was written. Start the export again; if this happens often, raise the property "
        f"{_RETRIES} of the table."
    )


def unknown(table: str, why: str) -> JobFailed:
    return JobFailed(
        f"The catalog did not say whether the Iceberg table {table} has the batch: {why}. Start "
        "the export again: it checks this, and writes the batch once."
    )
