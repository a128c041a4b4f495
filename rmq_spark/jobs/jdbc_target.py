"""A table of a database as a relay's target: each batch once, whatever is killed.

Spark writes a batch into a stage: a table with the columns of the target and none of its
constraints. It does so anew where a task was run twice: one that was lost may have written, too.
Then one transaction of the driver does the rest::

    note the batch's number        compare-and-set: a batch that is noted already is left out
    stage -> target                what a constraint refuses is found by halving, with savepoints
    refused -> exceptions table
    commit

Killed before the commit nothing of the batch is in the target; after it all of it is, and the
batch that Spark runs again ends at the first step. A stage belongs to one start of a relay: the
next start of the same checkpoint drops it, so a driver that was thought dead fails.
"""

import uuid
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from rmq_spark.jobs.database import Connection, Database, Refusal, check_name, refusal
from rmq_spark.jobs.exceptions_table import create_exceptions, insert_exceptions
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.refusals import refused_among
from rmq_spark.jobs.targets import NUMBER, RelayBatch

LEDGER = "rmq_relay"
ROW = "rmq_row"
_TRIES = 3
_LAST = 2**63 - 1  # no message has a higher number


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

    def write(self, batch: RelayBatch) -> int:
        """See Target."""
        with self._database.connect() as connection:
            if not self._columns:
                self._begin(connection, batch)
            if self._noted(connection, batch):
                return 0
            refused = self._fill(connection, batch)
            with connection.transaction():
                if not self._note(connection, batch):
                    return 0
                refused |= self._insert(connection, batch)
                insert_exceptions(connection, self._exceptions, batch.exceptions(refused))
        return len(refused)

    def close(self) -> None:
        """See Target."""
        if self._columns:
            with self._database.connect() as connection:
                _drop(connection, self._stage)

    def _begin(self, connection: Connection, batch: RelayBatch) -> None:
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
        # A stage needs no log: its batch is run again if the server dies.
        unlogged = "UNLOGGED " if connection.product == "PostgreSQL" else ""
        connection.update(
            f"CREATE {unlogged}TABLE {self._stage} AS SELECT {', '.join(columns)}, "
            f"CAST(0 AS BIGINT) AS {NUMBER}, CAST('' AS VARCHAR(50)) AS {ROW} "
            f"FROM {self._table} WITH NO DATA"
        )
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

    def _noted(self, connection: Connection, batch: RelayBatch) -> bool:
        """Whether it was written by a run before."""
        noted = f"SELECT batch FROM {self._ledger} WHERE query = ? AND batch >= ?"
        return bool(connection.query(noted, batch.query, batch.batch))

    def _note(self, connection: Connection, batch: RelayBatch) -> bool:
        """Notes it. Returns False where another run has done so; waits for one that is at it."""
        change = f"UPDATE {self._ledger} SET batch = ? WHERE query = ? AND batch < ?"
        return bool(connection.update(change, batch.batch, batch.query, batch.batch))

    def _fill(self, connection: Connection, batch: RelayBatch) -> dict[int, Refusal]:
        """Writes the batch into the stage, and returns what cannot even be written there."""
        for _ in range(_TRIES):
            refused = self._fill_once(connection, batch)
            doubled = f"SELECT count(*) - count(DISTINCT {ROW}) FROM {self._stage}"
            ((too_many,),) = connection.query(doubled)
            if not too_many:
                return refused
        raise JobFailed(
            f"Spark wrote rows twice in each of {_TRIES} tries: executors die, or seem slow. "
            "Nothing of the batch was committed: it comes again."
        )

    def _fill_once(self, connection: Connection, batch: RelayBatch) -> dict[int, Refusal]:
        connection.update(f"TRUNCATE TABLE {self._stage}")
        why = self._staged(batch.shape(batch.messages))
        if why is None:
            return {}
        connection.update(f"TRUNCATE TABLE {self._stage}")  # other tasks may have committed
        return refused_among(
            batch.numbers(),
            # One task is one transaction: all of its rows are staged, or none.
            lambda first, last: self._staged(batch.between(first, last).coalesce(1)),
            batch.most_refused,
        )

    def _staged(self, rows: DataFrame) -> Refusal | None:
        # The same number for a row whenever its task is run.
        rows = rows.withColumn(ROW, sql.concat_ws(":", NUMBER, sql.monotonically_increasing_id()))
        try:
            self._append(rows, self._stage)
        except Exception as error:
            return _refusal_or_raise(self._database.spark, error)
        return None

    def _append(self, rows: DataFrame, table: str) -> None:
        options = {**self._database.options, "dbtable": table}
        rows.write.format("jdbc").options(**options).mode("append").save()

    def _insert(self, connection: Connection, batch: RelayBatch) -> dict[int, Refusal]:
        """Stage -> target. Returns what a constraint refuses."""
        names = ", ".join(self._columns)
        move = (
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {self._stage} "
            f"WHERE {NUMBER} BETWEEN ? AND ? ORDER BY {NUMBER}"
        )

        def attempt(first: int, last: int) -> Refusal | None:
            try:
                with connection.savepoint():
                    connection.update(move, first, last)
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
