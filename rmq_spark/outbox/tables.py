"""The tables of an outbox: its messages, the relay's progress, and the exceptions."""

import uuid
from dataclasses import dataclass

from rmq_spark.errors import InvalidOption, OutboxMisused
from rmq_spark.sql.database import (
    EXCEPTIONS_SUFFIX,
    DriverConnection,
    check_name,
    create_exceptions,
)

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
# content may be missing where messages have a message_key.
_NEEDED = ("id", "content", "state")
_WHOLE_TYPES = ("bigint", "int", "integer", "smallint", "mediumint", "tinyint")
# The longest name of a message table, so that those of its other tables and its index fit.
_LONGEST = 50


@dataclass(frozen=True)
class Tables:
    """The names of the tables of an outbox."""

    messages: str
    exceptions: str

    @staticmethod
    def named(messages: str, exceptions: str | None, *, folds: bool) -> "Tables":
        """Check the names. folds: whether those that differ in case only are the same."""
        if len(messages.rpartition(".")[2]) > _LONGEST:
            raise InvalidOption(
                f"The table {messages!r} has a name of more than {_LONGEST} characters.",
                name="table",
            )
        found = Tables(check_name(messages), check_name(exceptions or messages + EXCEPTIONS_SUFFIX))
        names = found.messages, found.relay, found.exceptions
        if len({name.lower() if folds else name for name in names}) < len(names):
            raise InvalidOption(
                f"The exceptions table {exceptions!r} is a table of messages or of their relay. "
                "Accepted: a table of its own.",
                name="exceptions",
            )
        return found

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


def create_messages(connection: DriverConnection, tables: Tables) -> None:
    database, dialect = connection.database, connection.dialect
    text, time = dialect.text_type, dialect.time_type
    prefix = f"CREATE INDEX {tables.messages.rpartition('.')[2]}"
    indexes = [
        f"{prefix}_{name} ON {tables.messages} {rows}" for name, rows in database.indexes.items()
    ]
    connection.create(
        tables.messages,
        f"CREATE TABLE {tables.messages} (id {database.id_type}, topic VARCHAR(200), message_key "
        f"VARCHAR(1024), content {text}, slot_basis VARCHAR(1000), time_range BIGINT, priority "
        f"BIGINT, fixed_time {time}, delay BIGINT, headers {text}, time_to_live BIGINT, "
        f"expires_at {time}, state VARCHAR(10) DEFAULT 'new' NOT NULL, sent_at {time})"
        f"{dialect.table_options}",
        *indexes,
    )


def create_others(connection: DriverConnection, tables: Tables) -> None:
    create_exceptions(connection, tables.exceptions)
    connection.create(
        tables.relay,
        f"CREATE TABLE {tables.relay} (one SMALLINT PRIMARY KEY, name VARCHAR(40), rounds BIGINT, "
        "done BIGINT, sent BIGINT, refused BIGINT)"
        f"{connection.dialect.table_options}",
    )
    _create_row(connection, tables)


def _create_row(connection: DriverConnection, tables: Tables) -> None:
    """Insert the row of the relay unless it exists, or another process inserts it first."""
    exists = f"SELECT 1 FROM {tables.relay}"
    with connection.transaction():
        if connection.query(exists):
            return
    try:
        with connection.transaction():
            connection.run(
                f"INSERT INTO {tables.relay} VALUES (1, 'outbox-{uuid.uuid4().hex}', 0, 0, 0, 0)"
            )
    except Exception:
        with connection.transaction():
            if not connection.query(exists):
                raise


def check_table(connection: DriverConnection, tables: Tables) -> dict[str, str]:
    found = connection.columns(tables.messages)
    if not found:
        raise OutboxMisused(
            f"There is no table {tables.messages} in {connection.database.address}. Create it with "
            "Outbox.create_tables() or relay_outbox --create-tables; docs/outbox.md shows its "
            "columns."
        )
    return found


def layout_of(connection: DriverConnection, tables: Tables) -> Layout:
    found = check_table(connection, tables)
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
    accepted = (*connection.database.instant_types, *_WHOLE_TYPES)
    for name in TIMES:
        if found.get(name, accepted[0]) not in accepted:
            raise OutboxMisused(
                f"The column {name} of {tables.messages} has the type {found[name].upper()}, which "
                "names no instant: its times would depend on the zones of sessions. Accepted: "
                f"{connection.database.instant_types[0].upper()}, or BIGINT (ms since 1970)."
            )
    for table in (tables.messages, tables.relay, tables.exceptions):
        unsafe = connection.dialect.unsafe_table(connection, table)
        if unsafe:
            raise OutboxMisused(unsafe)
    return Layout(
        fields=tuple(name for name in FIELDS if name in found),
        whole_times=frozenset(name for name in TIMES if found.get(name) in _WHOLE_TYPES),
        timed="fixed_time" in found,
        marked="sent_at" in found,
        binary=found.get("content") in connection.database.binary_types,
    )
