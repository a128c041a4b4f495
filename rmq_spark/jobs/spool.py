"""The rows of a named run, kept as files so that the source is read only once."""

import re
import uuid
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.session.folders import Folder

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
    place = Folder(spark, folder)
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
