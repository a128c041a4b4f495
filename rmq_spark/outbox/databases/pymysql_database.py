"""MariaDB and MySQL, by the driver PyMySQL."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any

from rmq_spark.outbox.databases.sql_database import (
    IDS_A_STATEMENT,
    Connection,
    Database,
    among,
    ids_not_unique,
    no_transaction,
)
from rmq_spark.protocol.chunks import chunks

_COLUMNS = """
SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = COALESCE(NULLIF(%s, ''), DATABASE()) AND table_name = %s
"""

_ENGINE = """
SELECT engine FROM information_schema.tables
WHERE table_schema = COALESCE(NULLIF(%s, ''), DATABASE()) AND table_name = %s
"""

# A local time may occur twice, and without strict mode the database cuts values.
_EXACT = "time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"

# A relay may ask nothing for so long, beside its rests: a round lasts seconds.
_IDLE_S = 300


def _commits_by_itself(connection: Connection) -> bool:
    """Return whether no transaction is open and each statement is one."""
    flags = import_module("pymysql.constants.SERVER_STATUS")
    status = connection.driver.server_status
    autocommit, open_one = flags.SERVER_STATUS_AUTOCOMMIT, flags.SERVER_STATUS_IN_TRANS
    return bool(status & autocommit and not status & open_one)


class MariaDb(Database):
    """An outbox in MariaDB 10.6 or MySQL 8.0 or later, in a table of InnoDB."""

    schemes = ("mariadb", "mysql")
    package = "pymysql"
    extra = "mariadb"
    look_s = 0.01  # nothing announces new messages; one look is one search in an index
    text_type = "LONGTEXT"
    time_type = "TIMESTAMP(6) NULL"
    id_type = "BIGINT AUTO_INCREMENT PRIMARY KEY"
    table_options = " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"
    times_ms = (1000, 2_147_483_647_000)  # of a TIMESTAMP, which 0 is not
    binary_types = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")

    @staticmethod
    def _import_driver() -> ModuleType:
        """Import PyMySQL."""
        return import_module("pymysql")

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
        """Open a cursor whose rows are tuples."""
        return connection.cursor(import_module("pymysql.cursors").Cursor)

    @contextmanager
    def inserting(self, connection: Connection) -> Iterator[None]:
        """Insert within the block, with the settings of the session that lose nothing."""
        connection.run(f"SET @rmq_zone = @@time_zone, @rmq_mode = @@sql_mode, {_EXACT}")
        try:
            if _commits_by_itself(connection):
                raise no_transaction()
            with super().inserting(connection):
                yield
        finally:
            with suppress(Exception):  # without a connection there is nothing to restore
                connection.run("SET time_zone = @rmq_zone, sql_mode = @rmq_mode")

    def columns(self, connection: Connection, table: str) -> dict[str, str]:
        """Return the columns of a table with their types; empty without a table."""
        schema, _, name = table.rpartition(".")
        found = connection.query(_COLUMNS, [schema, name])
        return {column.lower(): kind.lower() for column, kind in found}

    def why_unsafe(self, connection: Connection, table: str) -> str | None:
        """Return why a table without transactions cannot hold an outbox."""
        schema, _, name = table.rpartition(".")
        found = connection.query(_ENGINE, [schema, name])
        engine = found[0][0] if found else None
        if engine in (None, "InnoDB"):  # a view has none
            return None
        return (
            f"The table {table} has the engine {engine}, which has no transactions. Accepted: "
            f"InnoDB. Run: ALTER TABLE {table} ENGINE=InnoDB."
        )

    def ms_of(self, column: str) -> str:
        """Return SQL for a column of times as ms since 1970."""
        return f"CAST(UNIX_TIMESTAMP({column}) * 1000 AS SIGNED)"

    def time_of(self, ms: str) -> str:
        """Return SQL for the time of an expression in ms since 1970."""
        return f"FROM_UNIXTIME({ms} / 1000.0)"

    def ago(self, ms: int) -> str:
        """Return SQL for the time so many ms ago."""
        return f"NOW(6) - INTERVAL {ms} * 1000 MICROSECOND"

    def take(
        self, connection: Connection, table: str, columns: str, condition: str, order: str
    ) -> list[tuple[Any, ...]]:
        """Set the state of rows to 'sending', and return columns of them."""
        rows = connection.query(
            f"SELECT {columns} FROM {table} WHERE {condition} {order} FOR UPDATE SKIP LOCKED"
        )
        for some in chunks(rows, IDS_A_STATEMENT):
            these = among(row[0] for row in some if row[0] is not None)
            changed = connection.run(f"UPDATE {table} SET state = 'sending' WHERE {these}")
            if changed != len(some):
                raise ids_not_unique(table)
        return rows

    def lock(self, connection: Connection, name: str) -> bool:
        """Take a named lock of the session."""
        ((taken,),) = connection.query("SELECT GET_LOCK(%s, 0)", [f"rmq:{name}"[:64]])
        return bool(taken)

    def watch_over(self, connection: Connection, rest_s: float) -> None:
        """Let the server give up the session if it asks nothing for some minutes."""
        connection.run(f"SET wait_timeout = {_IDLE_S + math.ceil(rest_s)}")

    def announce(self, connection: Connection, channel: str) -> None:
        """Do nothing: relays look often."""
