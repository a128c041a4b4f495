"""A database through JDBC, as Spark reaches it: one connection of the driver, its errors told."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # it has none
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # likewise
from pyspark.sql import SparkSession

from rmq_spark.jobs.program import JobFailed, JobMisused
from rmq_spark.jobs.sql_dialects import Dialect, driver_of, has_users, is_fault_of_row

# What a table may be called here: it becomes part of statements.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
# Spark wraps what a task threw into what the stage and the job threw.
_MOST_CAUSES = 30
_TELL_STATE = (
    ("java.sql.SQLException", "getSQLState"),
    ("org.apache.spark.SparkThrowable", "getSqlState"),
)


class Database:
    """What the options of Spark's format jdbc name.

    options: url, user, password, driver and so on. Its repr and errors show none of them but the
    part of the url before any ``?`` or ``;``.
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
        """Its url without what may be secret."""
        return re.split(r"[?;]", self.options["url"])[0]

    def connect(self) -> "Connection":
        """A connection of its own, which commits every statement.

        Raises JobFailed where there is no driver, Py4JJavaError where the database refuses.
        """
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc
        # Spark asks for a table; nothing is read of it here.
        given = self._jvm.PythonUtils.toScalaMap({**self.options, "dbtable": "rmq"})
        try:
            options = jdbc.JDBCOptions(given)
            factory = self.dialect.java.createConnectionFactory(options)
        except Py4JJavaError as error:
            raise JobFailed(
                f"There is no JDBC driver for {self.address} "
                f"({error.java_exception.getMessage()}). Name its jar, such as --conf "
                "spark.jars=/path/to/driver.jar, and where that is not enough its class with the "
                "option driver."
            ) from error
        return Connection(self, factory.apply(-1))


def jdbc_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with the driver, and with user and password of RMQ_JDBC_USER and _PASSWORD.

    What is given already stays. In the environment a password is not in the list of processes.
    """
    shown = re.split(r"[?;]", options["url"])[0]
    if re.search(r"[^:]@|password *=", shown, re.IGNORECASE):
        raise JobMisused(
            "A user or password in the url is not accepted: it shows in errors. Accepted: "
            "RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, or the options user and password."
        )
    if not has_users(options["url"]):
        return dict(options)
    given = {name.lower() for name in options}
    told = {
        "user": os.environ.get("RMQ_JDBC_USER"),
        "password": os.environ.get("RMQ_JDBC_PASSWORD"),
        "driver": driver_of(options["url"]),
    }
    return {**options, **{name: v for name, v in told.items() if v and name not in given}}


class Connection:
    """Statements on one connection. A context manager, closed at its end."""

    def __init__(self, database: Database, java: Any) -> None:
        self._database = database
        self._java = java

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._java.close()

    @property
    def dialect(self) -> Dialect:
        """What is particular to the database."""
        return self._database.dialect

    @property
    def address(self) -> str:
        """Where the database is."""
        return self._database.address

    def quoted(self, name: str) -> str:
        """A column's name as it stands in statements."""
        mark = str(self._java.getMetaData().getIdentifierQuoteString())
        return f"{mark}{name.replace(mark, mark + mark)}{mark}"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements meanwhile are committed at the end, or at an error none."""
        self._java.setAutoCommit(False)
        try:
            yield
        except BaseException:
            self._undo(self._java.rollback)
            raise
        else:
            self._java.commit()
        finally:
            self._undo(lambda: self._java.setAutoCommit(True))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Within a transaction: at an error, what was done meanwhile is undone."""
        point = self._java.setSavepoint()
        try:
            yield
        except BaseException:
            self._undo(lambda: self._java.rollback(point))
            raise
        self._java.releaseSavepoint(point)

    def _undo(self, step: Callable[[], None]) -> None:
        """Undoes; where the connection is gone, the database has done so already."""
        try:
            step()
        except Exception:
            if not self._java.isClosed():
                raise

    def update(self, sql: str, *values: Any) -> int:
        """Runs a statement. Returns how many rows it changed."""
        with self._prepared(sql, values) as statement:
            return int(statement.executeUpdate())

    def update_each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Runs a statement once for each row of values."""
        with self._prepared(sql, ()) as statement:
            for row in rows:
                self._bind(statement, row)
                statement.addBatch()
            if rows:
                statement.executeBatch()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows that a query finds. For few: each value is fetched by itself."""
        with self._prepared(sql, values) as statement:
            found = statement.executeQuery()
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getObject(at + 1) for at in range(width)))
            return rows

    def columns(self, table: str) -> dict[str, int]:
        """The columns of a table as the database writes them, with java.sql.Types; none: no table.

        Raises JobFailed for a name that needs quotes.
        """
        meta = self._java.getMetaData()
        schema, _, name = check_name(table).rpartition(".")
        # The case in which a name without quotes is kept.
        fold = str.upper if meta.storesUpperCaseIdentifiers() else str.lower
        place = (fold(schema) or self._java.getSchema(), fold(name))
        found = meta.getColumns(None, *place, "%")
        columns = {}
        while found.next():
            # What was asked for is a pattern, in which an underscore is any character.
            if (found.getString("TABLE_SCHEM"), found.getString("TABLE_NAME")) != place:
                continue
            columns[str(found.getString("COLUMN_NAME"))] = int(found.getInt("DATA_TYPE"))
        return columns

    def create(self, table: str, *statements: str) -> None:
        """Makes a table by statements, all or none, unless it is there: another may make it now."""
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
            self._undo(statement.close)

    def _bind(self, statement: Any, values: Sequence[Any]) -> None:
        for at, value in enumerate(values, 1):
            if isinstance(value, int):  # py4j makes an int or a long of it, whichever it fits
                statement.setLong(at, value)
            else:
                statement.setString(at, value)


def check_name(table: str) -> str:
    """A table's name. Raises JobMisused for one that would need quotes."""
    if not _NAME.fullmatch(table):
        raise JobMisused(
            f"The table {table!r} is not accepted. Accepted: letters, digits and underscores, "
            "with a schema and a dot before it if need be; or a view of such a name."
        )
    return table


@dataclass(frozen=True)
class Refusal:
    """Why a row cannot be written. state: its SQLSTATE."""

    state: str
    text: str

    def __str__(self) -> str:
        return f"SQLSTATE {self.state}: {self.text}"


def refusal(spark: SparkSession, error: BaseException) -> Refusal | None:
    """Why a row is refused for good, where an error says that; None for any other error."""
    gateway = spark.sparkContext._gateway
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    deepest = None
    for _ in range(_MOST_CAUSES):
        if java is None:
            break
        for kind, state in _TELL_STATE:
            if is_instance_of(gateway, java, kind) and getattr(java, state)():
                deepest = Refusal(str(getattr(java, state)()), str(java.getMessage()))
        java = java.getCause()
    return deepest if deepest and is_fault_of_row(deepest.state) else None
