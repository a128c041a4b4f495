"""A database that Spark reaches through JDBC: connections, statements and errors."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j has no types
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.sql_dialects import Dialect, driver_of, has_users, is_fault_of_row

# The name of a table becomes part of SQL statements, without quotes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
# Spark wraps a task's exception in others. Look at no more causes than this.
_MOST_CAUSES = 30
_STATE_METHODS = (
    ("java.sql.SQLException", "getSQLState"),
    ("org.apache.spark.SparkThrowable", "getSqlState"),
)


class Database:
    """The database that the options of Spark's format jdbc name.

    options: url, user, password, driver and so on. The repr and the errors show only the part of
    the url before any ``?`` or ``;``.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self.spark = spark
        self.options = {name: value for name, value in options.items() if name != "dbtable"}
        self._jvm: Any = spark._jvm
        self.dialect = Dialect(self._jvm, options["url"])

    def __repr__(self) -> str:
        return f"Database({self.address})"

    @property
    def address(self) -> str:
        """The url without the part that may hold secrets."""
        return re.split(r"[?;]", self.options["url"])[0]

    def connect(self) -> "Connection":
        """Open a new connection, which commits every statement.

        Raises JobFailed if there is no driver, and Py4JJavaError if the database refuses the
        connection.
        """
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc
        # Spark demands the name of a table, but does not use it here.
        given = self._jvm.PythonUtils.toScalaMap({**self.options, "dbtable": "rmq"})
        try:
            options = jdbc.JDBCOptions(given)
            factory = self.dialect.java.createConnectionFactory(options)
        except Py4JJavaError as error:
            raise JobFailed(
                f"There is no JDBC driver for {self.address} "
                f"({error.java_exception.getMessage()}). Name its jar, such as --conf "
                "spark.jars=/path/to/driver.jar. If that is not enough, name the class of the "
                "driver with the option driver."
            ) from error
        return Connection(self, factory.apply(-1))


def jdbc_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options, with the driver, user and password added if they lack them.

    User and password come from RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, because the list of processes
    does not show the environment. Raises InvalidOption if the url contains a user or a password.
    """
    shown = re.split(r"[?;]", options["url"])[0]
    if re.search(r"[^:]@|password *=", shown, re.IGNORECASE):
        raise InvalidOption(
            "A user or password in the url is not accepted, because errors show the url. Set "
            "RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, or the options user and password."
        )
    if not has_users(options["url"]):
        return dict(options)
    given = {name.lower() for name in options}
    found = {
        "user": os.environ.get("RMQ_JDBC_USER"),
        "password": os.environ.get("RMQ_JDBC_PASSWORD"),
        "driver": driver_of(options["url"]),
    }
    return {**options, **{name: v for name, v in found.items() if v and name not in given}}


class Connection:
    """A connection that runs SQL statements, and a context manager that closes it."""

    def __init__(self, database: Database, java: Any) -> None:
        self._database = database
        self._java = java

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._java.close()

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the database."""
        return self._database.dialect

    @property
    def address(self) -> str:
        """The url of the database, without the part that may hold secrets."""
        return self._database.address

    def quoted(self, name: str) -> str:
        """Quote the name of a column for a statement."""
        mark = str(self._java.getMetaData().getIdentifierQuoteString())
        return f"{mark}{name.replace(mark, mark + mark)}{mark}"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run statements as one transaction: commit at the end, roll back after an error."""
        self._java.setAutoCommit(False)
        try:
            yield
        except BaseException:
            self._clean_up(self._java.rollback)
            raise
        else:
            self._java.commit()
        finally:
            self._clean_up(lambda: self._java.setAutoCommit(True))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Set a savepoint within a transaction; after an error, roll back to it."""
        point = self._java.setSavepoint()
        try:
            yield
        except BaseException:
            self._clean_up(lambda: self._java.rollback(point))
            raise
        self._java.releaseSavepoint(point)

    def _clean_up(self, step: Callable[[], None]) -> None:
        """Run a cleanup step, and ignore its error if the connection is gone.

        The database has then rolled back by itself.
        """
        try:
            step()
        except Exception:
            if not self._java.isClosed():
                raise

    def update(self, sql: str, *values: Any) -> int:
        """Run a statement, and return how many rows it changed."""
        with self._prepared(sql, values) as statement:
            return int(statement.executeUpdate())

    def update_each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        with self._prepared(sql, ()) as statement:
            for row in rows:
                self._bind(statement, row)
                statement.addBatch()
            if rows:
                statement.executeBatch()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds. Only for few rows: each value is a call to Java."""
        with self._prepared(sql, values) as statement:
            found = statement.executeQuery()
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getObject(at + 1) for at in range(width)))
            return rows

    def columns(self, table: str) -> dict[str, int]:
        """Return the columns of a table with their java.sql.Types; empty if there is no table.

        The names are spelled as in the database. Raises InvalidOption for a table that needs
        quotes.
        """
        meta = self._java.getMetaData()
        schema, _, name = check_name(table).rpartition(".")
        # Use the case in which the database stores a name without quotes.
        fold = str.upper if meta.storesUpperCaseIdentifiers() else str.lower
        place = (fold(schema) or self._java.getSchema(), fold(name))
        found = meta.getColumns(None, *place, "%")
        columns = {}
        while found.next():
            # getColumns takes a pattern, in which an underscore matches any character.
            if (found.getString("TABLE_SCHEM"), found.getString("TABLE_NAME")) != place:
                continue
            columns[str(found.getString("COLUMN_NAME"))] = int(found.getInt("DATA_TYPE"))
        return columns

    def create(self, table: str, *statements: str) -> None:
        """Create a table with statements in one transaction, unless the table exists.

        Does nothing if another job creates the table at the same time.
        """
        if self.columns(table):
            return
        try:
            with self.transaction():
                for statement in statements:
                    self.update(statement)
        except Py4JJavaError:
            if not self.columns(table):
                raise

    @contextmanager
    def _prepared(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        statement = self._java.prepareStatement(sql)
        try:
            self._bind(statement, values)
            yield statement
        finally:
            self._clean_up(statement.close)

    def _bind(self, statement: Any, values: Sequence[Any]) -> None:
        for at, value in enumerate(values, 1):
            if isinstance(value, int):  # py4j passes an int or a long, whichever fits
                statement.setLong(at, value)
            else:
                statement.setString(at, value)


def check_name(table: str) -> str:
    """Check and return the name of a table. Raises InvalidOption for a name that needs quotes."""
    if not _NAME.fullmatch(table):
        raise InvalidOption(
            f"The table {table!r} is not accepted. Accepted: letters, digits and underscores, "
            "after a schema and a dot if you need one. For another table, create a view with such "
            "a name."
        )
    return table


@dataclass(frozen=True)
class Refusal:
    """The reason why a row can never be written. state: the SQLSTATE."""

    state: str
    text: str

    def __str__(self) -> str:
        return f"SQLSTATE {self.state}: {self.text}"


def refusal(spark: SparkSession, error: BaseException) -> Refusal | None:
    """Return the reason if an error means that a row can never be written, or else None."""
    gateway = spark.sparkContext._gateway
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    deepest = None
    for _ in range(_MOST_CAUSES):
        if java is None:
            break
        for kind, state in _STATE_METHODS:
            if is_instance_of(gateway, java, kind) and getattr(java, state)():
                deepest = Refusal(str(getattr(java, state)()), str(java.getMessage()))
        java = java.getCause()
    return deepest if deepest and is_fault_of_row(deepest.state) else None
