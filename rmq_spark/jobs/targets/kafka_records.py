"""Kafka records of a batch, with headers that name each message for ever.

The headers are the same in each replay of the batch: rmq-topic, rmq-slot, rmq-claim (the claimId
without the run, which a replay changes), rmq-position (the index of the message in the claim, from
0) and rmq-row (the index of the record among those of the message, usually 0).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.targets.target import NUMBER, ExportBatch
from rmq_spark.spark.schemas import HEADERS

_ID = ("rmq-topic", "rmq-slot", "rmq-claim", "rmq-position", "rmq-row")
_TEXT = (StringType(), BinaryType())
# The columns of a record, with the types that Spark's Kafka sink accepts.
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "key": _TEXT,
    "value": _TEXT,
    "headers": (HEADERS,),
}


class _Claim(NamedTuple):
    """A claim of a batch. first: the NUMBER of its first message."""

    first: int
    topic: str
    slot: int
    name: str


def records(batch: ExportBatch, messages: DataFrame, required: Sequence[str] | None) -> DataFrame:
    """Turn messages of a batch into records: topic, partition, key, value, headers and NUMBER.

    Records keep the order of the messages within a partition of Spark. required: the columns that
    --select must make; None without --select: then the value is the content, and the key is that of
    the message, or else its slot. Columns that do not exist are null. Raises InvalidOption for a
    column that no record has, or a missing one.
    """
    rows = batch.shape(messages)
    rows = _from_messages(rows) if required is None else _checked(rows, required)
    named = StructType([*rows.schema.fields, *(StructField(name, StringType()) for name in _ID)])
    rows = rows.mapInArrow(_naming(_claims(batch.messages)), named)
    ids = sql.array(*(_header(name) for name in _ID))
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
                f"--select makes the column {field.name} {found}, which no Kafka record has. "
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


def _claims(messages: DataFrame) -> list[_Claim]:
    """Return the claims of a batch, by the number of their first message."""
    name = sql.regexp_replace("claimId", ":[^:]*$", "").alias("name")
    found = messages.groupBy("topic", "slot", name).agg(sql.min(NUMBER).alias("first")).collect()
    return sorted(_Claim(row["first"], row["topic"], row["slot"], row["name"]) for row in found)


def _naming(
    claims: list[_Claim],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that adds the columns of the id to records.

    The messages of a claim have successive numbers, and rows of a task come in their order.
    """
    firsts = np.array([claim.first for claim in claims], np.int64)
    names = [
        pa.array([str(getattr(claim, field)) for claim in claims], pa.string())
        for field in ("topic", "slot", "name")
    ]

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last, rows_of_last = -1, 0
        for batch in batches:
            numbers = batch.column(NUMBER).to_numpy()
            of_claim = np.searchsorted(firsts, numbers, side="right") - 1
            rows = _ranks(numbers)
            # A message may have made several rows, and the batch may begin amid them.
            rows += np.where(numbers == last, rows_of_last, 0)
            if len(numbers):
                last, rows_of_last = numbers[-1], rows[-1] + 1
            taken = [column.take(pa.array(of_claim)) for column in names]
            texts = [_texts(numbers - firsts[of_claim]), _texts(rows)]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *taken, *texts], [*batch.schema.names, *_ID]
            )

    return add


def _ranks(numbers: Any) -> Any:
    """Return the rank of each element among the equal ones next to it, from 0 on."""
    at = np.arange(len(numbers))
    begins = np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
    return at - np.maximum.accumulate(np.where(begins, at, 0))


def _texts(numbers: Any) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(pa.string())
