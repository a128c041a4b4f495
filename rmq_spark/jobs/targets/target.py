"""What an export writes, a batch, and where it writes: a target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from rmq_spark.jobs.targets.outbox_marks import OutboxMarks
from rmq_spark.outbox.exceptions import Refused

NUMBER = "rmq_number"
LAST = 2**63 - 1  # no message has a higher number


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


class Target(Protocol):
    """A place that an export writes to."""

    def write(self, batch: ExportBatch) -> int:
        """Write a batch, and put refused messages into the exceptions table.

        Returns how many messages are refused. Raises any other error; the batch is then replayed.
        """

    def close(self) -> None:
        """Remove the tables that only a running export needs."""
