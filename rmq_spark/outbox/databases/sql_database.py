"""A database that holds an outbox, and connections to it."""

import inspect
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rmq_spark.errors import (
    InvalidMessage,
    InvalidOption,
    OutboxMisused,
    OutboxUnavailable,
    RmqError,
)

# A name or an address. Anything else may be part of a password.
_HOST = re.compile(r"[A-Za-z0-9._:-]*")


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


# With more, MariaDB turns IN into a join, for which it may read the whole table.
IDS_A_STATEMENT = 1000


def among(ids: Iterable[int]) -> str:
    """Return a condition for rows with these ids."""
    return f"id IN ({', '.join(str(int(each)) for each in ids) or 'NULL'})"


def ids_not_unique(table: str) -> OutboxMisused:
    """Return the error for a table in which two messages have one id, or one has none."""
    return OutboxMisused(
        f"{table} has messages with the same id, or without one. Make id its primary key. Nothing "
        "was sent."
    )


def no_transaction(why: str = ".") -> OutboxMisused:
    """Return the error for a connection on which each statement commits by itself."""
    return OutboxMisused(
        f"send needs an open transaction{why} Switch autocommit off, or begin one. Nothing was "
        "inserted."
    )


class Connection:
    """A connection of a driver, of ours or of a user, for statements with ``%s`` for values.

    cursor: opens a cursor of it whose rows are tuples.
    """

    def __init__(self, given: Any, cursor: Callable[[Any], Any]) -> None:
        self.driver = given
        self._new_cursor = cursor

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and return how many rows it changed."""
        with self._cursor(statement, values) as cursor:
            return int(cursor.rowcount)

    def run_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        cursor = self._new_cursor(self.driver)
        try:
            cursor.executemany(statement, rows)
        finally:
            cursor.close()

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        with self._cursor(statement, values) as cursor:
            return list(cursor.fetchall())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block does; roll back after an error."""
        try:
            yield
        except BaseException:
            self.roll_back()
            raise
        self.driver.commit()

    def roll_back(self) -> None:
        """Roll back, if the connection is still there: the database does it otherwise."""
        with suppress(Exception):
            self.driver.rollback()

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self.driver.close()

    @contextmanager
    def _cursor(self, statement: str, values: Sequence[Any]) -> Iterator[Any]:
        cursor = self._new_cursor(self.driver)
        try:
            cursor.execute(statement, tuple(values) or None)
            yield cursor
        finally:
            cursor.close()


