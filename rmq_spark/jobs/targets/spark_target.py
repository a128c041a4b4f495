"""The targets that Spark writes by the name of a format: files, and any other format."""

from pyspark.sql import DataFrame

from rmq_spark.jobs.formats import FILES
from rmq_spark.jobs.targets.accepted_rows import BATCH, discard, write_accepted
from rmq_spark.jobs.targets.target import ExportBatch


class SparkTarget:
    """A format that Spark writes by name. In files, a replayed batch replaces itself.

    Only the transformation refuses messages here, never the format. exceptions: a folder of Parquet
    files.
    """

    def __init__(self, form: str, options: dict[str, str], exceptions: str) -> None:
        self._form = form
        self._options = options
        self._exceptions = exceptions

    def write(self, batch: ExportBatch) -> int:
        """Write a batch, into its own subfolder if the format is files. See Target.write."""
        options, mode = dict(self._options), "append"
        if self._form in FILES:
            options["path"] += f"/{BATCH}={batch.name}"
            mode = "overwrite"

        def write(rows: DataFrame) -> None:
            rows.write.format(self._form).options(**options).mode(mode).save()

        return write_accepted(batch, write, lambda: discard, self._exceptions)

    def close(self) -> None:
        """Do nothing: there are no tables to remove."""
