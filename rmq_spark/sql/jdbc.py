"""A database that Spark reaches through JDBC: its options and its connections."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

from rmq_spark.errors import InvalidOption, RmqError
from rmq_spark.sql import dialect_of
from rmq_spark.sql.database import Connection, Dialect, check_name

# java.sql.Connection.TRANSACTION_READ_COMMITTED: every statement sees what is committed when it
# begins. MariaDB would show the state at the first query of the transaction.
_READ_COMMITTED = 2


class JdbcFailed(RmqError):
    """The error for a database that cannot be reached, or has ended a transaction."""


def jdbc_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for Spark, with the driver, user and password added if they lack them.

    User and password come from RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, because the list of processes
    does not show the environment.
    """
    if re.search(r"[^:]@|password *=", _shown(options["url"]), re.IGNORECASE):
        raise InvalidOption(
            "A user or password in the url is not accepted, because errors show the url. Set "
            "RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, or the options user and password."
        )
    given = {name.lower() for name in options}
    found = {
        "user": os.environ.get("RMQ_JDBC_USER"),
        "password": os.environ.get("RMQ_JDBC_PASSWORD"),
    }
    return {
        **dialect_of(options["url"]).spark_options(options),
        **{name: value for name, value in found.items() if value and name not in given},
    }


class JdbcDatabase:
    """The database that the options of Spark's format jdbc name.

    options: url, user, password, driver and so on. Errors show only the part of the url before any
    ``?`` or ``;``.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self.options = {name: value for name, value in options.items() if name != "dbtable"}
        self.dialect = dialect_of(options["url"])
        self.address = _shown(self.dialect.given_url(options["url"]))
        jvm: Any = spark._jvm
        self._jvm = jvm
        # The dialect that Spark chooses by the url.
        self._of_spark = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])

    def connect(self) -> "JdbcConnection":
        """Open a new connection, which commits every statement.

        Raises JdbcFailed if there is no driver, and Py4JJavaError if the database refuses the
        connection.
        """
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc
        # Spark demands the name of a table, but does not use it here.
        given = self._jvm.PythonUtils.toScalaMap({**self.options, "dbtable": "rmq"})
        try:
            factory = self._of_spark.createConnectionFactory(jdbc.JDBCOptions(given))
        except Py4JJavaError as error:
            raise JdbcFailed(
                f"There is no JDBC driver for {self.address} "
                f"({error.java_exception.getMessage()}). {self._remedy()}"
            ) from error
        text_type = self.dialect.text_type or self.type_of("string")
        return JdbcConnection(factory.apply(-1), self.dialect, text_type)

    def _remedy(self) -> str:
        packages = self.dialect.packages
        driver = self.options.get("driver", "")
        package = packages.get(driver) or next(iter(packages.values()), None)
        jar = "--conf spark.jars=/path/to/driver.jar"
        if package:
            return f"Load it with --conf spark.jars.packages={package}, or name its jar with {jar}."
        return (
            f"Name its jar, such as {jar}. If that is not enough, name the class of the driver "
            "with the option driver."
        )

    def type_of(self, spark_type: str) -> str:
        """Return the type of a column that stores all values of a type of Spark."""
        own = self.dialect.own_types.get(spark_type)
        if own:
            return own
        kind = self._jvm.org.apache.spark.sql.types.DataType.fromDDL(spark_type)
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        return str(jdbc.getJdbcType(kind, self._of_spark).databaseTypeDefinition())


def _shown(url: str) -> str:
    return re.split(r"[?;]", url)[0]


class JdbcConnection(Connection):
    """A connection of JDBC. Outside of ``transaction``, each statement is one.

    java: a java.sql.Connection.
    """

    def __init__(self, java: Any, dialect: Dialect, text_type: str) -> None:
        self._java = java
        self.dialect = dialect
        self.text_type = text_type
        java.setTransactionIsolation(_READ_COMMITTED)

    def close(self) -> None:
        self._java.close()

    def quoted(self, name: str) -> str:
        mark = str(self._java.getMetaData().getIdentifierQuoteString())
        return f"{mark}{name.replace(mark, mark + mark)}{mark}"

    @contextmanager
    def transaction(self) -> Iterator[None]:
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
        """Set a savepoint within a transaction; after an error, roll back to it.

        Raises JdbcFailed if the savepoint is gone: MariaDB ends the transaction after a deadlock.
        """
        point = self._java.setSavepoint()
        try:
            yield
        except BaseException as error:
            try:
                self._clean_up(lambda: self._java.rollback(point))
            except Py4JJavaError:
                java = getattr(error, "java_exception", None)
                text = java.getMessage() if java else error
                raise JdbcFailed(f"The database ended the transaction: {text}") from error
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

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        with self._prepared(statement) as prepared:
            _bind(prepared, values)
            return int(prepared.executeUpdate())

    def run_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._prepared(statement) as prepared:
            for row in rows:
                _bind(prepared, row)
                prepared.addBatch()
            if rows:
                prepared.executeBatch()

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds. Only few: each value is a call to Java."""
        with self._prepared(statement) as prepared:
            _bind(prepared, values)
            found = prepared.executeQuery()
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getObject(at + 1) for at in range(width)))
            return rows

    @contextmanager
    def _prepared(self, statement: str) -> Iterator[Any]:
        prepared = self._java.prepareStatement(statement.replace("%s", "?"))
        try:
            yield prepared
        finally:
            self._clean_up(prepared.close)

    def columns(self, table: str) -> dict[str, str]:
        """Return columns and their types, spelled as in the database; empty without a table."""
        meta = self._java.getMetaData()
        schema, _, name = check_name(table).rpartition(".")
        # Use the case in which the database stores a name without quotes.
        fold: Callable[[str], str] = str
        if meta.storesUpperCaseIdentifiers():
            fold = str.upper
        elif meta.storesLowerCaseIdentifiers():
            fold = str.lower
        if self.dialect.tables_are_in_catalogs:
            kind, within = "TABLE_CAT", fold(schema) or self._java.getCatalog()
            found = meta.getColumns(within, None, fold(name), "%")
        else:
            kind, within = "TABLE_SCHEM", fold(schema) or self._java.getSchema()
            found = meta.getColumns(None, within, fold(name), "%")
        columns = {}
        while found.next():
            # getColumns takes a pattern, in which an underscore matches any character.
            if (found.getString(kind), found.getString("TABLE_NAME")) == (within, fold(name)):
                columns[str(found.getString("COLUMN_NAME"))] = str(found.getString("TYPE_NAME"))
        return columns


def _bind(prepared: Any, values: Sequence[Any]) -> None:
    for at, value in enumerate(values, 1):
        if isinstance(value, int):  # py4j passes an int or a long, whichever fits
            prepared.setLong(at, value)
        else:
            prepared.setString(at, value)
