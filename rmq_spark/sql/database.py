"""What the outbox and the jobs ask of a database: connections, dialects, and databases.

A Connection runs statements, with ``%s`` for values, by whatever driver. A Dialect says in what SQL
differs. A Database is one that holds an outbox, reached by its driver for Python. The
exceptions table has the messages that were refused, and the reasons.
"""

import inspect
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rmq_spark.errors import (
    InvalidMessage,
    InvalidOption,
    OutboxMisused,
    OutboxUnavailable,
    RmqError,
)
from rmq_spark.process import sleep

# With more, MariaDB turns IN into a join, for which it may read the whole table.
IDS_A_STATEMENT = 1000
# A name or an address. Anything else may be part of a password.
_HOST = re.compile(r"[A-Za-z0-9._:-]*")
# The name of a table becomes part of SQL statements, without quotes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
# Classes of SQLSTATE for a faulty row: its values, a constraint of the table, a check option of a
# view. Other errors may pass (no connection, a deadlock, a full disk), or the job is at fault (no
# such table, no permission).
_OF_THE_ROW = ("22", "23", "44")
_NO_TRANSACTION = "25P01"
# How long a statement of a relay may take. One that waits for a lock of the table is tried again.
ANSWER_S = 60.0
_WRONG_STATEMENT = "42"  # the beginning of SQLSTATEs
# What follows the name of a message table or of a target.
EXCEPTIONS_SUFFIX = "_exceptions"
# Lengths of columns, in characters.
_NAME_LENGTH, _REASON_LENGTH = 300, 2000


def scheme_of(url: str) -> str:
    return url.removeprefix("jdbc:").partition(":")[0]


def check_name(table: str) -> str:
    if not _NAME.fullmatch(table):
        raise InvalidOption(
            f"The table {table!r} is not accepted. Accepted: letters, digits and underscores, "
            "after a schema and a dot if you need one. For another table, create a view with such "
            "a name.",
            name="table",
        )
    return table


def among(ids: Iterable[int]) -> str:
    return f"id IN ({', '.join(str(int(each)) for each in ids) or 'NULL'})"


def ids_not_unique(table: str) -> OutboxMisused:
    return OutboxMisused(
        f"{table} has messages with the same id, or without one. Make id its primary key. Nothing "
        "was sent."
    )


def no_transaction(why: str = "") -> OutboxMisused:
    return OutboxMisused(
        f"send needs an open transaction{why}. Switch autocommit off, or begin one. Nothing was "
        "inserted."
    )


class Dialect:
    """Standard SQL. A subclass holds what differs in the SQL and in JDBC of one database."""

    # Types for texts of any length, and for CURRENT_TIMESTAMP.
    text_type = ""  # the one that Spark gives a column
    time_type = "TIMESTAMP"
    # What follows a CREATE TABLE.
    table_options = ""
    # Types for the columns of a new target in place of Spark's, by the name of the type in Spark.
    own_types: Mapping[str, str] = {}
    # The driver's class by the scheme of urls: Spark needs it to find the driver in spark.jars.
    drivers: Mapping[str, str] = {}
    # The Maven coordinate of each driver, by its class.
    packages: Mapping[str, str] = {}
    # Whether a table belongs to a catalog of JDBC. If not, it belongs to a schema.
    tables_are_in_catalogs = False

    def spark_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the format jdbc with which Spark speaks this dialect."""
        driver = self.drivers.get(scheme_of(options["url"]))
        if driver is None or "driver" in {name.lower() for name in options}:
            return dict(options)
        return {**options, "driver": driver}

    def given_url(self, url: str) -> str:
        """Return the url that the user gave, from the one in ``spark_options``."""
        return url

    def is_fault_of_row(self, state: str, code: int = 0) -> bool:
        """Check whether an error means that a row can never be stored.

        state: the SQLSTATE. code: the number that the vendor gives the error.
        """
        return state.startswith(_OF_THE_ROW)

    def storable_text(self, text: str | None) -> str | None:
        """Escape what the database cannot store in a text."""
        return text

    def create_empty_copy(
        self, table: str, source: str, columns: Sequence[str], added: Mapping[str, str]
    ) -> str:
        """Return a statement that copies columns of a table, without rows and constraints."""
        new = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in added.items()]
        chosen = ", ".join([*columns, *new])
        return f"CREATE TABLE {table} AS SELECT {chosen} FROM {source} WITH NO DATA"

    def unsafe_session(self, connection: "Connection") -> str | None:
        """Return why a session would lose values, and the remedy; None if it would not."""
        return None

    def unsafe_table(self, connection: "Connection", table: str) -> str | None:
        """Return why a table would lose rows or keep them twice, and the remedy, or None."""
        return None


class Connection(ABC):
    """A connection that runs SQL statements.

    Each statement has ``%s`` for values. dialect: the SQL of the database. text_type: the type of a
    column for texts of any length.
    """

    dialect: Dialect
    text_type: str

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and return how many rows it changed."""

    @abstractmethod
    def run_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""

    @abstractmethod
    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""

    @abstractmethod
    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table with their types; empty without a table."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Run statements as one transaction: commit at the end, roll back after an error."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create(self, table: str, *statements: str) -> None:
        """Create a table with statements in one transaction, unless the table exists.

        Does nothing if another process creates the table at the same time. MariaDB commits each
        statement that creates something.
        """
        if self._has(table):
            return
        try:
            with self.transaction():
                for statement in statements:
                    self.run(statement)
        except Exception:
            if not self._has(table):
                raise

    def _has(self, table: str) -> bool:
        with self.transaction():
            return bool(self.columns(table))


