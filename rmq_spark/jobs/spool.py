"""The rows of a named run, kept as files so that the source is read only once."""

import re
import uuid
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import DataFrame, SparkSession

from rmq_spark.errors import InvalidOption

KEPT = "rows"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # Spark skips files that begin with . or _


def check_run(name: str) -> None:
    """Raise InvalidOption for a run whose name cannot be the name of a folder."""
    if not _RUN.fullmatch(name):
        raise InvalidOption(
            f"--run {name!r} is not accepted. Accepted: 1 to 100 letters, digits and . _ - of "
            "which the first is a letter or digit, such as 2026-11-22."
        )


def spooled(
    spark: SparkSession,
    folder: str,
    read: Callable[[], DataFrame],
    check: Callable[[DataFrame], None],
) -> DataFrame:
    """Return the rows of a run, as a stream of the files in its folder.

    The first start reads the source, and keeps the rows if check raises nothing. Later starts do
    not read the source, which may be gone.
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
    """A folder in any file system that Spark knows."""

    def __init__(self, jvm: Any, settings: Any, folder: str) -> None:
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        self._system = self._hadoop.Path(folder).getFileSystem(settings)
        self._settings = settings
        self._folder = folder.rstrip("/")

    def path(self, name: str) -> str:
        """Return the full path of a name in the folder."""
        return f"{self._folder}/{name}"

    def has(self, name: str) -> bool:
        """Check whether a name exists in the folder."""
        return bool(self._system.exists(self._at(name)))

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
        """Remove a subfolder with its contents, if it exists."""
        self._system.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._system.makeQualified(self._hadoop.Path(self.path(name)))
