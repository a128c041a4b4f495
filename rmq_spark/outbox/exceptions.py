"""The exceptions table, with the messages that were refused and the reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.outbox.databases.sql_database import Connection
from rmq_spark.outbox.tables import NAME_LENGTH, REASON_LENGTH


@dataclass(frozen=True)
class Refused:
    """A row of the exceptions table.

    origin: where the message came from, such as a table and an id.
    """

    origin: str
    topic: str | None
    content: str | None
    reason: str


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    """Append rows to the exceptions table, within the open transaction."""
    connection.run_each(
        f"INSERT INTO {table} (refused_at, origin, topic, content, reason) "
        "VALUES (CURRENT_TIMESTAMP, %s, %s, %s, %s)",
        [
            (
                row.origin[:NAME_LENGTH],
                row.topic and row.topic[:NAME_LENGTH],
                row.content,
                row.reason.replace("\0", "\\u0000")[:REASON_LENGTH],
            )
            for row in refused
        ],
    )


# A longer content is cut: a statement with it could be too long for the database.
_SHOWN = 100_000


def shown(content: bytes | str | None) -> str | None:
    """Return a content as text; bytes that are not UTF-8 in hex. Cut what is very long."""
    if content is None:
        return None
    text = content if isinstance(content, str) else _text_of(content)
    return text[:_SHOWN].replace("\0", "\\u0000")


def _text_of(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content[: _SHOWN // 2].hex()
