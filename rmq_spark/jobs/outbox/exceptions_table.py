"""The exceptions table: what was refused for good, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.jobs.database import Connection, check_name
from rmq_spark.jobs.sql_dialects import cut_text, storable_text

SUFFIX = "_exceptions"
# Characters; the rest of what is longer is cut off.
_NAME, _REASON = 300, 2000


@dataclass(frozen=True)
class Refused:
    """One of its rows. origin: which job refused it, and of what it was made."""

    origin: str
    topic: str | None
    content: str | None
    reason: str


def create_exceptions(connection: Connection, table: str) -> None:
    """Makes the table if there is none."""
    connection.create(
        table,
        f"CREATE TABLE {check_name(table)} (refused_at TIMESTAMP, origin VARCHAR({_NAME}), topic "
        f"VARCHAR({_NAME}), content {connection.dialect.text_type}, reason VARCHAR({_REASON}))",
    )


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    """Appends rows, within the transaction that is open."""
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
