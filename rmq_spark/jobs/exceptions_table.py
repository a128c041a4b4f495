"""The exceptions table, with the messages that were refused and the reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.jobs.databases.dialect import cut_text
from rmq_spark.jobs.databases.jdbc_connection import Connection, check_name

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
    dialect = connection.dialect
    connection.create(
        table,
        f"CREATE TABLE {check_name(table)} (refused_at {dialect.clock_type}, origin "
        f"VARCHAR({_NAME}), topic VARCHAR({_NAME}), content {dialect.text_type}, reason "
        f"VARCHAR({_REASON})){dialect.table_options}",
    )


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    """Append rows to the exceptions table, within the open transaction."""
    storable_text = connection.dialect.storable_text
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
