"""A Spark source without any I/O: its rows are due at a steady rate, and there when they are.

What a query over it takes is what Spark itself takes with a source in Python: the floor under the
latency of any such source.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

SCHEMA = StructType([StructField("content", StringType()), StructField("dueTime", TimestampType())])


class Due(InputPartition):
    """The rows that are due between two points of time, us."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class ClockReader(DataSourceStreamReader):
    """One row every ``1 / rate`` seconds."""

    def __init__(self, rate: int) -> None:
        self._every_us = 1_000_000 // rate

    def initialOffset(self) -> dict[str, Any]:
        """Now."""
        return self.latestOffset()

    def latestOffset(self) -> dict[str, Any]:
        """The last row that is due, in us."""
        now = int(time.time() * 1_000_000)
        return {"us": now - now % self._every_us}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task."""
        return [Due(start["us"], end["us"])] if end["us"] > start["us"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Contents of 34 bytes with the times at which they were due."""
        assert isinstance(partition, Due)  # noqa: S101 - Spark hands back our own
        every = self._every_us
        due = np.arange(partition.start + every, partition.end + every, every)
        contents = pa.array([f'{{"order": {number % 10**10:010d}, "x": "xxxx"}}' for number in due])
        yield pa.RecordBatch.from_arrays(
            [contents, pa.array(due).cast(pa.timestamp("us", "UTC"))], ["content", "dueTime"]
        )


class ClockSource(DataSource):
    """``format("clock")``; the option rate gives rows a second."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "clock"

    def schema(self) -> StructType:
        """content and dueTime, as the rmq source has them."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The clock."""
        return ClockReader(int(self.options["rate"]))
