"""A database that holds an outbox, and connections to it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rmq_spark.errors import InvalidOption, OutboxUnavailable


class Connection:
    """A connection of a driver, of ours or of a user, for statements with ``%s`` for values."""

    def __init__(self, given: Any) -> None:
        self.driver = given

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and return how many rows it changed."""
        with self._cursor(statement, values) as cursor:
            return int(cursor.rowcount)

    def run_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        cursor = self.driver.cursor()
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
        cursor = self.driver.cursor()
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
    # What follows a CREATE TABLE.
    table_options: ClassVar[str] = ""

    def __init__(self, url: str, user: str | None, password: str | None) -> None:
        self.parts: SplitResult = urlsplit(url)
        self.user = unquote(self.parts.username) if self.parts.username else user
        self.password = unquote(self.parts.password) if self.parts.password else password
        self.settings = dict(parse_qsl(self.parts.query))

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
            return Connection(self.open(driver))
        except driver.Error as error:
            raise self.unavailable(error) from error

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the driver within the block into OutboxUnavailable."""
        try:
            yield
        except self._driver().Error as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: BaseException) -> OutboxUnavailable:
        """Return the error for one that the driver raised."""
        text = " ".join(str(error).split())
        if self.password:
            text = text.replace(self.password, "***")
        return OutboxUnavailable(f"The database {self.address} failed: {text}")

    def _driver(self) -> ModuleType:
        try:
            return self.import_driver()
        except ImportError:
            raise InvalidOption(
                f"An outbox at {self.parts.scheme}:// needs the package {self.package}. Install "
                f"it: pip install 'rmq-spark[{self.extra}]'.",
                name="url",
            ) from None

    @staticmethod
    @abstractmethod
    def import_driver() -> ModuleType:
        """Import the driver."""

    @abstractmethod
    def open(self, driver: Any) -> Any:
        """Open a connection of the driver, which commits nothing by itself."""

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
    def begins(self, condition: str, order: str, amount: int, table: str) -> str:
        """Return a statement that makes the first ``amount`` rows that meet a condition 'sending'.

        Rows that another transaction has locked are left out, or waited for.
        """

    @abstractmethod
    def lock(self, connection: Connection, name: str) -> bool:
        """Take a lock until the connection closes. Return False if another connection has it."""

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
