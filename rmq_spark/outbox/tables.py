"""The tables of an outbox: its messages, the relay's progress, and the exceptions."""

import re
import uuid
from dataclasses import dataclass

from rmq_spark.errors import InvalidOption, OutboxMisused
from rmq_spark.outbox.databases.sql_database import Connection, Database

# The columns of the message table that make a message, and the names of its values in Message.
FIELDS = {
    "topic": "topic",
    "message_key": "key",
    "content": "content",
    "slot_basis": "slot_basis",
    "time_range": "time_range",
    "priority": "priority",
    "fixed_time": "fixed_time",
    "delay": "delay",
    "headers": "headers",
    "time_to_live": "time_to_live",
    "expires_at": "expires_at",
}
TIMES = ("fixed_time", "expires_at")
SUFFIX = "_exceptions"
# content may be missing where messages have a message_key.
_NEEDED = ("id", "content", "state")
_WHOLE_TYPES = ("bigint", "int", "integer", "smallint", "mediumint", "tinyint")
# The name of a table becomes part of SQL statements, without quotes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
# The longest name of a message table, so that those of its other tables and its index fit.
_LONGEST = 50
# Lengths of columns of the exceptions table, in characters.
NAME_LENGTH, REASON_LENGTH = 300, 2000


def check_name(table: str) -> str:
    """Check and return the name of a table. Raises InvalidOption for a name that needs quotes."""
    if not _NAME.fullmatch(table):
        raise InvalidOption(
            f"The table {table!r} is not accepted. Accepted: letters, digits and underscores, "
            "after a schema and a dot if you need one. For another table, create a view with such "
            "a name.",
            name="table",
        )
    return table


@dataclass(frozen=True)
class Tables:
    """The names of the tables of an outbox."""

    messages: str
    exceptions: str

    @staticmethod
    def named(messages: str, exceptions: str | None = None) -> "Tables":
        """Check the names of the tables; by default, exceptions is named after messages.

        Raises InvalidOption for a name that needs quotes.
        """
        if len(messages.rpartition(".")[2]) > _LONGEST:
            raise InvalidOption(
                f"The table {messages!r} has a name of more than {_LONGEST} characters.",
                name="table",
            )
        return Tables(check_name(messages), check_name(exceptions or messages + SUFFIX))

    @property
    def relay(self) -> str:
        """The table with the one row that keeps the progress of the relay."""
        return f"{self.messages}_relay"


@dataclass(frozen=True)
class Layout:
    """The columns that a message table has.

    fields: those of FIELDS. whole_times: those of TIMES that are in ms since 1970. timed: whether
    it has fixed_time. marked: whether it has sent_at. binary: whether content holds bytes.
    """

    fields: tuple[str, ...]
    whole_times: frozenset[str]
    timed: bool
    marked: bool
    binary: bool


def create_messages(database: Database, connection: Connection, tables: Tables) -> None:
    """Create the message table with the indexes for the relay, if it does not exist."""
    text, time = database.text_type, database.time_type
    prefix = f"CREATE INDEX {tables.messages.rpartition('.')[2]}"
    indexes = [
        f"{prefix}_{name} ON {tables.messages} {rows}" for name, rows in database.indexes.items()
    ]
    _create(
        *(database, connection, tables.messages),
        f"CREATE TABLE {tables.messages} (id {database.id_type}, topic VARCHAR(200), message_key "
        f"VARCHAR(1024), content {text}, slot_basis VARCHAR(1000), time_range BIGINT, priority "
        f"BIGINT, fixed_time {time}, delay BIGINT, headers {text}, time_to_live BIGINT, "
        f"expires_at {time}, state VARCHAR(10) DEFAULT 'new' NOT NULL, sent_at {time})"
        f"{database.table_options}",
        *indexes,
    )


def create_others(database: Database, connection: Connection, tables: Tables) -> None:
    """Create the tables of the relay and the exceptions, if they do not exist."""
    _create(
        *(database, connection, tables.exceptions),
        f"CREATE TABLE {tables.exceptions} (refused_at {database.time_type}, origin "
        f"VARCHAR({NAME_LENGTH}), topic VARCHAR({NAME_LENGTH}), content {database.text_type}, "
        f"reason VARCHAR({REASON_LENGTH})){database.table_options}",
    )
    _create(
        *(database, connection, tables.relay),
        f"CREATE TABLE {tables.relay} (one SMALLINT PRIMARY KEY, name VARCHAR(40), rounds BIGINT, "
        f"done BIGINT, sent_until_ms BIGINT, sent BIGINT, refused BIGINT){database.table_options}",
    )
    _create_row(database, connection, tables)


def _create_row(database: Database, connection: Connection, tables: Tables) -> None:
    """Insert the row of the relay unless it exists, or another process inserts it first."""
    exists = f"SELECT 1 FROM {tables.relay}"
    with connection.transaction():
        if connection.query(exists):
            return
    try:
        with connection.transaction():
            connection.run(
                f"INSERT INTO {tables.relay} VALUES (1, 'outbox-{uuid.uuid4().hex}', 0, 0, 0, 0, 0)"
            )
    except Exception:
        with connection.transaction():
            if not connection.query(exists):
                raise


def check_table(database: Database, connection: Connection, tables: Tables) -> dict[str, str]:
    """Return the columns of the message table. Raises OutboxMisused if there is no table."""
    found = database.columns(connection, tables.messages)
    if not found:
        raise OutboxMisused(
            f"There is no table {tables.messages} in {database.address}. Create it with "
            "Outbox.create_tables() or relay_outbox --create-tables; docs/outbox.md shows its "
            "columns."
        )
    return found


def _create(database: Database, connection: Connection, table: str, *statements: str) -> None:
    """Create a table unless it exists. Does nothing if another process creates it first."""
    with connection.transaction():
        if database.columns(connection, table):
            return
    with database.errors():
        try:
            with connection.transaction():
                for statement in statements:
                    connection.run(statement)
        except Exception:
            with connection.transaction():
                if not database.columns(connection, table):
                    raise


def layout_of(database: Database, connection: Connection, tables: Tables) -> Layout:
    """Read the columns of the message table.

    Raises OutboxMisused if the table is missing, lacks a column, or has an id that is not a whole
    number.
    """
    found = check_table(database, connection, tables)
    instead = {"content"} if "message_key" in found else set()
    missing = [name for name in _NEEDED if name not in found and name not in instead]
    if missing:
        raise OutboxMisused(
            f"The table {tables.messages} has no column {', '.join(missing)}. It needs "
            f"{', '.join(_NEEDED)}, and those of the other columns that your topics need: "
            f"{', '.join(name for name in FIELDS if name not in _NEEDED)}."
        )
    if found["id"] not in _WHOLE_TYPES:
        raise OutboxMisused(
            f"The column id of {tables.messages} is not a whole number. Accepted: BIGINT."
        )
    for table in (tables.messages, tables.relay, tables.exceptions):
        unsafe = database.why_unsafe(connection, table)
        if unsafe:
            raise OutboxMisused(unsafe)
    return Layout(
        fields=tuple(name for name in FIELDS if name in found),
        whole_times=frozenset(name for name in TIMES if found.get(name) in _WHOLE_TYPES),
        timed="fixed_time" in found,
        marked="sent_at" in found,
        binary=found.get("content") in database.binary_types,
    )
