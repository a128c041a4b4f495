"""The exceptions table: what was refused for good, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.jobs.database import Connection, check_name

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
        f"VARCHAR({_NAME}), content {text_type(connection)}, reason VARCHAR({_REASON}))",
    )


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    """Appends rows, within the transaction that is open."""
    connection.update_each(
        f"INSERT INTO {check_name(table)} (refused_at, origin, topic, content, reason) "
        "VALUES (CURRENT_TIMESTAMP, ?, ?, ?, ?)",
        [
            (
                _cut(row.origin, _NAME),
                _cut(_storable(row.topic), _NAME),
                _storable(row.content),
                _cut(_storable(row.reason), _REASON),
            )
            for row in refused
        ],
    )


def text_type(connection: Connection) -> str:
    """What a column of texts of any length is declared as."""
    return "TEXT" if connection.product == "PostgreSQL" else "CLOB"  # SQL's own name


def _cut(text: str | None, length: int) -> str | None:
    """So much of it as fits: databases on Java count a character beyond U+FFFF as two."""
    return text and text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")


def _storable(text: str | None) -> str | None:
    """Without the one character that PostgreSQL stores nowhere: here nothing may be refused."""
    return text and text.replace("\0", "\\u0000")
