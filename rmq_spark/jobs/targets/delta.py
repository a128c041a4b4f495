"""The target delta of an export: a table of Delta Lake, to which each batch is written once.

Delta's log keeps the number of the last batch of each query (txnAppId, txnVersion). The commit that
adds the rows of a batch also adds its number. A batch whose number is not higher is skipped. If two
exports write the same batch at once, the log accepts one.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from rmq_spark.jobs.program import DELTA, JobFailed
from rmq_spark.jobs.spark_session import (
    DELTA_SETTINGS,
    Folder,
    check_connector,
    conditions_of,
)
from rmq_spark.jobs.targets.base import ExportBatch, Place, Target, Write, discard, write_accepted

_OTHER_SCHEMA = {
    "DELTA_METADATA_MISMATCH",
    "DELTA_FAILED_TO_MERGE_FIELDS",
    "DELTA_MISSING_NOT_NULL_COLUMN_VALUE",  # the rows lack the column
}
_NO_EXTENSION = "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"
_TRIALS = "trials"


class DeltaTarget(Target):
    """A table of Delta Lake, by its name in Spark's catalog or by its folder, the option path.

    Tables for trials are made in the folder of the checkpoint.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        check_connector(place.spark, DELTA)
        self._spark, self._options, self._table = place.spark, place.options, place.given.table
        self._folder = Folder(place.spark, place.given.checkpoint)

    def write(self, batch: ExportBatch) -> int:
        if self._has(batch):
            return 0
        named = {"txnAppId": batch.query, "txnVersion": str(batch.batch)}

        def write(rows: DataFrame) -> None:
            self._append(rows, {**self._options, **named}, self._table)

        return write_accepted(batch, write, self._new_trial, self.place.exceptions)

    def close(self) -> None:
        self._folder.remove(_TRIALS)

    def _new_trial(self) -> Write:
        if not self._exists():
            return discard
        self._folder.remove(_TRIALS)
        # A new name each time, because Delta remembers the table that was in a folder.
        trial = Folder(self._spark, self._folder.path(f"{_TRIALS}/{uuid.uuid4().hex}")).uri()
        self._spark.sql(f"CREATE TABLE {_in_sql(trial)} LIKE {self._name}")
        # By name or by path, as the target: by name alone, Spark casts to the types of the table.
        if self._table:
            return lambda rows: self._append(rows, self._options, _in_sql(trial))
        return lambda rows: self._append(rows, {**self._options, "path": trial}, None)

    def _has(self, batch: ExportBatch) -> bool:
        if not self._exists():
            return False
        tables, spark = self._tables, self._spark._jsparkSession
        table = (
            tables.forName(spark, self._table)
            if self._table
            else tables.forPath(spark, self._options["path"])
        )
        last = table.deltaLog().unsafeVolatileSnapshot().transactions().get(batch.query)
        return bool(last.isDefined()) and int(last.get()) >= batch.batch

    @property
    def _tables(self) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.io.delta.tables.DeltaTable

    def _exists(self) -> bool:
        if self._table:
            return self._spark.catalog.tableExists(self._table)
        # A write that fails leaves the folder of the log, so a look at the folder does not suffice.
        return bool(self._tables.isDeltaTable(self._spark._jsparkSession, self._options["path"]))

    @property
    def _name(self) -> str:
        return self._table or _in_sql(Folder(self._spark, self._options["path"]).uri())

    def _append(self, rows: DataFrame, options: Mapping[str, str], table: str | None) -> None:
        writer = rows.write.format(DELTA).options(**options).mode("append")
        try:
            writer.saveAsTable(table) if table else writer.save()
        except (PySparkException, Py4JJavaError) as error:
            # Its SQLSTATE may be one of a value that does not fit, but no row is at fault.
            found = conditions_of(self._spark, error)
            if _NO_EXTENSION in found:
                raise JobFailed(
                    f"Spark lacks settings for Delta Lake. Start the job with {DELTA_SETTINGS}"
                ) from error
            if found.isdisjoint(_OTHER_SCHEMA):
                raise
            raise JobFailed(
                f"The rows do not fit the columns of {self._name}. Nothing of the batch was "
                "written. Choose the columns with --select, with casts to the types of the table, "
                "or let Delta add those that the table lacks with --target-option "
                "mergeSchema=true. The rows have "
                f"{', '.join(f'{name} {kind}' for name, kind in rows.dtypes)}."
            ) from error


def _in_sql(uri: str) -> str:
    return f"delta.`{uri.replace('`', '``')}`"
