"""Rows of a run with a name, kept as files until they are sent: a run is read once."""

import re
import uuid
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has none
from pyspark.sql import DataFrame, SparkSession

from rmq_spark.jobs.program import JobMisused

KEPT = "rows"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # Spark passes over . and _ at the start


def check_run(name: str) -> None:
    """Raises JobMisused for a name that cannot be a folder's."""
    if not _RUN.fullmatch(name):
        raise JobMisused(
            f"--run {name!r} is not accepted. Accepted: 1 to 100 letters, digits and . _ - of "
            "which the first is a letter or digit, such as 2026-11-22."
        )


def spooled(
    spark: SparkSession,
    folder: str,
    read: Callable[[], DataFrame],
    check: Callable[[DataFrame], None],
) -> DataFrame:
    """The rows of a run as a stream, from files in its folder, which has nothing else in it.

    The first start reads them, and keeps them if check does not raise. Others do not read again:
    the source may be gone by then.
    """
    place = _Place(spark._jvm, spark.sparkContext._jsc.hadoopConfiguration(), folder)
    if not place.has(KEPT):
        being_written = f"writing-{uuid.uuid4().hex}"
        read().write.parquet(place.path(being_written))
        try:
            check(spark.read.parquet(place.path(being_written)))
            place.move(being_written, KEPT)
        finally:
            place.remove(being_written)
    kept = place.path(KEPT)
    return spark.readStream.schema(spark.read.parquet(kept).schema).parquet(kept)


class _Place:
    """A folder of any file system that Spark knows."""

    def __init__(self, jvm: Any, settings: Any, folder: str) -> None:
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        self._system = self._hadoop.Path(folder).getFileSystem(settings)
        self._settings = settings
        self._folder = folder.rstrip("/")

    def path(self, name: str) -> str:
        """The full path of what is called so in it."""
        return f"{self._folder}/{name}"

    def has(self, name: str) -> bool:
        """Whether it is there."""
        return bool(self._system.exists(self._at(name)))

    def move(self, name: str, to: str) -> None:
        """Moves a folder as a whole; where another has come first, that one stays."""
        # Unlike that of FileSystem, this rename never moves into a folder that is there already.
        files = self._hadoop.FileContext.getFileContext(self._system.getUri(), self._settings)
        none = getattr(self._hadoop, "Options$Rename").values()[:0]
        try:
            files.rename(self._at(name), self._at(to), none)
        except Py4JJavaError:
            if not self.has(to):
                raise

    def remove(self, name: str) -> None:
        """Removes it with all that is in it; nothing where it is not there."""
        self._system.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._system.makeQualified(self._hadoop.Path(self.path(name)))
