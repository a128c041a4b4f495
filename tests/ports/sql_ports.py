"""Tables and files for the kill rounds: targets that get each message once."""

import tempfile

import pyarrow.dataset as ds

from .. import mariadb, postgres

SELECT = "CAST(content AS INT) AS number"


class _Table:
    """A database, and its table."""

    job, is_once = "export", True

    def __enter__(self):
        self.driver = self.module.driver()
        self.database = self.server().__enter__()
        self.variables = self.database.variables
        return self

    def __exit__(self, *raised):
        self.database.__exit__(*raised)

    @property
    def arguments(self):
        jar = ("--conf", f"spark.jars={self.driver}")
        return [*jar, "--to", "jdbc", "--table", "delivered", "--select", SELECT]

    def delivered(self):
        for (number,) in self.database.sql("SELECT number FROM delivered"):
            yield int(number), int(number)

    def figures(self):
        return {}


class PostgresTarget(_Table):
    """A table of PostgreSQL."""

    module, server = postgres, postgres.Postgres


class MariaDBTarget(_Table):
    """A table of MariaDB."""

    module, server = mariadb, mariadb.MariaDB


class ParquetTarget:
    """A folder of Parquet files."""

    job, is_once = "export", True

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="rmq-files-")
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    @property
    def arguments(self):
        return ["--to", "parquet", "--path", self.folder.name, "--select", SELECT]

    def delivered(self):
        for number in ds.dataset(self.folder.name).to_table(["number"])["number"].to_pylist():
            yield number, number

    def figures(self):
        return {}
