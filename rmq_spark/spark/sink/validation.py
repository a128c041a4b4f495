"""Which rows a write would refuse, without writing any."""

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
    """The rows with one more column, REASON: why the sink refuses each, null where it takes it.

    columns: those that would be written. Raises as a write does for what
    is no single row's fault: InvalidOption, InvalidMessage, TopicError, ServerError.
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
    """Of each row why it is refused, or None. Halves what is refused, down to single rows."""
    try:
        for _ in work.checked(iter([batch])):
            pass
    except (InvalidMessage, TopicError) as error:
        if batch.num_rows == 1:
            return [str(error).removesuffix(NOTHING_SENT)]
        half = batch.num_rows // 2
        return _reasons(work, batch.slice(0, half)) + _reasons(work, batch.slice(half))
    return [None] * batch.num_rows
