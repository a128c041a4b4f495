"""What jobs need of Spark: a session, a query until it ends, connectors, folders."""

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j has no types
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark.jobs.program import DELTA, ICEBERG, KAFKA, Ending, JobFailed
from rmq_spark.spark.datasource import register

_LOOK_S = 0.2  # how often the main thread checks whether a signal has come
# Spark wraps a task's exception in others. Look at no more causes than this.
_MOST_CAUSES = 30
# By format, a class of its connector, the Maven coordinates of a release, and the last version of
# Spark for which there is one. {scala}: the version of Scala that Spark is built with; {minor}: the
# version of Spark, or the last one.
_CONNECTORS = {
    KAFKA: (
        "org.apache.spark.sql.kafka010.KafkaSourceProvider",
        "org.apache.spark:spark-sql-kafka-0-10_{scala}:{minor}.0",
        "4.2",
    ),
    DELTA: (
        "org.apache.spark.sql.delta.sources.DeltaDataSource",
        "io.delta:delta-spark_{minor}_{scala}:4.4.0",
        "4.2",
    ),
    ICEBERG: (
        "org.apache.iceberg.spark.SparkCatalog",
        "org.apache.iceberg:iceberg-spark-runtime-{minor}_{scala}:1.11.0",
        "4.1",
    ),
}
# The names of jars that run in one version of Spark only.
_BUILT_FOR = re.compile(r"(?:delta-spark_|iceberg-spark-runtime-)(\d+\.\d+)_[^/]*")
# Settings without which a connector that is loaded does not work.
DELTA_SETTINGS = (
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)


@contextmanager
def new_session(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Open the session that spark-submit prepared, or one on all cores of this machine.

    Sets no master, because that would override the master given to spark-submit.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark logs errors here that it then raises, and that the job prints. It needs them to be of
    # its own class.
    for log in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(log).setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(f"rmq {name}")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        if not _is_found_by_spark():
            register(spark)
        yield spark
    finally:
        spark.stop()


def _is_found_by_spark() -> bool:
    """Check whether Spark finds the format rmq by itself.

    It does not if the package is in a zip, or if the path of Python contains a blank.
    """
    found = importlib.util.find_spec("pyspark_rmq")
    installed = found is not None and Path(found.origin or "").is_file()
    return installed and " " not in sys.executable


def run_query(query: StreamingQuery) -> None:
    """Wait until a query ends or a signal asks the job to end; then stop the query."""
    with Ending() as ending:
        try:
            while not (ending.is_asked or has_ended(query)):
                pass
        finally:
            query.stop()


def has_ended(query: StreamingQuery) -> bool:
    """Wait a moment, and check whether a query has ended. Raises the error that ended it."""
    seconds: Any = _LOOK_S  # declared as int, but fractions are accepted
    return bool(query.awaitTermination(seconds))


def shaped(
    rows: DataFrame, view: str, select: str | None, where: str | None, number: str | None = None
) -> DataFrame:
    """Apply --where and --select to rows, which SQL knows as ``view``.

    number: a column to keep, whatever --select chooses.
    """
    rows.createOrReplaceTempView(view)
    # Renamed in between: --select may choose all columns, and would then contain it twice.
    kept = f"{number} AS {number}_kept, " if number else ""
    found = rows.sparkSession.sql(f"SELECT {kept}{select or '*'} FROM {view} WHERE {where or True}")
    return found.drop(number).withColumnRenamed(f"{number}_kept", number) if number else found


def java_causes(error: BaseException) -> list[Any]:
    """Return the Java exception of an error and its causes, the deepest last."""
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    found: list[Any] = []
    while java is not None and len(found) < _MOST_CAUSES:
        found.append(java)
        java = java.getCause()
    return found


def conditions_of(spark: SparkSession, error: BaseException) -> set[str]:
    """Return the error conditions of Spark that an error and its causes have."""
    gateway = spark.sparkContext._gateway
    return {
        str(java.getCondition())
        for java in java_causes(error)
        if is_instance_of(gateway, java, "org.apache.spark.SparkThrowable")
    }


def check_connector(spark: SparkSession, form: str) -> None:
    """Raise JobFailed if Spark does not find the connector of a format. Others pass.

    Refuses a connector of Delta Lake or Iceberg for another version of Spark, too: it may write one
    batch, and fail at the next one.
    """
    if form not in _CONNECTORS:
        return
    name, package, last = _CONNECTORS[form]
    jvm: Any = spark._jvm
    try:
        found = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError as error:
        minor = min(".".join(spark.version.split(".")[:2]), last, key=_numbers)
        scala = ".".join(jvm.scala.util.Properties.versionNumberString().split(".")[:2])
        found = package.format(scala=scala, minor=minor)
        settings = f" {DELTA_SETTINGS}" if form == DELTA else ""
        raise JobFailed(
            f"Spark {spark.version} does not find the connector of the format {form}. Load it with "
            f"--conf spark.jars.packages={found}{settings} (or a later release, up to that of your "
            f"Spark), or name its jars with --conf spark.jars=...{_or_without(form)}"
        ) from error
    jar = str(found.getProtectionDomain().getCodeSource().getLocation())
    built = _BUILT_FOR.search(jar)
    if built and not spark.version.startswith(f"{built[1]}."):
        raise JobFailed(
            f"The connector {built[0]} is built for Spark {built[1]}, but this is Spark "
            f"{spark.version}. Run the job with Spark {built[1]} (pip install "
            f"'pyspark=={built[1]}.*'), or load a connector that is built for this Spark."
            f"{_or_without(form)}"
        )


def _or_without(form: str) -> str:
    if form != ICEBERG:
        return ""
    return (
        " If there is none for your Spark, write with PyIceberg: remove the setting "
        "spark.sql.catalog.* of the catalog, and describe it with --target-option (--source-option "
        "for send)."
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


class Folder:
    """A folder in any file system that Spark knows. It need not exist."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        self._settings: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._system = self._hadoop.Path(path).getFileSystem(self._settings)
        self._folder = path.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def has(self, name: str) -> bool:
        return bool(self._system.exists(self._at(name)))

    def files(self, name: str) -> list[str]:
        """Return the names of what is in a subfolder; nothing if it does not exist."""
        if not self.has(name):
            return []
        return [str(file.getPath().getName()) for file in self._system.listStatus(self._at(name))]

    def move(self, name: str, to: str) -> None:
        """Rename a subfolder in one step. If another job was first, its subfolder stays."""
        # Unlike FileSystem.rename, this never moves a folder into an existing one.
        files = self._hadoop.FileContext.getFileContext(self._system.getUri(), self._settings)
        none = getattr(self._hadoop, "Options$Rename").values()[:0]
        try:
            files.rename(self._at(name), self._at(to), none)
        except Py4JJavaError:
            if not self.has(to):
                raise

    def remove(self, name: str) -> None:
        self._system.delete(self._at(name), True)

    def uri(self) -> str:
        return str(self._system.makeQualified(self._hadoop.Path(self._folder)).toString())

    def _at(self, name: str) -> Any:
        return self._system.makeQualified(self._hadoop.Path(self.path(name)))
