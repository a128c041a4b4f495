"""The exceptions table, with the messages that were refused and the reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.jobs.database import Connection, check_name
from rmq_spark.jobs.sql_dialects import cut_text, storable_text

SUFFIX = "_exceptions"
# Lengths of columns, in characters. A longer text is cut.
_NAME, _REASON = 300, 2000


@dataclass(frozen=True)
class Refused:
    """A row of the exceptions table.

    origin: the job that refused the message, and the place that the message came from.
    """

    origin: str
    topic: str | None
    content: str | None
    reason: str


def create_exceptions(connection: Connection, table: str) -> None:
    """Create the exceptions table if it does not exist."""
    connection.create(
        table,
        f"CREATE TABLE {check_name(table)} (refused_at TIMESTAMP, origin VARCHAR({_NAME}), topic "
        f"VARCHAR({_NAME}), content {connection.dialect.text_type}, reason VARCHAR({_REASON}))",
    )


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    """Append rows to the exceptions table, within the open transaction."""
    connection.update_each(
        f"INSERT INTO {check_name(table)} (refused_at, origin, topic, content, reason) "
        "VALUES (CURRENT_TIMESTAMP, ?, ?, ?, ?)",
        [
            (
                cut_text(row.origin, _NAME),
                cut_text(storable_text(row.topic), _NAME),
                storable_text(row.content),
                cut_text(storable_text(row.reason), _REASON),
            )
            for row in refused
        ],
    )
