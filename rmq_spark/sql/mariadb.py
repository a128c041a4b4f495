"""MariaDB and MySQL, by the driver PyMySQL and by JDBC."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from rmq_spark.protocol.packing import chunks
from rmq_spark.sql.database import (
    IDS_A_STATEMENT,
    Connection,
    Database,
    Dialect,
    DriverConnection,
    among,
    ids_not_unique,
    no_transaction,
)

_COLUMNS = """
SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = COALESCE(NULLIF(%s, ''), DATABASE()) AND table_name = %s
"""
_ENGINE_WITHOUT_TRANSACTIONS = """
SELECT t.ENGINE FROM information_schema.TABLES t JOIN information_schema.ENGINES e
ON t.ENGINE = e.ENGINE WHERE t.TABLE_SCHEMA = COALESCE(NULLIF(%s, ''), DATABASE())
AND t.TABLE_NAME = %s AND NOT (e.TRANSACTIONS = 'YES' AND e.SAVEPOINTS = 'YES')
"""
# MariaDB's driver takes a url of MySQL if this is in it.
_PERMIT = "permitMysqlScheme=true"
_GIVEN, _OF_SPARK = "jdbc:mariadb:", "jdbc:mysql:"
_DRIVER, _DRIVER_OF_MYSQL = "org.mariadb.jdbc.Driver", "com.mysql.cj.jdbc.Driver"
_SIGNALLED = "45000"  # SIGNAL in a trigger
# Errors of a row that their SQLSTATE does not show. MariaDB: no such value of an ENUM, no
# partition. MySQL: a value that is no number or not in the character set, a check option, a CHECK.
_OF_THE_ROW = (1265, 1526, 1366, 1369, 3819)
# An ambiguous name of a column has the class of constraints, but the job or a trigger is at fault.
_OF_THE_JOB = (1052,)
# A local time may occur twice, and without strict mode the database cuts values.
_EXACT = "time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"
# A relay may ask nothing for so long, beside its rests: a round lasts seconds.
_IDLE_S = 300


class MariaDbDialect(Dialect):
    """The SQL of MariaDB and MySQL.

    Spark knows no urls of MariaDB: it would quote names as texts and cut long texts. So it gets a
    url of MySQL. Tables that the jobs create say their engine and character set, because the
    defaults of the server may lose rows or characters.
    """

    text_type = "LONGTEXT"
    # NULL, because a TIMESTAMP without it has a default in older versions.
    time_type = "TIMESTAMP(6) NULL"
    table_options = " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"
    # Those of Spark have no fractions of a second, and take at most 64 KB.
    own_types: Mapping[str, str] = {
        "string": text_type,
        "binary": "LONGBLOB",
        "timestamp": time_type,
        "timestamp_ntz": "DATETIME(6)",
    }
    drivers: Mapping[str, str] = {"mariadb": _DRIVER, "mysql": _DRIVER_OF_MYSQL}
    packages: Mapping[str, str] = {
        _DRIVER: "org.mariadb.jdbc:mariadb-java-client:3.5.3",
        _DRIVER_OF_MYSQL: "com.mysql:mysql-connector-j:9.3.0",
    }
    tables_are_in_catalogs = True

    def spark_options(self, options: Mapping[str, str]) -> dict[str, str]:
        options, url = super().spark_options(options), options["url"]
        if not url.startswith(_GIVEN):
            return options
        mark = "&" if "?" in url else "?"
        return {**options, "url": f"{_OF_SPARK}{url.removeprefix(_GIVEN)}{mark}{_PERMIT}"}

    def given_url(self, url: str) -> str:
        if url.endswith(_PERMIT):
            return _GIVEN + url.removeprefix(_OF_SPARK)[: -len(f"?{_PERMIT}")]
        return url

    def is_fault_of_row(self, state: str, code: int = 0) -> bool:
        if code in _OF_THE_JOB:
            return False
        return code in _OF_THE_ROW or state == _SIGNALLED or super().is_fault_of_row(state, code)

    def create_empty_copy(
        self, table: str, source: str, columns: Sequence[str], added: Mapping[str, str]
    ) -> str:
        """Return a statement that copies columns. The outer join keeps NOT NULL out of the copy."""
        new = ", ".join(f"{name} {kind}" for name, kind in added.items())
        return (
            f"CREATE TABLE {table} ({new}){self.table_options} AS SELECT {', '.join(columns)} "
            f"FROM (SELECT 1 AS rmq_one) AS rmq_none LEFT JOIN {source} ON FALSE WHERE FALSE"
        )

    def unsafe_session(self, connection: Connection) -> str | None:
        ((modes,),) = connection.query("SELECT @@SESSION.sql_mode")
        if {"STRICT_ALL_TABLES", "STRICT_TRANS_TABLES"} & set(str(modes).split(",")):
            return None
        return (
            f"The sql_mode of the connection is {str(modes)!r}, in which the database cuts "
            "values that do not fit. Remove sql_mode and jdbcCompliantTruncation from the url, "
            "or add ?sessionVariables=sql_mode='STRICT_ALL_TABLES' to it."
        )

    def unsafe_table(self, connection: Connection, table: str) -> str | None:
        schema, _, name = table.rpartition(".")
        found = connection.query(_ENGINE_WITHOUT_TRANSACTIONS, [schema, name])
        if not found:
            return None
        return (
            f"The table {table} has the engine {found[0][0]}, which has no transactions. Accepted: "
            f"InnoDB. Run: ALTER TABLE {table} ENGINE=InnoDB."
        )


class MariaDb(Database):
    """An outbox in MariaDB 10.6 or MySQL 8.0 or later, in a table of InnoDB."""

    dialect = MariaDbDialect()
    schemes = ("mariadb", "mysql")
    package = "pymysql"
    extra = "mariadb"
    own = "server_status"
    look_s = 0.01  # nothing announces new messages; one look is one search in an index
    id_type = "BIGINT AUTO_INCREMENT PRIMARY KEY"
    times_ms = (1000, 2_147_483_647_000)  # of a TIMESTAMP, which 0 is not
    instant_types = ("timestamp",)
    binary_types = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")

    def _open(self, driver: Any) -> Any:
        """Open a connection in strict mode, which sees what others have committed."""
        settings = {name: int(v) if v.isdigit() else v for name, v in self.settings.items()}
        limits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), 60)
        connection = driver.connect(
            host=self.parts.hostname,
            port=self.parts.port or 3306,
            database=self.name,
            user=self.user,
            password=self.password or "",
            charset="utf8mb4",
            # A plain SELECT would otherwise see the database as it was when the transaction began.
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            # Count the rows that a condition finds, also those that are as they should be.
            client_flag=driver.constants.CLIENT.FOUND_ROWS,
            **{**limits, **settings},
        )
        with self.cursor(connection) as cursor:
            cursor.execute(f"SET {_EXACT}")
        return connection

    @staticmethod
    def cursor(connection: Any) -> Any:
        return connection.cursor(import_module("pymysql.cursors").Cursor)

    @contextmanager
    def inserting(self, connection: DriverConnection) -> Iterator[None]:
        connection.run(f"SET @rmq_zone = @@time_zone, @rmq_mode = @@sql_mode, {_EXACT}")
        try:
            if _commits_by_itself(connection):
                raise no_transaction()
            with super().inserting(connection):
                yield
        finally:
            with suppress(Exception):  # without a connection there is nothing to restore
                connection.run("SET time_zone = @rmq_zone, sql_mode = @rmq_mode")

    def columns(self, connection: DriverConnection, table: str) -> dict[str, str]:
        schema, _, name = table.rpartition(".")
        found = connection.query(_COLUMNS, [schema, name])
        return {column.lower(): kind.lower() for column, kind in found}

    def ms_of(self, column: str) -> str:
        return f"CAST(UNIX_TIMESTAMP({column}) * 1000 AS SIGNED)"

    def time_of(self, ms: str) -> str:
        return f"FROM_UNIXTIME({ms} / 1000.0)"

    def ago(self, ms: int) -> str:
        return f"NOW(6) - INTERVAL {ms} * 1000 MICROSECOND"

    def take(
        self, connection: DriverConnection, table: str, columns: str, condition: str, order: str
    ) -> list[tuple[Any, ...]]:
        rows = connection.query(
            f"SELECT {columns} FROM {table} WHERE {condition} {order} FOR UPDATE SKIP LOCKED"
        )
        for some in chunks(rows, IDS_A_STATEMENT):
            these = among(row[0] for row in some if row[0] is not None)
            changed = connection.run(f"UPDATE {table} SET state = 'sending' WHERE {these}")
            if changed != len(some):
                raise ids_not_unique(table)
        return rows

    def lock(self, connection: DriverConnection, name: str) -> bool:
        ((taken,),) = connection.query("SELECT GET_LOCK(%s, 0)", [f"rmq:{name}"[:64]])
        return bool(taken)

    def watch_over(self, connection: DriverConnection, rest_s: float) -> None:
        connection.run(f"SET wait_timeout = {_IDLE_S + math.ceil(rest_s)}")


def _commits_by_itself(connection: DriverConnection) -> bool:
    flags = import_module("pymysql.constants.SERVER_STATUS")
    status = connection.driver.server_status
    autocommit, open_one = flags.SERVER_STATUS_AUTOCOMMIT, flags.SERVER_STATUS_IN_TRANS
    return bool(status & autocommit and not status & open_one)
