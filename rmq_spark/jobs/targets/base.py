"""What an export writes, a batch; where it writes, a target; and the messages that one refuses."""

import argparse
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from rmq_spark.jobs.program import FILES, JobFailed
from rmq_spark.jobs.spark_session import Folder, java_causes
from rmq_spark.outbox.outbox import Outbox
from rmq_spark.outbox.rows import ID_HEADER
from rmq_spark.sql.database import Dialect, Refused

_log = logging.getLogger(__name__)
NUMBER = "rmq_number"
LAST = 2**63 - 1  # no message has a higher number
# The partition of the table that holds a batch is a folder with this name.
BATCH = "rmq_batch"
_SQL_EXCEPTION = "java.sql.SQLException"
_RAISED_IN_SPARK = "P0001"  # the function raise_error
_STATE_METHODS = (
    (_SQL_EXCEPTION, "getSQLState"),
    ("org.apache.spark.SparkThrowable", "getSqlState"),
)
_STANDARD = Dialect()

Write = Callable[[DataFrame], None]


class OutboxMarks:
    """The outbox from which exported messages come. Messages without its header are left out.

    Refused messages are marked before a target commits their batch, and all others after it. A
    replay of the batch, which the target may skip, marks the others again and leaves the refused
    ones alone.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def refused(self, messages: DataFrame) -> None:
        self._outbox.mark("refused", _outbox_ids(messages))

    def delivered(self, messages: DataFrame) -> None:
        self._outbox.mark("delivered", _outbox_ids(messages), unless="refused")


def _outbox_ids(messages: DataFrame) -> list[int]:
    """Return the ids of messages in the outbox, from the last of such headers."""
    named = sql.filter("headers", lambda header: header["key"] == ID_HEADER)
    text = sql.try_element_at(named, sql.lit(-1))["value"].cast("string")
    rows = messages.select(text.try_cast("bigint").alias("id")).where("id IS NOT NULL")
    return [row.id for row in rows.collect()]


@dataclass(frozen=True)
class ExportBatch:
    """A batch of messages, numbered in their order by the column NUMBER.

    shape: transforms messages into the rows to write, and keeps NUMBER. query, batch: the permanent
    name of the batch; a replay holds the same messages. most_refused: the number of refused
    messages that is allowed. marks: where to note the results of the messages.
    """

    messages: DataFrame
    shape: Callable[[DataFrame], DataFrame]
    query: str
    batch: int
    most_refused: int
    marks: OutboxMarks | None = None

    @property
    def name(self) -> str:
        """The name of the batch, the same for each replay."""
        return f"{self.query}-{self.batch}"

    def between(self, first: int, last: int) -> DataFrame:
        """Return the rows to write for the messages between two numbers, inclusive."""
        return self.shape(self.messages.where(sql.col(NUMBER).between(first, last)))

    def without(self, refused: Mapping[int, object]) -> DataFrame:
        return self.messages.where(~sql.col(NUMBER).isin(list(refused)))

    def numbers(self) -> list[int]:
        """Return the numbers of all messages, ascending."""
        return sorted(row[0] for row in self.messages.select(NUMBER).collect())

    def refuse(self, refused: Mapping[int, object]) -> list[Refused]:
        """Mark refused messages in their outbox. Return their rows for the exceptions table.

        refused: by number, the reason, which str() shows. A target calls this before it commits
        the batch. Raises OutboxUnavailable.
        """
        if not refused:
            return []
        rows = self.messages.where(sql.col(NUMBER).isin(list(refused)))
        if self.marks is not None:
            self.marks.refused(rows)
        found = rows.select(NUMBER, "topic", *(_shown(name) for name in ("key", "content")))
        origin = f"export {self.query} batch {self.batch}"
        return [
            Refused(
                origin if row.key is None else f"{origin} key {row.key}",
                *(row.topic, row.content, str(refused[row[NUMBER]])),
            )
            for row in found.collect()
        ]


def _shown(name: str) -> Column:
    """Return a column as text; what is not UTF-8 is shown in hex."""
    binary = sql.col(name).cast("binary")
    text = sql.when(sql.is_valid_utf8(binary), binary.cast("string")).otherwise(sql.hex(binary))
    return text.alias(name)


@dataclass(frozen=True)
class Place:
    """Where an export writes.

    given: the arguments of the job. options: those of the format. exceptions: a folder of Parquet
    files; for jdbc a table of the same database.
    """

    spark: SparkSession
    given: argparse.Namespace
    options: Mapping[str, str]
    exceptions: str


class Target(ABC):
    """A way to write to a place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def write(self, batch: ExportBatch) -> int:
        """Write a batch, and put refused messages into the exceptions table.

        Returns how many messages are refused. Raises any other error; the batch is then replayed.
        """

    def close(self) -> None:  # noqa: B027 - most targets need nothing
        """Remove the tables that only a running export needs."""


# -- refused messages


@dataclass(frozen=True)
class Refusal:
    """The reason why a row can never be written. state: the SQLSTATE."""

    state: str
    text: str

    def __str__(self) -> str:
        return f"SQLSTATE {self.state}: {self.text}"


def refusal(spark: SparkSession, error: BaseException, dialect: Dialect = _STANDARD) -> Refusal:
    """Return the reason if an error means that a row can never be written, or else raise it.

    dialect: that of the database which raised the error.
    """
    gateway = spark.sparkContext._gateway
    deepest = None
    is_fault = False
    for java in java_causes(error):
        for kind, method in _STATE_METHODS:
            if is_instance_of(gateway, java, kind) and getattr(java, method)():
                state = str(getattr(java, method)())
                deepest = Refusal(state, str(java.getMessage()))
                if kind == _SQL_EXCEPTION:
                    is_fault = dialect.is_fault_of_row(state, java.getErrorCode())
                else:
                    is_fault = state == _RAISED_IN_SPARK or _STANDARD.is_fault_of_row(state)
    if deepest is None or not is_fault:
        raise error
    return deepest


