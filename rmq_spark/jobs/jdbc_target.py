"""A table of a database as an export's target: each batch once, whatever is killed.

Spark writes a batch into a stage: a table with the columns of the target and none of its
constraints. Then one transaction of the driver does the rest::

    note the batch's number        compare-and-set: a batch that is noted already is left out
    stage -> target                what a constraint refuses is found by halving, with savepoints
    look for rows that are twice   a task that was thought lost may have written, too
    refused -> exceptions table
    commit

Killed before the commit nothing of the batch is in the target; after it all of it is, and the
batch that Spark runs again ends at the first step. Where rows were there twice all is undone, and
the stage filled anew: looked for last they are seen whenever they came. A stage belongs to one
start of an export; the next start of the same checkpoint drops it.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from rmq_spark.jobs.database import Connection, Database, Refusal, check_name, refusal
from rmq_spark.jobs.outbox.exceptions_table import create_exceptions, insert_exceptions
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.refusals import refused_among
from rmq_spark.jobs.sql_dialects import create_empty_copy
from rmq_spark.jobs.targets import NUMBER, ExportBatch

LEDGER = "rmq_export"
# Beside the columns of the target. A row of the stage has the same ROW whenever a task writes it;
# rows of an earlier attempt, which a task of it may still bring, count for nothing.
ATTEMPT, ROW = "rmq_attempt", "rmq_row"
_TRIES = 3
_LAST = 2**63 - 1  # no message has a higher number


class _RanTwice(Exception):
    """The stage holds rows twice."""


class JdbcTarget:
    """One table. options: of Spark's format jdbc. exceptions: a table of the same database."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], exceptions: str) -> None:
        self._table = check_name(options["dbtable"])
        self._exceptions = check_name(exceptions)
        self._database = Database(spark, options)
        # Beside the target: where it may be written, tables may be made.
        schema, dot, _ = self._table.rpartition(".")
        self._ledger = f"{schema}{dot}{LEDGER}"
        self._stage = f"{schema}{dot}rmq_stage_{uuid.uuid4().hex[:12]}"
        self._columns: list[str] = []
        self._attempt = 0

    def write(self, batch: ExportBatch) -> int:
        """See Target."""
        with self._database.connect() as connection:
            if not self._columns:
                self._begin(connection, batch)
            for _ in range(_TRIES):
                if self._noted(connection, batch):
                    return 0
                # TRUNCATE would wait for a lost task's transaction.
                connection.update(f"DELETE FROM {self._stage}")
                refused = self._fill(batch)
                with suppress(_RanTwice):
                    return self._commit(connection, batch, refused)
        raise JobFailed(
            f"Spark wrote rows twice in each of {_TRIES} tries: executors die, or seem slow. "
            "Nothing of the batch was committed: it comes again."
        )

    def close(self) -> None:
        """See Target."""
        if self._columns:
            with self._database.connect() as connection:
                _drop(connection, self._stage)

    def _begin(self, connection: Connection, batch: ExportBatch) -> None:
        """Makes the tables that are missing, and a stage in place of the last start's."""
        rows = batch.shape(batch.messages)
        if not connection.columns(self._table):
            self._append(rows.drop(NUMBER).limit(0), self._table)
        columns = self._columns_of(connection, rows)
        create_exceptions(connection, self._exceptions)
        connection.create(
            self._ledger,
            f"CREATE TABLE {self._ledger} "
            "(query VARCHAR(36) PRIMARY KEY, batch BIGINT, stage VARCHAR(300))",
        )
        found = connection.query(
            f"SELECT stage FROM {self._ledger} WHERE query = ?",
            batch.query,
        )
        if found:
            _drop(connection, found[0][0])
            change = f"UPDATE {self._ledger} SET stage = ? WHERE query = ?"
            connection.update(change, self._stage, batch.query)
        else:
            change = f"INSERT INTO {self._ledger} VALUES (?, -1, ?)"
            connection.update(change, batch.query, self._stage)
        own = (
            f"CAST(0 AS BIGINT) AS {NUMBER}",
            f"CAST(0 AS BIGINT) AS {ATTEMPT}",
            f"CAST('' AS VARCHAR(50)) AS {ROW}",
        )
        connection.update(create_empty_copy(self._stage, self._table, [*columns, *own]))
        index = f"{self._stage.rpartition('.')[2]}_number"
        connection.update(f"CREATE INDEX {index} ON {self._stage} ({NUMBER})")
        self._columns = columns

    def _columns_of(self, connection: Connection, rows: DataFrame) -> list[str]:
        """The target's columns that are written, in quotes. Raises JobFailed for one it lacks."""
        there = {name.lower(): name for name in connection.columns(self._table)}
        wanted = [name for name in rows.columns if name != NUMBER]
        for name in wanted:
            if name.lower() not in there:
                raise JobFailed(
                    f"The table {self._table} has no column {name}. It has "
                    f"{', '.join(there.values())}: choose and name them with --select, such as "
                    "--select 'content AS text'."
                )
        return [connection.quoted(there[name.lower()]) for name in wanted]

    def _noted(self, connection: Connection, batch: ExportBatch) -> bool:
        """Whether it was written by a run before."""
        noted = f"SELECT batch FROM {self._ledger} WHERE query = ? AND batch >= ?"
        return bool(connection.query(noted, batch.query, batch.batch))

    def _note(self, connection: Connection, batch: ExportBatch) -> bool:
        """Notes it. Returns False where another run has done so; waits for one that is at it."""
        change = f"UPDATE {self._ledger} SET batch = ? WHERE query = ? AND batch < ?"
        return bool(connection.update(change, batch.batch, batch.query, batch.batch))

    def _fill(self, batch: ExportBatch) -> dict[int, Refusal]:
        """Writes the batch into the stage, and returns what cannot even be written there."""
        self._attempt += 1
        rows = batch.shape(batch.messages)
        why = self._staged(rows, sql.monotonically_increasing_id())
        if why is None:
            return {}
        self._attempt += 1  # other tasks may have committed
        of_message = Window.partitionBy(NUMBER).orderBy(NUMBER)

        def attempt(first: int, last: int) -> Refusal | None:
            # One task is one transaction: all of its rows are staged, or none.
            rows = batch.between(first, last).coalesce(1)
            return self._staged(rows, sql.row_number().over(of_message))

        return refused_among(batch.numbers(), attempt, batch.most_refused)

    def _staged(self, rows: DataFrame, place: Column) -> Refusal | None:
        """place: the same for a row whenever its task is run, and another for each other one."""
        rows = rows.withColumn(ROW, sql.concat_ws(":", NUMBER, place))
        rows = rows.withColumn(ATTEMPT, sql.lit(self._attempt).cast("long"))
        try:
            self._append(rows, self._stage)
        except Exception as error:
            return _refusal_or_raise(self._database.spark, error)
        return None

    def _append(self, rows: DataFrame, table: str) -> None:
        options = {**self._database.options, "dbtable": table}
        rows.write.format("jdbc").options(**options).mode("append").save()

    def _commit(
        self, connection: Connection, batch: ExportBatch, refused: dict[int, Refusal]
    ) -> int:
        """Stage -> target, but what is refused already. Returns how many messages are.

        Raises _RanTwice, and then has changed nothing.
        """
        with connection.transaction():
            if not self._note(connection, batch):
                return 0
            refused = refused | self._insert(connection, batch)
            ((too_many,),) = connection.query(
                f"SELECT count(*) - count(DISTINCT {ROW}) FROM {self._stage} WHERE {ATTEMPT} = ?",
                self._attempt,
            )
            if too_many:
                raise _RanTwice
            insert_exceptions(connection, self._exceptions, batch.exceptions(refused))
        return len(refused)

    def _insert(self, connection: Connection, batch: ExportBatch) -> dict[int, Refusal]:
        """Stage -> target. Returns what a constraint refuses."""
        names = ", ".join(self._columns)
        move = (
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {self._stage} "
            f"WHERE {ATTEMPT} = ? AND {NUMBER} BETWEEN ? AND ? ORDER BY {NUMBER}"
        )

        def attempt(first: int, last: int) -> Refusal | None:
            try:
                with connection.savepoint():
                    connection.update(move, self._attempt, first, last)
            except Exception as error:
                return _refusal_or_raise(self._database.spark, error)
            return None

        if attempt(0, _LAST) is None:
            return {}
        return refused_among(batch.numbers(), attempt, batch.most_refused)


def _refusal_or_raise(spark: SparkSession, error: Exception) -> Refusal:
    why = refusal(spark, error)
    if why is None:
        raise error
    return why


def _drop(connection: Connection, table: str) -> None:
    if connection.columns(table):
        connection.update(f"DROP TABLE {table}")
