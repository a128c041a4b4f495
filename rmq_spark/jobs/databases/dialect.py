"""The SQL dialect of a database: standard SQL, and the points in which databases differ.

A subclass holds everything that is special about one database. Databases without a subclass get
standard SQL, and the types that Spark uses for their columns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

# Classes of SQLSTATE for a faulty row: its values, a constraint of the table, a check option of a
# view. Other errors may pass (no connection, a deadlock, a full disk), or the job is at fault (no
# such table, no permission).
_OF_THE_ROW = ("22", "23", "44")


class Statements(Protocol):
    """A connection that runs SQL statements."""

    def query(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """Return the rows that a query finds."""


class Dialect:
    """Standard SQL, for databases that have no subclass.

    spark_type: returns the type that Spark gives a column, by the name of the type in Spark, such
    as ``string``.
    """

    # How urls begin, with the class of the driver: Spark needs it to find the driver in spark.jars.
    drivers: Mapping[str, str] = {}
    # The Maven coordinate of each driver, by its class.
    packages: Mapping[str, str] = {}
    # Whether a table belongs to a catalog of JDBC. If not, it belongs to a schema.
    tables_are_in_catalogs = False
    # What follows a CREATE TABLE that the jobs write.
    table_options = ""
    # The type of a column that keeps CURRENT_TIMESTAMP.
    clock_type = "TIMESTAMP"
    # Types for the columns of a new target in place of Spark's, by the name of the type in Spark.
    own_types: Mapping[str, str] = {}

    def __init__(self, spark_type: Callable[[str], str]) -> None:
        self._spark_type = spark_type

    @classmethod
    def spark_options(cls, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the format jdbc with which Spark speaks this dialect."""
        driver = next((cls.drivers[it] for it in cls.drivers if options["url"].startswith(it)), "")
        if not driver or "driver" in {name.lower() for name in options}:
            return dict(options)
        return {**options, "driver": driver}

    @classmethod
    def given_url(cls, url: str) -> str:
        """Return the url that the user gave, from the one in ``spark_options``."""
        return url

    @classmethod
    def has_users(cls) -> bool:
        """Check whether the database has users."""
        return True

    @classmethod
    def is_fault_of_row(cls, state: str, code: int = 0) -> bool:
        """Check whether an error means that a row can never be stored.

        state: the SQLSTATE. code: the number that the vendor gives the error.
        """
        return state.startswith(_OF_THE_ROW)

    @property
    def text_type(self) -> str:
        """The type of a column for texts of any length, such as TEXT or CLOB."""
        return self.type_of("string")

    def type_of(self, spark_type: str) -> str:
        """Return the type of a column that stores all values of a type of Spark."""
        return self.own_types.get(spark_type) or self._spark_type(spark_type)

    def storable_text(self, text: str | None) -> str | None:
        """Escape what the database cannot store in a text."""
        return text

    def create_empty_copy(
        self, table: str, source: str, columns: Sequence[str], added: Mapping[str, str]
    ) -> str:
        """Return a statement that copies columns of a table, without rows and constraints.

        added: more columns with their types.
        """
        new = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in added.items()]
        chosen = ", ".join([*columns, *new])
        return f"CREATE TABLE {table} AS SELECT {chosen} FROM {source} WITH NO DATA"

    def why_unsafe(self, connection: Statements, tables: Sequence[str]) -> str | None:
        """Return why an export to tables would lose rows or write them twice, and the remedy.

        Returns None if the export is safe.
        """
        return None


def cut_text(text: str | None, length: int) -> str | None:
    """Cut a text to a length. A character beyond U+FFFF counts as two, as in databases in Java."""
    return text and text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")
