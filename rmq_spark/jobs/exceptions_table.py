"""The exceptions table: what was refused for good, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.jobs.database import Connection, check_name

SUFFIX = "_exceptions"
_REASON = 2000  # characters; the rest of a longer one is cut off


@dataclass(frozen=True)
class Refused:
    """One of its rows. origin: which job refused it, and of what it was made."""

    origin: str
    topic: str | None
    content: str | None
    reason: str


def create_exceptions(connection: Connection, table: str) -> None:
    """Makes the table if there is none."""
    if not connection.columns(table):
        text = text_type(connection)
        connection.update(
            f"CREATE TABLE {check_name(table)} (refused_at TIMESTAMP, origin VARCHAR(300), "
            f"topic VARCHAR(300), content {text}, reason VARCHAR({_REASON}))"
        )


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    """Appends rows, within the transaction that is open."""
    connection.update_each(
        f"INSERT INTO {check_name(table)} (refused_at, origin, topic, content, reason) "
        "VALUES (CURRENT_TIMESTAMP, ?, ?, ?, ?)",
        [
            (
                row.origin,
                _storable(row.topic),
                _storable(row.content),
                _storable(row.reason[:_REASON]),
            )
            for row in refused
        ],
    )


def text_type(connection: Connection) -> str:
    """What a column of texts of any length is declared as."""
    return "TEXT" if connection.product == "PostgreSQL" else "CLOB"  # SQL's own name


def _storable(text: str | None) -> str | None:
    """Without the one character that PostgreSQL stores nowhere: here nothing may be refused."""
    return text and text.replace("\0", "\\u0000")
