"""Delta Lake and Iceberg for the kill rounds: as targets, and Delta as a source."""

import json
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from . import delta_spark, iceberg_spark
from .iceberg_catalog import TABLE, Warehouse

SELECT = ("--select", "CAST(content AS INT) AS number")
# Rows in each commit that the source is fed with; a batch reads one commit.
ROWS_A_COMMIT = 400


class Lake:
    """A folder for a table. files, commits: patterns of their names in it."""

    is_once = True
    files = commits = ""

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="rmq-lake-"))
        self.seen = (0, 0)
        return self

    def is_within(self):
        """Whether there are files of rows, newer than the last look, and no newer commit."""
        found = [len(list(self.folder.glob(each))) for each in (self.files, self.commits)]
        before, self.seen = self.seen, found
        return found[0] > before[0] and found[1] == before[1]

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def figures(self):
        return {}


class IcebergTarget(Lake):
    """The target of an export."""

    job = "export"
    files, commits = "lake/**/data/**/*.parquet", "lake/**/*.metadata.json"

    def __enter__(self):
        super().__enter__()
        self.warehouse = Warehouse(self.folder / "lake")
        return self

    @property
    def arguments(self):
        options = self.warehouse.options("--target-option")
        return ["--to", "iceberg", "--table", TABLE, *options, *SELECT]

    def delivered(self):
        return [(row["number"], row["number"]) for row in self.warehouse.rows()]

    def figures(self):
        return {"commits": len(self.warehouse.table().snapshots())}


class IcebergSparkTarget(Lake):
    """The target of an export by Iceberg's connector, on a Spark that has one."""

    job = "export"

    def __enter__(self):
        super().__enter__()
        self.jar = iceberg_spark.connector()
        self.warehouse = iceberg_spark.SparkWarehouse(self.folder / "lake")
        return self

    def is_within(self):
        """Whether there is a snapshot that is staged, newer than the last look."""
        if not self.warehouse.latest():
            return False
        known = json.loads(self.warehouse.latest().read_text())
        last = known["snapshots"][-1]["snapshot-id"] if known["snapshots"] else None
        before, self.seen = self.seen, last
        return last not in (before, known.get("current-snapshot-id"))

    @property
    def arguments(self):
        return [
            *("--conf", f"spark.jars={self.jar}", *self.warehouse.options()),
            *("--to", "iceberg", "--table", self.warehouse.table, *SELECT),
        ]

    def delivered(self):
        return [(row["number"], row["number"]) for row in self.warehouse.rows()]

    def figures(self):
        seen = self.warehouse.seen()
        return {"commits": len(seen.history()), "snapshots": len(seen.snapshots())}


class Delta(Lake):
    """A table of Delta Lake, which the test reads and writes without Spark."""

    files, commits = "orders/*.parquet", "orders/_delta_log/*.json"

    def __enter__(self):
        super().__enter__()
        self.variables = delta_spark.variables()
        self.path = str(self.folder / "orders")
        return self

    def figures(self):
        return {"commits": DeltaTable(self.path).version() + 1}


class DeltaTarget(Delta):
    """The target of an export."""

    job = "export"

    @property
    def arguments(self):
        return [*delta_spark.options(), "--to", "delta", "--path", self.path, *SELECT]

    def delivered(self):
        numbers = DeltaTable(self.path).to_pyarrow_table()["number"].to_pylist()
        return [(number, number) for number in numbers]


class DeltaSource(Delta):
    """The source of a stream."""

    job = "send"
    is_within = None  # its files are the feeder's

    def __enter__(self):
        super().__enter__()
        write_deltalake(self.path, pa.table({"number": pa.array([], pa.int64())}))
        return self

    @property
    def arguments(self):
        return [
            *(*delta_spark.options(), "--stream", "--from", "delta", "--path", self.path),
            *("--source-option", "maxFilesPerTrigger=1"),
            *("--select", "CAST(number AS STRING) AS content, 0 AS fixedTime"),
        ]

    def feed(self, numbers):
        for first in range(0, len(numbers), ROWS_A_COMMIT):
            rows = pa.table({"number": list(numbers[first : first + ROWS_A_COMMIT])})
            write_deltalake(self.path, rows, mode="append")