class Database(ABC):
    """A database, and the statements in which it differs from others.

    The repr and all errors show its address without the user and the password.
    """

    schemes: ClassVar[tuple[str, ...]]
    # The package that has the driver, and the extra of rmq-spark that installs it.
    package: ClassVar[str]
    extra: ClassVar[str]
    # How often to look for new messages that nobody announces.
    look_s: ClassVar[float]
    text_type: ClassVar[str]
    time_type: ClassVar[str]
    id_type: ClassVar[str]
    binary_types: ClassVar[tuple[str, ...]]
    # The indexes by which the relay finds messages: the end of the name, and what it holds.
    indexes: ClassVar[dict[str, str]] = {"due": "(state, fixed_time, id)"}
    # The first and last times that a column of time_type holds, in ms since 1970.
    times_ms: ClassVar[tuple[int, int]]
    # What follows a CREATE TABLE.
    table_options: ClassVar[str] = ""

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
        """The name of the database on its server."""
        return unquote(self.parts.path.lstrip("/"))

    def connect(self) -> Connection:
        """Open a connection. Raises OutboxUnavailable, and InvalidOption without the driver."""
        driver = self._driver()
        try:
            return Connection(self._open(driver), self.cursor)
        except driver.Error as error:
            raise self._unavailable(error) from error
        except (TypeError, ValueError) as error:
            raise InvalidOption(
                f"The settings {', '.join(self.settings)} in the url of {self.address} are not "
                f"accepted by {self.package}: {error}",
                name="url",
            ) from error

    def connection_of(self, given: Any) -> Connection:
        """Return the connection that a user has opened. Raises InvalidOption for anything else."""
        is_async = inspect.iscoroutinefunction(getattr(given, "commit", None))
        if is_async or not (hasattr(given, "cursor") and hasattr(given, "commit")):
            raise InvalidOption(
                f"The connection is a {type(given).__module__}.{type(given).__name__}. Accepted: "
                f"a connection of {self.package} that is not asynchronous. In SQLAlchemy, that is "
                "session.connection().connection.driver_connection.",
                name="connection",
            )
        return Connection(given, self.cursor)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the driver within the block into OutboxUnavailable."""
        try:
            yield
        except self._driver().Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> OutboxUnavailable:
        """Return the error for one that the driver raised."""
        text = " ".join(str(error).split())
        if self.password:
            text = text.replace(self.password, "***")
        return OutboxUnavailable(f"The database {self.address} failed: {text}")

    def _driver(self) -> ModuleType:
        try:
            return self._import_driver()
        except ImportError:
            raise InvalidOption(
                f"An outbox at {self.parts.scheme}:// needs the package {self.package}. Install "
                f"it: pip install 'rmq-spark[{self.extra}]'.",
                name="url",
            ) from None

    @staticmethod
    @abstractmethod
    def _import_driver() -> ModuleType:
        """Import the driver."""

    @abstractmethod
    def _open(self, driver: Any) -> Any:
        """Open a connection of the driver, which commits nothing by itself."""

    @staticmethod
    @abstractmethod
    def cursor(connection: Any) -> Any:
        """Open a cursor of the driver whose rows are tuples."""

    @contextmanager
    def inserting(self, connection: Connection) -> Iterator[None]:
        """Insert within the block: all or nothing, and values as they are.

        Raises InvalidMessage for what the database does not take, and OutboxMisused without a
        transaction. Other errors of the driver are passed on.
        """
        driver = self._driver()
        try:
            connection.run("SAVEPOINT rmq_send")
        except driver.Error as error:
            raise no_transaction(f": {error}") from error
        try:
            yield
        except BaseException as error:
            with suppress(Exception):
                connection.run("ROLLBACK TO SAVEPOINT rmq_send")
            not_taken = (driver.DataError, driver.ProgrammingError, TypeError, ValueError)
            if isinstance(error, not_taken) and not isinstance(error, RmqError):
                text = " ".join(str(error).split())
                raise InvalidMessage(
                    f"The database does not take the messages: {text}. Nothing was inserted."
                ) from error
            raise
        connection.run("RELEASE SAVEPOINT rmq_send")

    @abstractmethod
    def columns(self, connection: Connection, table: str) -> dict[str, str]:
        """Return the columns of a table with their types, in lower case; empty without a table."""

    def why_unsafe(self, connection: Connection, table: str) -> str | None:
        """Return why a table cannot hold an outbox, and the remedy; None if it can."""
        return None

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
        self, connection: Connection, table: str, columns: str, condition: str, order: str
    ) -> list[tuple[Any, ...]]:
        """Set the state of rows to 'sending', and return columns of them, the first of which is id.

        Leaves out rows that another transaction has locked. order: an order and a limit.
        """

    @abstractmethod
    def lock(self, connection: Connection, name: str) -> bool:
        """Take a lock until the connection closes. Return False if another connection has it."""

    @abstractmethod
    def watch_over(self, connection: Connection, rest_s: float) -> None:
        """Let the server close the connection within minutes of the end of its client's machine.

        Otherwise it would keep the lock for hours. rest_s: how long a living client asks nothing.
        """

    @abstractmethod
    def announce(self, connection: Connection, channel: str) -> None:
        """Wake relays when the open transaction is committed, if the database can do so."""

    def waiter(self, channel: str) -> "Waiter":
        """Return what waits for ``announce``."""
        del channel
        return Waiter()


class Waiter:
    """Waits between two looks at an outbox that announces nothing."""

    def wait(self, seconds: float) -> bool:
        """Wait for so long. Return True at once when new messages are announced."""
        time.sleep(seconds)
        return False

    def close(self) -> None:
        """Close what it holds."""
