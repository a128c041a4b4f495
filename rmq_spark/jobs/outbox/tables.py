"""The tables of a transactional outbox: messages, checkpoint and exceptions."""

from dataclasses import dataclass

from rmq_spark.jobs.databases.jdbc_connection import Connection, check_name
from rmq_spark.jobs.outbox.exceptions_table import SUFFIX, create_exceptions
from rmq_spark.jobs.program import JobFailed

# The columns of the message table that are sent, and their names in the sink.
SENT = {
    "topic": "topic",
    "message_key": "key",
    "content": "content",
    "slot_basis": "slotBasis",
    "time_range": "timeRange",
    "priority": "priority",
    "fixed_time": "fixedTime",
    "delay": "delay",
    "headers": "headers",
    "time_to_live": "timeToLive",
    "expires_at": "expiresAt",
}
# content may be missing where messages have a message_key.
NEEDED = ("id", "content", "state")
_WHOLE_TYPES = (-6, 4, 5, -5)  # java.sql.Types: TINYINT, INTEGER, SMALLINT, BIGINT


@dataclass(frozen=True)
class OutboxTables:
    """The names of the tables of an outbox."""

    messages: str
    exceptions: str

    @staticmethod
    def named(messages: str, exceptions: str | None = None) -> "OutboxTables":
        """Check the names of the tables; by default, exceptions is named after messages.

        Raises InvalidOption for a name that needs quotes.
        """
        return OutboxTables(check_name(messages), check_name(exceptions or messages + SUFFIX))

    @property
    def checkpoint(self) -> str:
        """The table with one row that a relay locks, and that keeps its progress."""
        return f"{self.messages}_checkpoint"


@dataclass(frozen=True)
class Layout:
    """The columns that a message table has.

    sent: the columns of SENT. timed: whether it has fixed_time. time_is_whole: whether fixed_time
    is in ms since 1970. marked: whether it has sent_at.
    """

    sent: tuple[str, ...]
    timed: bool
    time_is_whole: bool
    marked: bool


def create_messages(connection: Connection, tables: OutboxTables) -> None:
    """Create the message table with an index for the relay, if it does not exist."""
    dialect, time = connection.dialect, connection.dialect.time_type
    index = f"{tables.messages.rpartition('.')[2]}_due"
    connection.create(
        tables.messages,
        f"CREATE TABLE {tables.messages} (id {dialect.identity}, "
        f"topic VARCHAR(200), message_key VARCHAR(1024), content {dialect.text_type}, "
        f"slot_basis VARCHAR(1000), time_range BIGINT, priority BIGINT, fixed_time {time}, "
        f"delay BIGINT, headers {dialect.text_type}, time_to_live BIGINT, expires_at {time}, "
        f"state VARCHAR(10) DEFAULT 'new' NOT NULL, sent_at {time}){dialect.table_options}",
        f"CREATE INDEX {index} ON {tables.messages} (state, fixed_time)",
    )


def create_others(connection: Connection, tables: OutboxTables) -> None:
    """Create the tables of the checkpoint and the exceptions, if they do not exist."""
    create_exceptions(connection, tables.exceptions)
    connection.create(
        tables.checkpoint,
        f"CREATE TABLE {tables.checkpoint} "
        "(sent_until_ms BIGINT, rounds BIGINT, sent BIGINT, refused BIGINT)"
        f"{connection.dialect.table_options}",
        f"INSERT INTO {tables.checkpoint} VALUES (0, 0, 0, 0)",
    )


def layout_of(connection: Connection, tables: OutboxTables) -> Layout:
    """Read the columns of the message table.

    Raises JobFailed if the table is missing, lacks a column, or has an id that is not a whole
    number.
    """
    found = {name.lower(): kind for name, kind in connection.columns(tables.messages).items()}
    if not found:
        raise JobFailed(
            f"There is no table {tables.messages} in {connection.address}. Create it (docs/jobs.md "
            "shows its columns), or add --create-tables."
        )
    instead = {"content"} if "message_key" in found else set()
    missing = [name for name in NEEDED if name not in found and name not in instead]
    if missing:
        raise JobFailed(
            f"The table {tables.messages} has no column {', '.join(missing)}. It needs "
            f"{', '.join(NEEDED)}, and those of the other columns that your topics need: "
            f"{', '.join(name for name in SENT if name not in NEEDED)}."
        )
    if found["id"] not in _WHOLE_TYPES:
        raise JobFailed(
            f"The column id of {tables.messages} is not a whole number. Accepted: BIGINT."
        )
    return Layout(
        sent=tuple(name for name in SENT if name in found),
        timed="fixed_time" in found,
        time_is_whole=found.get("fixed_time") in _WHOLE_TYPES,
        marked="sent_at" in found,
    )