# Writes the messages between two numbers, inclusive. Returns None if it wrote all of them, or
# writes no message and returns the reason.
Attempt = Callable[[int, int], Refusal | None]


def refused_among(batch: ExportBatch, attempt: Attempt) -> dict[int, Refusal]:
    """Write all messages that the target takes. Return the refused ones, by number.

    Searches by halving: each refused message costs about ``2 * log2(messages)`` attempts. Raises
    JobFailed if there are more than allowed.
    """
    _log.warning(
        "rmq: the target or --select refuses messages of this batch. They go to the exceptions, "
        "the others are written: the errors that Spark has logged for this do not end the job"
    )
    refused: dict[int, Refusal] = {}
    numbers: Sequence[int] = batch.numbers()
    waiting = [numbers] if numbers else []
    while waiting:
        some = waiting.pop()
        with _quiet(batch.messages.sparkSession):
            why = attempt(some[0], some[-1])
        if why is None:
            continue
        if len(some) > 1:
            half = len(some) // 2
            waiting += [some[half:], some[:half]]  # pop takes the first half next: in order
            continue
        refused[some[0]] = why
        check_amount(refused, batch.most_refused)
    return refused


@contextmanager
def _quiet(spark: SparkSession) -> Iterator[None]:
    """Keep Spark from logging each attempt that fails, as if it were the end of the job."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    level = log4j.LogManager.getRootLogger().getLevel()
    # Not SparkContext.setLogLevel, after which the root's level counts, INFO in a Python program.
    log4j.core.config.Configurator.setRootLevel(log4j.Level.OFF)
    try:
        yield
    finally:
        log4j.core.config.Configurator.setRootLevel(level)


def check_amount(refused: Mapping[int, object], most: int) -> None:
    if len(refused) > most:
        last = [*refused.values()][-1]
        raise JobFailed(
            f"More than {most} messages of one batch were refused. Nothing of the batch was "
            "committed. If the refusals are right, raise --max-refused and start the job "
            f"again. The last one: {' '.join(str(last).split())}"
        )


def write_accepted(
    batch: ExportBatch, write: Write, new_trial: Callable[[], Write], exceptions: str
) -> int:
    """Write the rows of a batch without refused messages. Return how many are refused.

    write: writes all rows, which lack NUMBER, or none. new_trial: returns a function that fails for
    rows as ``write`` does, but keeps none. exceptions: a folder of Parquet files.

    Not for a batch that the target has: its exceptions were written before its rows, so they are
    there. Those of a try that was ended before the rows are removed first.
    """
    note_in_folder(batch, {}, exceptions)
    try:
        write(batch.shape(batch.messages).drop(NUMBER))
    except Exception as error:
        refusal(batch.messages.sparkSession, error)
    else:
        return 0
    trial = new_trial()
    refused = refused_among(batch, _attempt(batch, trial))
    rest = batch.shape(batch.without(refused)).drop(NUMBER)
    if len(refused) == len(batch.numbers()):
        trial(rest)  # what fails for no row either is the fault of none
    note_in_folder(batch, refused, exceptions)
    write(rest)
    return len(refused)


def refused_by_shape(batch: ExportBatch) -> dict[int, Refusal]:
    """Run the transformation of a batch without writing. Return the messages that it refuses."""
    attempt = _attempt(batch, discard)
    return {} if attempt(0, LAST) is None else refused_among(batch, attempt)


def note_in_folder(batch: ExportBatch, refused: Mapping[int, object], folder: str) -> None:
    """Write refused messages into the exceptions folder. A replayed batch replaces its own."""
    name = f"{BATCH}={batch.name}"
    if not refused:
        Folder(batch.messages.sparkSession, folder).remove(name)
        return
    rows = [(row.origin, row.topic, row.content, row.reason) for row in batch.refuse(refused)]
    schema = "origin STRING, topic STRING, content STRING, reason STRING"
    table = batch.messages.sparkSession.createDataFrame(rows, schema).coalesce(1)
    table = table.select(sql.current_timestamp().alias("refused_at"), "*")
    table.write.mode("overwrite").parquet(f"{folder}/{name}")


def discard(rows: DataFrame) -> None:
    """Run the transformation of rows, and write them nowhere."""
    rows.write.format("noop").mode("overwrite").save()


def _attempt(batch: ExportBatch, trial: Write) -> Attempt:
    def attempt(first: int, last: int) -> Refusal | None:
        try:
            trial(batch.between(first, last).drop(NUMBER))
        except Exception as error:
            return refusal(batch.messages.sparkSession, error)
        return None

    return attempt


class SparkTarget(Target):
    """A format that Spark writes by name. In files, a replayed batch replaces itself.

    Only the transformation refuses messages here, never the format.
    """

    def write(self, batch: ExportBatch) -> int:
        options, mode = dict(self.place.options), "append"
        if self.place.given.format in FILES:
            options["path"] += f"/{BATCH}={batch.name}"
            mode = "overwrite"

        def write(rows: DataFrame) -> None:
            rows.write.format(self.place.given.format).options(**options).mode(mode).save()

        return write_accepted(batch, write, lambda: discard, self.place.exceptions)
