"""What differs between the versions of Spark; no other module asks for it.

It is found out by feature, not by version, because some platforms carry features of later versions.
Spark 4.0 and 4.1 differ from later ones in this:

- A source is not told from where to plan, nor how much. EarlierStreamReader calls it as Spark 4.2
  does.
- Progress reports do not show the backlog: nothing calls ``reportLatestOffset``.
- Only in 4.0: there is no writer of Arrow batches for streams. Spark gives such batches to every
  writer that is also one for ``df.write``.
"""

import inspect
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rmq_spark.errors import CheckpointRefused

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class ReadLimit:  # type: ignore[no-redef]
        """How much to read into a batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Everything that is there."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many messages."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Marks a source that knows about the trigger."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(  # type: ignore[misc, no-redef]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """A writer of a stream that Spark 4.0 gives Arrow batches."""


__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "TELLS_START",
    "arrow_schema",
    "stream_reader",
]

_log = logging.getLogger(__name__)

_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters
# Whether Spark tells a source from where to plan.
TELLS_START = "start" in inspect.signature(DataSourceStreamReader.latestOffset).parameters
_OTHER_END = "or use another trigger and end with query.processAllAvailable() and query.stop()."
_STAYS_CLAIMED = (
    "rmq: the source has no option checkpointLocation. If the query has trigger(availableNow=True) "
    "or trigger(once=True), Spark up to 4.1 does not show the source that its batch is finished: "
    "it stays claimed until the query starts again, and if its lease ends before, its messages "
    "are redelivered. Give the source the option, with the same value as the query; "
) + _OTHER_END
_LEARNS_NOTHING = (
    "rmq: targetBatchDuration begins with a few messages and learns from batch to batch. If the "
    "query has trigger(availableNow=True) or trigger(once=True), Spark up to 4.1 gives it one "
    "batch: set maxRecordsPerTrigger instead; "
) + _OTHER_END
_CANNOT_CONTINUE = (
    "The source cannot continue a query: Spark asks it for a batch before it shows where the query "
    "stands. Leave spark.sql.streaming.triggerAvailableNowWrapper.enabled at false, Spark's "
    "default. If it is false, give the source the option checkpointLocation too, with the same "
    "value as the query; "
) + _OTHER_END


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a schema; times of TimestampType are in UTC."""
    zone: dict[str, Any] = {"timezone": "UTC"} if _TAKES_ZONE else {}
    return to_arrow_schema(schema, **zone)


def stream_reader(reader: Any) -> DataSourceStreamReader:
    """Return a reader that this Spark can call. reader: an RmqStreamReader."""
    return reader if TELLS_START else EarlierStreamReader(reader)


class EarlierStreamReader(DataSourceStreamReader):
    """Calls a reader as Spark 4.2 does, where Spark up to 4.1 says less.

    A new query calls latestOffset, initialOffset, partitions. A query that starts again calls
    partitions(last, last) with the last planned offset. If that batch is not finished,
    partitions(start, last) follows, unless the sink has it already. A call of latestOffset shows
    that all planned batches are finished.

    With Trigger.AvailableNow or Trigger.Once, a run has one batch, and no call follows it: nothing
    but the checkpoint shows whether it is finished. Spark shows a source neither its trigger nor
    the place of the checkpoint, and at the end of a query no longer passes on what a source logs.

    With spark.sql.streaming.triggerAvailableNowWrapper.enabled, Spark calls latestOffset before
    partitions(last, last), and twice for one batch. That is not supported.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._initial: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None  # the last planned offset
        self._planned_blindly = False
        self._asked = 0  # how often Spark has asked for an offset
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {"reader": self._reader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["reader"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Commit the planned batches, and plan the next one."""
        self._asked += 1
        if self._planned is None:
            logged = self._reader.logged_progress()
            if logged.unfinished is not None:
                # Spark replays this batch first. The next start plans another one.
                self._planned = logged.unfinished
                self._reader.continue_from(self._planned)
                return self._planned
            self._planned = logged.finished or self.initialOffset()
            self._planned_blindly = logged.finished is None
        limit = self._reader.getDefaultReadLimit()
        self._planned = self._reader.latestOffset(self._planned, limit)
        return self._planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planned_by = start.get("consumer") if isinstance(start, dict) else None
        if self._planned_blindly and planned_by != self.initialOffset()["consumer"]:
            raise CheckpointRefused(_CANNOT_CONTINUE)
        self._planned = end
        if start != end and self._asked <= 1:  # perhaps the only batch of this run
            self._warn_of_an_only_batch()
        found: list[InputPartition] = self._reader.partitions(start, end)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()

    def _warn_of_an_only_batch(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        if not self._reader.has_checkpoint:
            _log.warning(_STAYS_CLAIMED)
        if self._reader.learns_size:
            _log.warning(_LEARNS_NOTHING)
