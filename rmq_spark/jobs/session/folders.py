"""Folders in any file system that Spark knows."""

from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession


class Folder:
    """A folder, which need not exist, and the subfolders in it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        self._settings: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._system = self._hadoop.Path(path).getFileSystem(self._settings)
        self._folder = path.rstrip("/")

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

    def uri(self) -> str:
        """Return the address of the folder, with its scheme and an absolute path."""
        return str(self._system.makeQualified(self._hadoop.Path(self._folder)).toString())

    def _at(self, name: str) -> Any:
        return self._system.makeQualified(self._hadoop.Path(self.path(name)))
