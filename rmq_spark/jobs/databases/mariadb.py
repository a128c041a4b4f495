"""The dialect of MariaDB and MySQL."""

from collections.abc import Mapping, Sequence

from rmq_spark.jobs.databases.dialect import Dialect, Statements

_GIVEN, _OF_SPARK = "jdbc:mariadb:", "jdbc:mysql:"
# MariaDB's driver takes a url of MySQL if this is in it.
_PERMIT = "permitMysqlScheme"
_DRIVER, _DRIVER_OF_MYSQL = "org.mariadb.jdbc.Driver", "com.mysql.cj.jdbc.Driver"
_SIGNALLED = "45000"  # SIGNAL in a trigger
# Errors of a row that their SQLSTATE does not show. MariaDB: no such value of an ENUM, no
# partition. MySQL: a value that is no number or not in the character set, a check option, a CHECK.
_OF_THE_ROW = (1265, 1526, 1366, 1369, 3819)
# An ambiguous name of a column has the class of constraints, but the job or a trigger is at fault.
_OF_THE_JOB = (1052,)


class MariaDB(Dialect):
    """MariaDB, and MySQL.

    Spark knows no urls of MariaDB: it would quote names as texts and cut long texts. So it gets a
    url of MySQL. Tables that the jobs create say their engine and character set, because the
    defaults of the server may lose rows or characters.
    """

    drivers: Mapping[str, str] = {_GIVEN: _DRIVER, _OF_SPARK: _DRIVER_OF_MYSQL}
    packages: Mapping[str, str] = {
        _DRIVER: "org.mariadb.jdbc:mariadb-java-client:3.5.3",
        _DRIVER_OF_MYSQL: "com.mysql:mysql-connector-j:9.3.0",
    }
    tables_are_in_catalogs = True
    table_options = " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"
    # NULL, because a TIMESTAMP without it has a default in older versions.
    clock_type = "TIMESTAMP(6) NULL"
    # Those of Spark have no fractions of a second, and take at most 64 KB.
    own_types: Mapping[str, str] = {
        "string": "LONGTEXT",
        "binary": "LONGBLOB",
        "timestamp": "TIMESTAMP(6) NULL",
        "timestamp_ntz": "DATETIME(6)",
    }

    @classmethod
    def spark_options(cls, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options for Spark, with a url of MySQL. See Dialect."""
        options, url = super().spark_options(options), options["url"]
        if not url.startswith(_GIVEN):
            return options
        mark = "&" if "?" in url else "?"
        return {**options, "url": f"{_OF_SPARK}{url.removeprefix(_GIVEN)}{mark}{_PERMIT}=true"}

    @classmethod
    def given_url(cls, url: str) -> str:
        """Return the url that the user gave, from the one in ``spark_options``."""
        if url.endswith(f"{_PERMIT}=true"):
            return _GIVEN + url.removeprefix(_OF_SPARK)[: -len(f"?{_PERMIT}=true")]
        return url

    @classmethod
    def is_fault_of_row(cls, state: str, code: int = 0) -> bool:
        """Check whether an error means that a row can never be stored. See Dialect."""
        if code in _OF_THE_JOB:
            return False
        return code in _OF_THE_ROW or state == _SIGNALLED or super().is_fault_of_row(state, code)

    def create_empty_copy(
        self, table: str, source: str, columns: Sequence[str], added: Mapping[str, str]
    ) -> str:
        """Return a statement that copies columns of a table. See Dialect.

        The outer join keeps NOT NULL out of the copy.
        """
        new = ", ".join(f"{name} {kind}" for name, kind in added.items())
        return (
            f"CREATE TABLE {table} ({new}){self.table_options} AS SELECT {', '.join(columns)} "
            f"FROM (SELECT 1 AS rmq_one) AS rmq_none LEFT JOIN {source} ON FALSE WHERE FALSE"
        )

    def why_unsafe(self, connection: Statements, tables: Sequence[str]) -> str | None:
        """Return why an export would lose rows or write them twice. See Dialect."""
        ((modes,),) = connection.query("SELECT @@SESSION.sql_mode")
        if not {"STRICT_ALL_TABLES", "STRICT_TRANS_TABLES"} & set(str(modes).split(",")):
            return (
                f"The sql_mode of the connection is {str(modes)!r}, in which the database cuts "
                "values that do not fit. Remove sql_mode and jdbcCompliantTruncation from the url, "
                "or add ?sessionVariables=sql_mode='STRICT_ALL_TABLES' to it."
            )
        for table in tables:
            schema, _, name = table.rpartition(".")
            found = connection.query(
                "SELECT t.ENGINE FROM information_schema.TABLES t JOIN information_schema.ENGINES "
                "e ON t.ENGINE = e.ENGINE WHERE t.TABLE_SCHEMA = COALESCE(?, DATABASE()) AND "
                "t.TABLE_NAME = ? AND NOT (e.TRANSACTIONS = 'YES' AND e.SAVEPOINTS = 'YES')",
                *(schema or None, name),
            )
            if found:
                return (
                    f"The table {table} has the engine {found[0][0]}, which has no transactions, "
                    "so a batch that is written again would be there twice. Run ALTER TABLE "
                    f"{table} ENGINE=InnoDB."
                )
        return None