class DriverConnection(Connection):
    """A connection of a driver for Python, of ours or of a user. The errors of ours are RmqErrors.

    driver: the driver's own connection.
    """

    def __init__(self, database: "Database", driver: Any, *, is_ours: bool) -> None:
        self.database = database
        self.driver = driver
        self.dialect = database.dialect
        self.text_type = database.dialect.text_type
        self._errors = database.errors if is_ours else nullcontext
        self._asked_s: float | None = None  # since when the database has something to do

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        with self._cursor() as cursor:
            cursor.execute(statement, tuple(values) or None)
            return int(cursor.rowcount)

    def run_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._cursor() as cursor:
            cursor.executemany(statement, rows)

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(statement, tuple(values) or None)
            return list(cursor.fetchall())

    def columns(self, table: str) -> dict[str, str]:
        return self.database.columns(self, table)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.roll_back()
            raise
        with self._errors(), self._asking():
            self.driver.commit()

    def roll_back(self) -> None:
        """Roll back, if the connection is still there: the database does it otherwise."""
        with suppress(Exception), self._asking():
            self.driver.rollback()

    def close(self) -> None:
        with suppress(Exception):
            self.driver.close()

    @contextmanager
    def answered_within(self, limit_s: float) -> Iterator[None]:
        """Break the connection off if the database does not answer for so long within the block."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(min(1.0, limit_s / 4)):
                asked_s = self._asked_s
                if asked_s is not None and time.monotonic() - asked_s > limit_s:
                    self.database.break_off(self.driver)

        watcher = threading.Thread(target=watch, name="rmq-database", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._asked_s = time.monotonic()
        try:
            yield
        finally:
            self._asked_s = None

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._errors(), self._asking():
            cursor = self.database.cursor(self.driver)
            try:
                yield cursor
            finally:
                cursor.close()


class Database(ABC):
    """A database that can hold an outbox, and the statements in which it differs from others.

    The repr and all errors show its address without the user and the password.
    """

    dialect: ClassVar[Dialect]
    schemes: ClassVar[tuple[str, ...]]
    # The package that has the driver, and the extra of rmq-spark that installs it.
    package: ClassVar[str]
    extra: ClassVar[str]
    # An attribute that only this driver's connections have.
    own: ClassVar[str]
    # Whether names of tables that differ in case only are the same.
    folds: ClassVar[bool] = False
    # How often to look for new messages that nobody announces.
    look_s: ClassVar[float]
    id_type: ClassVar[str]
    binary_types: ClassVar[tuple[str, ...]]
    # The types of columns whose times are the same instant in every session.
    instant_types: ClassVar[tuple[str, ...]]
    # The indexes by which the relay finds messages: the end of the name, and what it holds.
    indexes: ClassVar[dict[str, str]] = {"due": "(state, fixed_time, id)"}
    # The first and last times that a column of times holds, in ms since 1970.
    times_ms: ClassVar[tuple[int, int]]
    # A condition for rows of transactions that began to write before all that are open; empty where
    # the database does not tell.
    settled: ClassVar[str] = ""

    def __init__(self, url: str, user: str | None, password: str | None) -> None:
        self.parts = _parts_of(url)
        self.settings: dict[str, Any] = dict(parse_qsl(self.parts.query))
        in_url = (self.parts.username, self.parts.password)
        self.user, self.password = (
            self.settings.pop(name, unquote(found) if found else given)
            for name, found, given in zip(
                ("user", "password"), in_url, (user, password), strict=True
            )
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    @property
    def address(self) -> str:
        """The url without user, password and settings."""
        host = self.parts.netloc.rpartition("@")[2]
        return f"{self.parts.scheme}://{host}{self.parts.path}"

    @property
    def name(self) -> str:
        return unquote(self.parts.path.lstrip("/"))

    # -- connections

    def connect(self) -> DriverConnection:
        """Open a connection. Raises OutboxUnavailable, and InvalidOption without the driver."""
        driver = self.driver()
        try:
            with self.errors():
                return DriverConnection(self, self._open(driver), is_ours=True)
        except RuntimeError as error:  # PyMySQL lacks what encrypts a password without TLS
            raise InvalidOption(
                f"{self.package} cannot log in at {self.address}: {error}. Install all that it "
                f"needs: pip install 'rmq-spark[{self.extra}]'.",
                name="url",
            ) from error
        except (TypeError, ValueError) as error:
            if isinstance(error, RmqError):
                raise
            raise InvalidOption(
                f"The settings {', '.join(self.settings)} in the url of {self.address} are not "
                f"accepted by {self.package}: {error}",
                name="url",
            ) from error

    @contextmanager
    def answering(self) -> Iterator[DriverConnection]:
        """Open a connection, and break it off if the database does not answer a statement.

        A proxy may hold a connection whose server is gone, and then nothing else ends the wait.
        """
        with self.connect() as connection, connection.answered_within(ANSWER_S):
            yield connection

    @contextmanager
    def lent(self, given: Any) -> Iterator[DriverConnection]:
        """Use a connection that a user has opened. Raises InvalidOption for anything else."""
        is_async = inspect.iscoroutinefunction(getattr(given, "commit", None))
        if is_async or not all(hasattr(given, name) for name in ("cursor", "commit", self.own)):
            raise InvalidOption(
                f"The connection is a {type(given).__module__}.{type(given).__name__}. Accepted: "
                f"a connection of {self.package} that is not asynchronous. In SQLAlchemy, that is "
                "session.connection().connection.driver_connection.",
                name="connection",
            )
        yield DriverConnection(self, given, is_ours=False)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the driver within the block into OutboxUnavailable."""
        try:
            yield
        except self.driver().Error as error:
            text = " ".join(str(error).split())
            if self.password:
                text = text.replace(self.password, "***")
            raise OutboxUnavailable(f"The database {self.address} failed: {text}") from error

    def driver(self) -> ModuleType:
        try:
            return import_module(self.package)
        except ImportError:
            raise InvalidOption(
                f"An outbox at {self.parts.scheme}:// needs the package {self.package}. Install "
                f"it: pip install 'rmq-spark[{self.extra}]'.",
                name="url",
            ) from None

    @abstractmethod
    def _open(self, driver: Any) -> Any:
        """Open a connection of the driver, which commits nothing by itself."""

    @staticmethod
    @abstractmethod
    def cursor(connection: Any) -> Any:
        """Open a cursor of the driver whose rows are tuples."""

    def check_session(self, connection: DriverConnection) -> None:
        """Raise OutboxMisused if transactions of a connection may run in different sessions."""
        del connection

    @contextmanager
    def inserting(self, connection: DriverConnection) -> Iterator[None]:
        """Insert within the block: all or nothing, and values as they are.

        Raises InvalidMessage for what the database does not take, and OutboxMisused without a
        transaction. Other errors of the driver are passed on.
        """
        driver = self.driver()
        try:
            connection.run("SAVEPOINT rmq_send")
        except driver.Error as error:
            if _state_of(error) != _NO_TRANSACTION:
                raise
            raise no_transaction(f": {error}") from error
        try:
            yield
        except BaseException as error:
            with suppress(Exception):
                connection.run("ROLLBACK TO SAVEPOINT rmq_send")
            not_taken = (driver.DataError, driver.ProgrammingError, TypeError, ValueError)
            is_of_table = _state_of(error).startswith(_WRONG_STATEMENT)
            if isinstance(error, not_taken) and not (isinstance(error, RmqError) or is_of_table):
                text = " ".join(str(error).split())
                raise InvalidMessage(
                    f"The database does not take the messages: {text}. Nothing was inserted."
                ) from error
            raise
        connection.run("RELEASE SAVEPOINT rmq_send")

    # -- statements

    @abstractmethod
    def columns(self, connection: DriverConnection, table: str) -> dict[str, str]:
        """Return the columns of a table with their types, in lower case; empty without a table."""

    @abstractmethod
    def ms_of(self, column: str) -> str:
        """Return SQL for a column of times as ms since 1970, within the range of BIGINT."""

    def text_of(self, column: str) -> str:
        """Return SQL for a column of texts, or of a type that has a text."""
        return column

    @abstractmethod
    def time_of(self, ms: str) -> str:
        """Return SQL for the time of an expression in ms since 1970."""

    @abstractmethod
    def ago(self, ms: int) -> str:
        """Return SQL for the time so many ms ago, by the database's clock."""

    @abstractmethod
    def take(
        self, connection: DriverConnection, table: str, columns: str, condition: str, order: str
    ) -> list[tuple[Any, ...]]:
        """Set the state of rows to 'sending', and return columns of them, the first of which is id.

        Leaves out rows that another transaction has locked. order: an order and a limit.
        """

    @abstractmethod
    def lock(self, connection: DriverConnection, name: str) -> bool:
        """Take a lock until the connection closes. Return False if another connection has it."""

    @abstractmethod
    def watch_over(self, connection: DriverConnection, rest_s: float) -> None:
        """Let the server close the connection within minutes of the end of its client's machine.

        Otherwise it would keep the lock for hours. rest_s: how long a living client asks nothing.
        """

    def break_off(self, driver: Any) -> None:
        """End a connection of the driver, in which another thread waits for the database.

        Does nothing where the driver itself waits only for a time.
        """
        del driver

    # -- announcements, where a database has them

    def announce(self, connection: DriverConnection, channel: str) -> None:
        """Wake those who wait for announcements when the open transaction is committed."""
        del connection, channel

    @contextmanager
    def announcements(self, channel: str) -> Iterator[Callable[[float], bool]]:
        """Yield a function that waits some seconds, and returns True early when it hears one."""
        del channel
        yield sleep


