"""The data source that Spark loads for the format ``rmq``, and its registration."""

import os
from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rmq_spark.errors import InvalidOption
from rmq_spark.spark.compatibility import DataSourceStreamArrowWriter, stream_reader
from rmq_spark.spark.options import parse_sink_options, parse_source_options
from rmq_spark.spark.schemas import (
    SOURCE_SCHEMA,
    TABLE_SCHEMA,
    WHOLE_SOURCE_SCHEMA,
    WHOLE_TABLE_SCHEMA,
    check_schema,
)
from rmq_spark.spark.sink.exactly_once import RmqStagedStreamWriter
from rmq_spark.spark.sink.writer import RmqStreamWriter, RmqWriter
from rmq_spark.spark.source.reader import RmqStreamReader
from rmq_spark.spark.tables import (
    RmqTableReader,
    is_from_catalog,
    is_table,
    parse_table_options,
    stored_options,
    user_options,
    with_stored_options,
)

_NOT_CONSUMED = (
    "spark.read cannot consume messages: a batch read does not report when they are processed. For "
    'a scheduled job, use spark.readStream.format("rmq") with .trigger(availableNow=True). To look '
    'at a queue without consuming, add .option("queue", "store") (or prepare, retry, dead, all).'
)
_OPTIONS_MISSING = (
    "The options topic and queue are missing. Spark passes the options of CREATE TABLE to a SELECT "
    "only if the table was created with a queue and without a list of columns. Accepted: such a "
    "table; SELECT ... FROM t WITH (topic = 'T', queue = 'dead'); CREATE TEMPORARY VIEW ... USING "
    "rmq OPTIONS (...)."
)


class RmqDataSource(DataSource):
    """The format ``rmq``, which reads and writes messages as rows."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = user_options(options)
        self._is_from_catalog = is_from_catalog(options)

    def __repr__(self) -> str:
        return "RmqDataSource()"

    @classmethod
    def name(cls) -> str:
        """Return ``rmq``, the name that a user passes to ``format``."""
        return "rmq"

    def schema(self) -> StructType:
        """Return the columns of the source or, if an option names a queue, of the table.

        For CREATE TABLE, the columns also carry its options. Raises InvalidOption for an option
        that is not accepted, and for a password in CREATE TABLE.
        """
        if is_table(self.options):
            parse_table_options(self.options)
            if self._is_from_catalog:
                return with_stored_options(TABLE_SCHEMA, self.options)
            return TABLE_SCHEMA
        if parse_source_options(self.options).include_headers:
            return StructType([*SOURCE_SCHEMA.fields, WHOLE_SOURCE_SCHEMA["headers"]])
        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of ``spark.read``, which shows queues and consumes nothing.

        Options of the query override those of CREATE TABLE, which are in the schema. Raises
        InvalidOption for an option or a column that is not accepted, and if no queue is named.
        """
        given = stored_options(schema) | {name.lower(): v for name, v in self.options.items()}
        if not is_table(given):
            raise InvalidOption(_NOT_CONSUMED if given else _OPTIONS_MISSING)
        options = parse_table_options(given)
        return RmqTableReader(options, check_schema(schema, WHOLE_TABLE_SCHEMA, "the table"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader of ``spark.readStream``, which consumes messages.

        Raises InvalidOption for an option or a column that is not accepted.
        """
        options = parse_source_options(self.options)
        columns = check_schema(schema, WHOLE_SOURCE_SCHEMA, "the rmq source")
        return stream_reader(RmqStreamReader(options, columns))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer of ``df.write``.

        Raises InvalidOption for an option or a mode that is not accepted, and InvalidMessage for a
        column that is not accepted. Raises TopicError if the topic is missing or has another type
        or number of slots, and ServerError if Redis cannot be used.
        """
        _refuse_overwrite(overwrite, 'mode("append")')
        options = parse_sink_options(self.options)
        if options.exactly_once:
            raise InvalidOption(
                "deliveryGuarantee=exactlyOnce is not accepted by df.write: a repeated write "
                "cannot be distinguished from a new one. Accepted: atLeastOnce; or send with "
                'df.writeStream.format("rmq"), whose batches are numbered.'
            )
        return RmqWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Create the writer of ``df.writeStream``. Raises the same errors as ``writer``.

        Unlike ``df.write``, it accepts deliveryGuarantee=exactlyOnce.
        """
        _refuse_overwrite(overwrite, 'outputMode("append")')
        options = parse_sink_options(self.options)
        return (RmqStagedStreamWriter if options.exactly_once else RmqStreamWriter)(options, schema)


def _refuse_overwrite(overwrite: bool, remedy: str) -> None:
    if overwrite:
        raise InvalidOption(f"A queue cannot be overwritten. Accepted: {remedy}.")


def register(spark: SparkSession | None = None) -> None:
    """Register the format ``rmq`` with a session, by default the active one.

    You need this only if rmq_spark is not installed but distributed as a zip with --py-files.
    """
    session = spark or SparkSession.active()
    _add_archive_to_import_path(session)
    try:
        session.dataSource.register(RmqDataSource)
    except AnalysisException as error:  # only of Spark 4.0 and 4.1, which have found it themselves
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _add_archive_to_import_path(session: SparkSession) -> None:
    """Let the process of a streaming reader import rmq_spark from the zip of --py-files.

    Spark adds the zip to the import path of tasks, but not to that of the reader's process on the
    driver (seen with Spark 4.3: "No module named 'rmq_spark.spark'"). That process inherits the
    environment of the SparkContext, so this function adds the zip to PYTHONPATH there.
    """
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is not None:
        environment = session.sparkContext.environment
        paths = [archive, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
