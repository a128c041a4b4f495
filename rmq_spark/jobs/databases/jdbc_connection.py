"""A connection to a database: statements, transactions and savepoints."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no types

from rmq_spark.jobs.databases.dialect import Dialect
from rmq_spark.jobs.program import JobFailed
from rmq_spark.outbox.tables import check_name

# java.sql.Connection.TRANSACTION_READ_COMMITTED: every statement sees what is committed when it
# begins. MariaDB would show the state at the first query of the transaction.
_READ_COMMITTED = 2


class Connection:
    """A connection that runs SQL statements, and a context manager that closes it.

    java: a java.sql.Connection. dialect: the SQL dialect of the database. address: the url of the
    database, without the part that may hold secrets.
    """

    def __init__(self, java: Any, dialect: Dialect, address: str) -> None:
        self._java = java
        self.dialect = dialect
        self.address = address
        java.setTransactionIsolation(_READ_COMMITTED)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._java.close()

    def quoted(self, name: str) -> str:
        """Quote the name of a column for a statement."""
        mark = str(self._java.getMetaData().getIdentifierQuoteString())
        return f"{mark}{name.replace(mark, mark + mark)}{mark}"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run statements as one transaction: commit at the end, roll back after an error."""
        self._java.setAutoCommit(False)
        try:
            yield
        except BaseException:
            self._clean_up(self._java.rollback)
            raise
        else:
            self._java.commit()
        finally:
            self._clean_up(lambda: self._java.setAutoCommit(True))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Set a savepoint within a transaction; after an error, roll back to it.

        Raises JobFailed if the savepoint is gone: MariaDB ends the transaction after a deadlock.
        """
        point = self._java.setSavepoint()
        try:
            yield
        except BaseException as error:
            try:
                self._clean_up(lambda: self._java.rollback(point))
            except Py4JJavaError:
                java = getattr(error, "java_exception", None)
                text = java.getMessage() if java else error
                raise JobFailed(f"The database ended the transaction: {text}") from error
            raise
        self._java.releaseSavepoint(point)

    def _clean_up(self, step: Callable[[], None]) -> None:
        """Run a cleanup step, and ignore its error if the connection is gone.

        The database has then rolled back by itself.
        """
        try:
            step()
        except Exception:
            if not self._java.isClosed():
                raise

    def update(self, sql: str, *values: Any) -> int:
        """Run a statement, and return how many rows it changed."""
        with self._prepared(sql, values) as statement:
            return int(statement.executeUpdate())

    def update_each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        with self._prepared(sql, ()) as statement:
            for row in rows:
                self._bind(statement, row)
                statement.addBatch()
            if rows:
                statement.executeBatch()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds. Only for few rows: each value is a call to Java."""
        with self._prepared(sql, values) as statement:
            found = statement.executeQuery()
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getObject(at + 1) for at in range(width)))
            return rows

    def columns(self, table: str) -> dict[str, int]:
        """Return the columns of a table with their java.sql.Types; empty if there is no table.

        The names are spelled as in the database. Raises InvalidOption for a table that needs
        quotes.
        """
        meta = self._java.getMetaData()
        schema, _, name = check_name(table).rpartition(".")
        # Use the case in which the database stores a name without quotes.
        fold: Callable[[str], str] = str
        if meta.storesUpperCaseIdentifiers():
            fold = str.upper
        elif meta.storesLowerCaseIdentifiers():
            fold = str.lower
        of = "TABLE_CAT" if self.dialect.tables_are_in_catalogs else "TABLE_SCHEM"
        here = self._java.getCatalog if of == "TABLE_CAT" else self._java.getSchema
        place = (fold(schema) or here(), fold(name))
        within = (place[0], None) if of == "TABLE_CAT" else (None, place[0])
        found = meta.getColumns(*within, place[1], "%")
        columns = {}
        while found.next():
            # getColumns takes a pattern, in which an underscore matches any character.
            if (found.getString(of), found.getString("TABLE_NAME")) != place:
                continue
            columns[str(found.getString("COLUMN_NAME"))] = int(found.getInt("DATA_TYPE"))
        return columns

    def create(self, table: str, *statements: str) -> None:
        """Create a table with statements in one transaction, unless the table exists.

        Does nothing if another job creates the table at the same time. MariaDB commits each
        statement that creates something.
        """
        if self.columns(table):
            return
        try:
            with self.transaction():
                for statement in statements:
                    self.update(statement)
        except Py4JJavaError:
            if not self.columns(table):
                raise

    @contextmanager
    def _prepared(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        statement = self._java.prepareStatement(sql)
        try:
            self._bind(statement, values)
            yield statement
        finally:
            self._clean_up(statement.close)

    def _bind(self, statement: Any, values: Sequence[Any]) -> None:
        for at, value in enumerate(values, 1):
            if isinstance(value, int):  # py4j passes an int or a long, whichever fits
                statement.setLong(at, value)
            else:
                statement.setString(at, value)