def _state_of(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


def _parts_of(url: str) -> SplitResult:
    """Split a url. Raises InvalidOption, without the url: it may hold a password."""
    try:
        parts = urlsplit(url)
        accepted = _HOST.fullmatch(parts.hostname or "") and "@" not in parts.path
        accepted = accepted and (parts.port is None or parts.port > 0)
    except ValueError:
        accepted = None
    if not accepted:
        raise InvalidOption(
            "The url of an outbox is not accepted. Accepted: a url such as "
            "postgresql://host:5432/shop. Pass user and password separately, or escape special "
            "characters in them, such as %2F for /.",
            name="url",
        )
    return parts


@dataclass(frozen=True)
class Refused:
    """A row of the exceptions table.

    origin: where the message came from, such as a table and an id.
    """

    origin: str
    topic: str | None
    content: str | None
    reason: str


def create_exceptions(connection: Connection, table: str) -> None:
    connection.create(
        table,
        f"CREATE TABLE {table} (refused_at {connection.dialect.time_type}, origin "
        f"VARCHAR({_NAME_LENGTH}), topic VARCHAR({_NAME_LENGTH}), content {connection.text_type}, "
        f"reason VARCHAR({_REASON_LENGTH})){connection.dialect.table_options}",
    )


def insert_exceptions(connection: Connection, table: str, refused: Sequence[Refused]) -> None:
    storable = connection.dialect.storable_text
    connection.run_each(
        f"INSERT INTO {table} (refused_at, origin, topic, content, reason) "
        "VALUES (CURRENT_TIMESTAMP, %s, %s, %s, %s)",
        [
            (
                _cut(row.origin, _NAME_LENGTH),
                _cut(storable(row.topic), _NAME_LENGTH),
                storable(row.content),
                _cut(storable(row.reason), _REASON_LENGTH),
            )
            for row in refused
        ],
    )


def _cut(text: str | None, length: int) -> str | None:
    """Cut a text to a length. A character beyond U+FFFF counts as two, as in databases in Java."""
    return text and text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")
