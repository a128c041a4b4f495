"""The data source ``rmq``: what Spark finds under that name."""

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rmq_spark.errors import InvalidOption
from rmq_spark.spark.options import parse_sink_options, parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA, TABLE_SCHEMA, check_schema
from rmq_spark.spark.sink.exactly_once_writer import RmqStagedStreamWriter
from rmq_spark.spark.sink.writers import RmqStreamWriter, RmqWriter
from rmq_spark.spark.source.stream_reader import RmqStreamReader
from rmq_spark.spark.table.catalog import is_of_catalog, own_options, remembered, remembering
from rmq_spark.spark.table.selection import is_table, parse_table_options
from rmq_spark.spark.table.table_reader import RmqTableReader

_NOT_CONSUMED = (
    "spark.read cannot consume messages: nothing would tell when they are done. Use "
    'spark.readStream.format("rmq") with .trigger(availableNow=True) for a scheduled job; or look '
    'at a queue, without consuming, with .option("queue", "store") (prepare, retry, dead, all).'
)
_NOT_REMEMBERED = (
    "The options topic and queue are missing. Spark gives those of CREATE TABLE to a SELECT only "
    "where the table was made with a queue and without a list of columns. Accepted: such a table; "
    "SELECT ... FROM t WITH (topic = 'T', queue = 'dead'); CREATE TEMPORARY VIEW ... USING rmq "
    "OPTIONS (...)."
)


class RmqDataSource(DataSource):
    """Messages as rows: ``format("rmq")``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = own_options(options)
        self._is_of_catalog = is_of_catalog(options)

    def __repr__(self) -> str:
        return "RmqDataSource()"

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rmq"

    def schema(self) -> StructType:
        """The columns of the source, or of the table. Raises InvalidOption."""
        if is_table(self.options):
            parse_table_options(self.options)
            if self._is_of_catalog:
                return remembering(TABLE_SCHEMA, self.options)
            return TABLE_SCHEMA
        parse_source_options(self.options)
        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Queues as a table. Raises InvalidOption.

        Messages are not consumed by it: nothing would tell when they are processed.
        """
        given = remembered(schema) | {name.lower(): v for name, v in self.options.items()}
        if not is_table(given):
            raise InvalidOption(_NOT_CONSUMED if given else _NOT_REMEMBERED)
        options = parse_table_options(given)
        return RmqTableReader(options, check_schema(schema, TABLE_SCHEMA, "the table"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The consuming side. Raises InvalidOption."""
        options = parse_source_options(self.options)
        return RmqStreamReader(options, check_schema(schema, SOURCE_SCHEMA, "the rmq source"))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The sending side of ``df.write``. Raises InvalidOption, InvalidMessage, ServerError."""
        _refuse_overwrite(overwrite, 'mode("append")')
        options = parse_sink_options(self.options)
        if options.exactly_once:
            raise InvalidOption(
                "deliveryGuarantee=exactlyOnce is not accepted by df.write: nothing would tell a "
                "repeated write from a new one. Accepted: atLeastOnce; or send with "
                'df.writeStream.format("rmq"), whose batches have numbers.'
            )
        return RmqWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sending side of ``df.writeStream``. Raises as writer does."""
        _refuse_overwrite(overwrite, 'outputMode("append")')
        options = parse_sink_options(self.options)
        return (RmqStagedStreamWriter if options.exactly_once else RmqStreamWriter)(options, schema)


def _refuse_overwrite(overwrite: bool, remedy: str) -> None:
    if overwrite:
        raise InvalidOption(f"A queue cannot be overwritten. Accepted: {remedy}.")


def register(spark: SparkSession | None = None) -> None:
    """Makes the format known to a session (the active one if None).

    Needed only where rmq_spark is not installed but came as a zip with --py-files.
    """
    session = spark or SparkSession.active()
    _lead_readers_to_archive(session)
    session.dataSource.register(RmqDataSource)


def _lead_readers_to_archive(session: SparkSession) -> None:
    """Lets the process of a streaming reader import us from the zip that --py-files brought.

    Tasks are led there by Spark. The reader's process on the driver is not (seen with Spark 4.3: it
    fails with "No module named 'rmq_spark.spark'"), but it gets the context's environment.
    """
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is not None:
        environment = session.sparkContext.environment
        paths = [archive, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
