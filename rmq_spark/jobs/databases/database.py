"""A database that Spark reaches through JDBC: its options, connections and errors."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j has no types
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.databases.dialect import Dialect
from rmq_spark.jobs.databases.jdbc_connection import Connection
from rmq_spark.jobs.databases.known_dialects import dialect_of
from rmq_spark.jobs.program import JobFailed

# Spark wraps a task's exception in others. Look at no more causes than this.
_MOST_CAUSES = 30
_SQL_EXCEPTION = "java.sql.SQLException"
_RAISED_IN_SPARK = "P0001"  # the function raise_error
_STATE_METHODS = (
    (_SQL_EXCEPTION, "getSQLState"),
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
        self.dialect = dialect_of(options["url"])(self._type_of)

    def __repr__(self) -> str:
        return f"Database({self.address})"

    @property
    def address(self) -> str:
        """The url without the part that may hold secrets."""
        return _shown(self.dialect.given_url(self.options["url"]))

    @property
    def _java_dialect(self) -> Any:
        """The dialect that Spark chooses by the url."""
        return self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.options["url"])

    def connect(self) -> Connection:
        """Open a new connection, which commits every statement.

        Raises JobFailed if there is no driver, and Py4JJavaError if the database refuses the
        connection.
        """
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc
        # Spark demands the name of a table, but does not use it here.
        given = self._jvm.PythonUtils.toScalaMap({**self.options, "dbtable": "rmq"})
        try:
            options = jdbc.JDBCOptions(given)
            factory = self._java_dialect.createConnectionFactory(options)
        except Py4JJavaError as error:
            raise JobFailed(
                f"There is no JDBC driver for {self.address} "
                f"({error.java_exception.getMessage()}). {self._remedy()}"
            ) from error
        return Connection(factory.apply(-1), self.dialect, self.address)

    def _remedy(self) -> str:
        """Return what to do without a driver."""
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

    def _type_of(self, spark_type: str) -> str:
        """Return the type that Spark gives a column."""
        kind = self._jvm.org.apache.spark.sql.types.DataType.fromDDL(spark_type)
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        return str(jdbc.getJdbcType(kind, self._java_dialect).databaseTypeDefinition())


def _shown(url: str) -> str:
    """Return the part of a url that holds no secrets."""
    return re.split(r"[?;]", url)[0]


def jdbc_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for Spark, with the driver, user and password added if they lack them.

    User and password come from RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, because the list of processes
    does not show the environment. Raises InvalidOption if the url contains a user or a password.
    """
    if re.search(r"[^:]@|password *=", _shown(options["url"]), re.IGNORECASE):
        raise InvalidOption(
            "A user or password in the url is not accepted, because errors show the url. Set "
            "RMQ_JDBC_USER and RMQ_JDBC_PASSWORD, or the options user and password."
        )
    dialect = dialect_of(options["url"])
    if not dialect.has_users():
        return dialect.spark_options(options)
    given = {name.lower() for name in options}
    found = {
        "user": os.environ.get("RMQ_JDBC_USER"),
        "password": os.environ.get("RMQ_JDBC_PASSWORD"),
    }
    return {
        **dialect.spark_options(options),
        **{name: v for name, v in found.items() if v and name not in given},
    }


@dataclass(frozen=True)
class Refusal:
    """The reason why a row can never be written. state: the SQLSTATE."""

    state: str
    text: str

    def __str__(self) -> str:
        return f"SQLSTATE {self.state}: {self.text}"


def refusal(
    spark: SparkSession, error: BaseException, dialect: type[Dialect] | Dialect = Dialect
) -> Refusal | None:
    """Return the reason if an error means that a row can never be written, or else None.

    dialect: that of the database which raised the error.
    """
    gateway = spark.sparkContext._gateway
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    deepest, is_fault = None, False
    for _ in range(_MOST_CAUSES):
        if java is None:
            break
        for kind, state in _STATE_METHODS:
            if is_instance_of(gateway, java, kind) and getattr(java, state)():
                deepest = Refusal(str(getattr(java, state)()), str(java.getMessage()))
                if kind == _SQL_EXCEPTION:
                    is_fault = dialect.is_fault_of_row(deepest.state, java.getErrorCode())
                else:
                    is_fault = _is_fault_of_row_in_spark(deepest.state)
        java = java.getCause()
    return deepest if is_fault else None


def _is_fault_of_row_in_spark(state: str) -> bool:
    """Check whether a transformation by Spark always fails for a row."""
    return state == _RAISED_IN_SPARK or Dialect.is_fault_of_row(state)
