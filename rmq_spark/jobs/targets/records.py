"""Records that an export makes of messages, for Kafka and RocketMQ: their columns and their names.

The names are columns that are the same in each replay of the batch: rmq-topic, rmq-slot, rmq-claim
(the claimId without the run, which a replay changes), rmq-position (the index of the message in the
claim, from 0) and rmq-row (the index of the record among those of the message, usually 0).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.targets.base import NUMBER, ExportBatch

ID = ("rmq-topic", "rmq-slot", "rmq-claim", "rmq-position", "rmq-row")
TEXT = (StringType(), BinaryType())

# The columns of a record, with the types that --select may make. A record has the last of them.
Columns = Mapping[str, tuple[DataType, ...]]


def check_columns(
    rows: DataFrame, columns: Columns, required: Sequence[str], no_record: str, accepted: str
) -> None:
    """Check the columns that --select makes. Raises InvalidOption.

    no_record, accepted: such as "No Kafka record", and what --select may make, for the error.
    """
    for field in rows.schema.fields:
        found = field.dataType.simpleString()
        types = [one.simpleString() for one in columns.get(field.name, ())]
        if field.name != NUMBER and found not in types:
            raise InvalidOption(
                f"--select makes a column {field.name} of type {found}. {no_record} has that. "
                f"Accepted: {accepted}"
            )
    for name in required:
        if name not in rows.columns:
            raise InvalidOption(f"--select makes no column {name}. Accepted: {accepted}")


def records(batch: ExportBatch, rows: DataFrame, columns: Columns) -> DataFrame:
    """Return NUMBER, the columns of records, and the columns ID, of STRING.

    Columns that rows lack are null. rows: of messages of the batch, with NUMBER. They keep the
    order of the messages within a partition of Spark.
    """
    made = [
        (sql.col(name) if name in rows.columns else sql.lit(None)).cast(types[-1]).alias(name)
        for name, types in columns.items()
    ]
    rows = rows.select(NUMBER, *made)
    schema = StructType([*rows.schema.fields, *(StructField(name, StringType()) for name in ID)])
    return rows.mapInArrow(_naming(_claims(batch.messages)), schema)


class _Claim(NamedTuple):
    """A claim of a batch. first: the NUMBER of its first message."""

    first: int
    topic: str
    slot: int
    name: str


def _claims(messages: DataFrame) -> list[_Claim]:
    name = sql.regexp_replace("claimId", ":[^:]*$", "").alias("name")
    found = messages.groupBy("topic", "slot", name).agg(sql.min(NUMBER).alias("first")).collect()
    return sorted(_Claim(row["first"], row["topic"], row["slot"], row["name"]) for row in found)


def _naming(claims: list[_Claim]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
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
                [*batch.columns, *taken, *texts], [*batch.schema.names, *ID]
            )

    return add


def _ranks(numbers: Any) -> Any:
    """Return the rank of each element among the equal ones next to it, from 0 on."""
    at = np.arange(len(numbers))
    begins = np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
    return at - np.maximum.accumulate(np.where(begins, at, 0))


def _texts(numbers: Any) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(pa.string())
