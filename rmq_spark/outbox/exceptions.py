"""The exceptions table, with the messages that were refused and the reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.outbox.databases.database import Connection
from rmq_spark.outbox.tables import NAME_LENGTH, REASON_LENGTH


@dataclass(frozen=True)
class Refused:
    """A row of the exceptions table.

    origin: the table and the id of the message that was refused.
    """

    origin: str
    topic: str | None
    content: bytes | str | None
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
                _shown(row.content),
                row.reason.replace("\0", "\\u0000")[:REASON_LENGTH],
            )
            for row in refused
        ],
    )


def _shown(content: bytes | str | None) -> str | None:
    """Return a content as text; bytes that are no UTF-8 in hex."""
    if not isinstance(content, bytes):
        return content
    try:
        return content.decode().replace("\0", "\\u0000")
    except UnicodeDecodeError:
        return content.hex()
