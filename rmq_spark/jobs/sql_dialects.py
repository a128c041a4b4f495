"""What differs between databases: drivers, types, texts they can store, errors, some statements.

All else that the jobs say to a database is standard SQL. Types of columns are those of Spark's own
dialects, which Spark also gives to the tables that it makes.
"""

from collections.abc import Sequence
from typing import Any

# Spark finds a driver in spark.jars by its class only.
_DRIVERS = {"jdbc:postgresql:": "org.postgresql.Driver"}
_WITHOUT_USERS = ("jdbc:derby:",)
# Classes of SQLSTATE that are a row's own fault: its values, the table's constraints, a view's
# check option, PostgreSQL's RAISE in a trigger. Others may go by (no connection, a deadlock, a full
# disk), or are the job's fault (no such table, no permission).
_OF_THE_ROW = ("22", "23", "44", "P0001")


def driver_of(url: str) -> str | None:
    """The class of the driver for a url, where Spark must be given it."""
    return next((driver for start, driver in _DRIVERS.items() if url.startswith(start)), None)


def has_users(url: str) -> bool:
    """Whether the database asks who connects. To an embedded Derby, a name only means a schema."""
    return not url.startswith(_WITHOUT_USERS)


def is_fault_of_row(state: str) -> bool:
    """Whether an SQLSTATE says that a row cannot be stored, however often it is tried."""
    return state.startswith(_OF_THE_ROW)


class Dialect:
    """Spark's dialect for a url. jvm: of the Spark session."""

    def __init__(self, jvm: Any, url: str) -> None:
        self._jvm = jvm
        self.java: Any = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(url)

    @property
    def text_type(self) -> str:
        """The type of a column for texts of any length, such as TEXT or CLOB."""
        return self._type_of("string")

    @property
    def time_type(self) -> str:
        """The type of a column for a point in time, with a zone where the database has such."""
        return self._type_of("timestamp")

    def _type_of(self, spark_type: str) -> str:
        kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(f'"{spark_type}"')
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        return str(jdbc.getJdbcType(kind, self.java).databaseTypeDefinition())


def cut_text(text: str | None, length: int) -> str | None:
    """As much of a text as fits: databases on Java count a character beyond U+FFFF as two."""
    return text and text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")


def storable_text(text: str | None) -> str | None:
    """A text without the one character that PostgreSQL stores nowhere, U+0000."""
    return text and text.replace("\0", "\\u0000")


def first_rows(order: str, amount: int) -> str:
    """The end of a query for so many rows, the first in that order."""
    return f"ORDER BY {order} FETCH FIRST {amount} ROWS ONLY"


def seconds_from_now(seconds: int) -> str:
    """An expression: a time by the database's clock and in its zone.

    The braces are JDBC's: its drivers translate them.
    """
    return f"{{fn TIMESTAMPADD(SQL_TSI_SECOND, {seconds}, CURRENT_TIMESTAMP)}}"


def create_empty_copy(table: str, source: str, columns: Sequence[str]) -> str:
    """A statement: make a table of these columns, without any of its rows and constraints."""
    return f"CREATE TABLE {table} AS SELECT {', '.join(columns)} FROM {source} WITH NO DATA"
