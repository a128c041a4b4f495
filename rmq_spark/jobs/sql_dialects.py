"""The differences between databases: drivers, types, texts they can store, errors, statements.

All other statements of the jobs are standard SQL. Types of columns come from Spark's dialects, as
in the tables that Spark creates.
"""

from collections.abc import Sequence
from typing import Any

# Spark needs the class of a driver to find it in spark.jars.
_DRIVERS = {"jdbc:postgresql:": "org.postgresql.Driver"}
_WITHOUT_USERS = ("jdbc:derby:",)
# Classes of SQLSTATE for a faulty row: its values, a constraint of the table, a check option of a
# view, PostgreSQL's RAISE in a trigger. Other errors may pass (no connection, a deadlock, a full
# disk), or the job is at fault (no such table, no permission).
_OF_THE_ROW = ("22", "23", "44", "P0001")


def driver_of(url: str) -> str | None:
    """Return the class of the driver for a url, if Spark needs to know it, or else None."""
    return next((driver for start, driver in _DRIVERS.items() if url.startswith(start)), None)


def has_users(url: str) -> bool:
    """Check whether a database has users. In an embedded Derby, a user is only a schema."""
    return not url.startswith(_WITHOUT_USERS)


def is_fault_of_row(state: str) -> bool:
    """Check whether an SQLSTATE means that a row can never be stored."""
    return state.startswith(_OF_THE_ROW)


class Dialect:
    """The SQL dialect of Spark for a url. jvm: the JVM of the Spark session."""

    def __init__(self, jvm: Any, url: str) -> None:
        self._jvm = jvm
        self.java: Any = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(url)

    @property
    def text_type(self) -> str:
        """The type of a column for texts of any length, such as TEXT or CLOB."""
        return self._type_of("string")

    @property
    def time_type(self) -> str:
        """The type of a column for a point in time, with a zone if the database has one."""
        return self._type_of("timestamp")

    def _type_of(self, spark_type: str) -> str:
        kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(f'"{spark_type}"')
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        return str(jdbc.getJdbcType(kind, self.java).databaseTypeDefinition())


def cut_text(text: str | None, length: int) -> str | None:
    """Cut a text to a length. A character beyond U+FFFF counts as two, as in databases in Java."""
    return text and text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")


def storable_text(text: str | None) -> str | None:
    """Escape U+0000, the only character that PostgreSQL cannot store."""
    return text and text.replace("\0", "\\u0000")


def first_rows(order: str, amount: int) -> str:
    """Return the clauses that limit a query to the first ``amount`` rows in an order."""
    return f"ORDER BY {order} FETCH FIRST {amount} ROWS ONLY"


def seconds_from_now(seconds: int) -> str:
    """Return an SQL expression for a time from now, by the database's clock and in its zone.

    JDBC drivers translate the braces.
    """
    return f"{{fn TIMESTAMPADD(SQL_TSI_SECOND, {seconds}, CURRENT_TIMESTAMP)}}"


def create_empty_copy(table: str, source: str, columns: Sequence[str]) -> str:
    """Return a statement that copies columns of a table, without rows and constraints."""
    return f"CREATE TABLE {table} AS SELECT {', '.join(columns)} FROM {source} WITH NO DATA"
