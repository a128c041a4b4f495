"""Kafka records of a batch, with headers that name each message forever."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.targets.named_records import ID, named
from rmq_spark.jobs.targets.target import NUMBER, ExportBatch
from rmq_spark.spark.schemas import HEADERS

_TEXT = (StringType(), BinaryType())
# The columns of a record, with the types that Spark's Kafka sink accepts.
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "key": _TEXT,
    "value": _TEXT,
    "headers": (HEADERS,),
}


def records(batch: ExportBatch, messages: DataFrame, required: Sequence[str] | None) -> DataFrame:
    """Turn messages of a batch into records: topic, partition, key, value, headers and NUMBER.

    Records keep the order of the messages within a partition of Spark. required: the columns that
    --select must make; None without --select: then the value is the content, and the key is that of
    the message, or else its slot. Columns that do not exist are null. Raises InvalidOption for a
    column that no record has, or a missing one.
    """
    rows = batch.shape(messages)
    rows = _from_messages(rows) if required is None else _checked(rows, required)
    rows = named(batch, rows)
    ids = sql.array(*(_header(name) for name in ID))
    headers = sql.coalesce(sql.col("headers"), sql.array().cast(HEADERS))
    rows = rows.withColumn("headers", sql.concat(headers, ids.cast(HEADERS)))
    return rows.select(NUMBER, *_COLUMNS)


def _header(name: str) -> Column:
    value = sql.col(f"`{name}`").cast("binary").alias("value")
    return sql.struct(sql.lit(name).alias("key"), value)


def _from_messages(rows: DataFrame) -> DataFrame:
    """Choose the columns of records from those of the source."""
    key = sql.coalesce(sql.col("key").cast("binary"), sql.col("slot").cast("string").cast("binary"))
    given = {
        "topic": sql.col("topic"),
        "key": key,
        "value": sql.col("content").cast("binary"),
        **({"headers": sql.col("headers")} if "headers" in rows.columns else {}),
    }
    return _completed(rows.select(NUMBER, *(made.alias(name) for name, made in given.items())))


def _checked(rows: DataFrame, required: Sequence[str]) -> DataFrame:
    """Check the columns that --select makes. Raises InvalidOption."""
    accepted = (
        "Accepted: value and key (STRING or BINARY), headers, partition (INT) and topic (STRING), "
        "such as --select 'content AS value, slot::STRING AS key'."
    )
    for field in rows.schema.fields:
        if field.name == NUMBER:
            continue
        types = _COLUMNS.get(field.name)
        found = field.dataType.simpleString()
        if types is None or found not in [one.simpleString() for one in types]:
            raise InvalidOption(
                f"--select makes a column {field.name} of type {found}. No Kafka record has that. "
                f"{accepted}"
            )
    for name in required:
        if name not in rows.columns:
            raise InvalidOption(
                f"--select makes no column {name}. {accepted} topic may be an option instead."
            )
    texts = {name: sql.col(name).cast("binary") for name in ("key", "value")}
    return _completed(rows).withColumns(texts)


def _completed(rows: DataFrame) -> DataFrame:
    """Add the columns of a record that are missing, with nulls."""
    missing = {
        name: sql.lit(None).cast(types[-1])
        for name, types in _COLUMNS.items()
        if name not in rows.columns
    }
    return rows.withColumns(missing)
