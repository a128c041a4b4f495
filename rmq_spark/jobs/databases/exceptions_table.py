"""The exceptions table of an export, written through JDBC."""

from collections.abc import Sequence

from rmq_spark.jobs.databases.dialect import cut_text
from rmq_spark.jobs.databases.jdbc_connection import Connection
from rmq_spark.outbox.exceptions import Refused
from rmq_spark.outbox.tables import NAME_LENGTH, REASON_LENGTH, check_name


def create_exceptions(connection: Connection, table: str) -> None:
    """Create the exceptions table if it does not exist."""
    dialect = connection.dialect
    connection.create(
        table,
        f"CREATE TABLE {check_name(table)} (refused_at {dialect.clock_type}, origin "
        f"VARCHAR({NAME_LENGTH}), topic VARCHAR({NAME_LENGTH}), content {dialect.text_type}, "
        f"reason VARCHAR({REASON_LENGTH})){dialect.table_options}",
    )


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    """Append rows to the exceptions table, within the open transaction."""
    storable_text = connection.dialect.storable_text
    connection.update_each(
        f"INSERT INTO {check_name(table)} (refused_at, origin, topic, content, reason) "
        "VALUES (CURRENT_TIMESTAMP, ?, ?, ?, ?)",
        [
            (
                cut_text(row.origin, NAME_LENGTH),
                cut_text(storable_text(row.topic), NAME_LENGTH),
                storable_text(row.content),
                cut_text(storable_text(row.reason), REASON_LENGTH),
            )
            for row in refused
        ],
    )
