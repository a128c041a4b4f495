"""The target rocketmq of an export: a topic of RocketMQ, at least once, by all tasks."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, DataType, StringType

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.rocketmq.rocketmq_client import RocketMQTopic
from rmq_spark.jobs.rocketmq.rocketmq_sender import REPORT, sending
from rmq_spark.jobs.targets.accepted_rows import note_in_folder, refused_by_shape
from rmq_spark.jobs.targets.named_records import named
from rmq_spark.jobs.targets.refusals import check_amount
from rmq_spark.jobs.targets.target import NUMBER, ExportBatch
from rmq_spark.spark.schemas import HEADERS

_TEXT = (StringType(), BinaryType())
# The columns of a record, with the types that --select may make.
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": (HEADERS,),
}


class RocketMQTarget:
    """A topic of RocketMQ as the target of an export.

    selected: whether --select makes the columns. exceptions: a folder of Parquet files.
    """

    def __init__(self, topic: RocketMQTopic, selected: bool, exceptions: str) -> None:
        """Ask for the topic. Raises JobFailed."""
        self._topic = topic
        self._is_fifo = topic.is_fifo()
        self._selected = selected
        self._exceptions = exceptions

    def write(self, batch: ExportBatch) -> int:
        """Write a batch. See Target.write. A batch that is replayed is sent again."""
        refused: dict[int, object] = {**refused_by_shape(batch)}
        good = batch.messages.where(~sql.col(NUMBER).isin(list(refused)))
        rows = _records(batch, good, self._selected)
        for number, reason in rows.mapInArrow(
            sending(self._topic, self._is_fifo), REPORT
        ).collect():
            if number is None:
                raise JobFailed(reason)
            refused[number] = reason
        check_amount(refused, batch.most_refused)
        note_in_folder(batch, refused, self._exceptions)
        return len(refused)

    def close(self) -> None:
        """Do nothing: there are no tables to remove."""


def _records(batch: ExportBatch, messages: DataFrame, selected: bool) -> DataFrame:
    """Turn messages of a batch into NUMBER, key, value, headers and the columns of their names.

    Raises InvalidOption for a column of --select that no record has, or a missing one.
    """
    rows = batch.shape(messages)
    if selected:
        _check(rows)
    else:
        rows = rows.withColumnRenamed("content", "value")
    columns = {
        name: (sql.col(name) if name in rows.columns else sql.lit(None)).cast(types[-1])
        for name, types in _COLUMNS.items()
    }
    return named(batch, rows.select(NUMBER, *(made.alias(name) for name, made in columns.items())))


def _check(rows: DataFrame) -> None:
    accepted = (
        "Accepted: value and key (STRING or BINARY) and headers, such as --select 'content AS "
        "value, key'."
    )
    for field in rows.schema.fields:
        found = field.dataType.simpleString()
        types = [one.simpleString() for one in _COLUMNS.get(field.name, ())]
        if field.name != NUMBER and found not in types:
            raise InvalidOption(
                f"--select makes a column {field.name} of type {found}. No record for RocketMQ "
                f"has that. {accepted}"
            )
    if "value" not in rows.columns:
        raise InvalidOption(f"--select makes no column value. {accepted}")
