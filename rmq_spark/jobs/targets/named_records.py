"""Columns that name each record of a batch forever.

They are the same in each replay of the batch: rmq-topic, rmq-slot, rmq-claim (the claimId without
the run, which a replay changes), rmq-position (the index of the message in the claim, from 0) and
rmq-row (the index of the record among those of the message, usually 0).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from rmq_spark.jobs.targets.target import NUMBER, ExportBatch

ID = ("rmq-topic", "rmq-slot", "rmq-claim", "rmq-position", "rmq-row")


class _Claim(NamedTuple):
    """A claim of a batch. first: the NUMBER of its first message."""

    first: int
    topic: str
    slot: int
    name: str


def named(batch: ExportBatch, rows: DataFrame) -> DataFrame:
    """Add the columns ID, of STRING, to rows that come from messages of a batch.

    The rows have NUMBER, and keep the order of the messages within a partition of Spark.
    """
    schema = StructType([*rows.schema.fields, *(StructField(name, StringType()) for name in ID)])
    return rows.mapInArrow(_naming(_claims(batch.messages)), schema)


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
