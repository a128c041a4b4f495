"""A dry run of a write, which finds the rows that the sink would refuse and writes nothing."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from rmq_spark.errors import InvalidMessage, TopicError
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.columns import NOTHING_SENT
from rmq_spark.spark.sink.writers import SinkWork

REASON = "rmq_reason"


def with_refusals(rows: DataFrame, columns: list[str], options: SinkOptions) -> DataFrame:
    """Add the column REASON to rows: why the sink refuses a row, or null if it accepts it.

    columns: the columns to write. Raises InvalidOption, InvalidMessage, TopicError and ServerError
    like a write, but only for errors that no single row causes.
    """
    sent = rows.select(columns).schema
    work = SinkWork(options, sent)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            reasons = _reasons(work, batch.select(sent.names))
            yield batch.append_column(REASON, pa.array(reasons, pa.string()))

    schema = StructType([*rows.schema.fields, StructField(REASON, StringType())])
    return rows.mapInArrow(check, schema)


def _reasons(work: SinkWork, batch: pa.RecordBatch) -> list[str | None]:
    """Return the reason why the sink refuses each row, or None for a row that it accepts.

    The sink refuses a batch as a whole. This function halves a refused batch until single rows
    remain.
    """
    try:
        for _ in work.checked(iter([batch])):
            pass
    except (InvalidMessage, TopicError) as error:
        if batch.num_rows == 1:
            return [str(error).removesuffix(NOTHING_SENT)]
        half = batch.num_rows // 2
        return _reasons(work, batch.slice(0, half)) + _reasons(work, batch.slice(half))
    return [None] * batch.num_rows
