"""What an export writes back to an outbox: which messages it has delivered, and which are refused.

Refused messages are marked before a target commits their batch, and all others after it. A replay
of the batch, which the target may skip, marks the others again and leaves the refused ones alone.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from rmq_spark.outbox.outbox import Outbox
from rmq_spark.outbox.rows import ID_HEADER


class OutboxMarks:
    """The outbox from which exported messages come. Messages without its header are left out."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def refused(self, messages: DataFrame) -> None:
        """Mark messages as refused. Raises OutboxUnavailable."""
        self._outbox.mark("refused", _ids(messages))

    def delivered(self, messages: DataFrame) -> None:
        """Mark messages as delivered, unless they are refused. Raises OutboxUnavailable."""
        self._outbox.mark("delivered", _ids(messages), unless="refused")


def _ids(messages: DataFrame) -> list[int]:
    """Return the ids of messages in the outbox, from the last of such headers."""
    named = sql.filter("headers", lambda header: header["key"] == ID_HEADER)
    text = sql.try_element_at(named, sql.lit(-1))["value"].cast("string")
    rows = messages.select(text.try_cast("bigint").alias("id")).where("id IS NOT NULL")
    return [row.id for row in rows.collect()]
