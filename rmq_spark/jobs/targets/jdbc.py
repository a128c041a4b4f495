"""The target jdbc of an export: a table to which each batch is written exactly once.

Spark writes a batch into a stage: a table with the columns of the target but without its
constraints. Then one transaction of the driver does the rest::

    note the batch's number        compare-and-set: a batch that is noted already is skipped
    stage -> target                halving, with savepoints, finds rows that a constraint refuses
    look for duplicate rows        a task that Spark considered lost may have written, too
    refused -> exceptions table
    commit

An export that is killed before the commit leaves nothing of the batch in the target. After the
commit all of the batch is there, and the first step skips a replay. If there are duplicate rows,
the transaction is rolled back and the stage is filled again. The check comes last so that it sees
all duplicates. A stage belongs to one run of an export; the next run with the same checkpoint drops
it.
"""

import uuid
from contextlib import suppress

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.targets.base import (
    LAST,
    NUMBER,
    ExportBatch,
    Place,
    Refusal,
    Target,
    refusal,
    refused_among,
)
from rmq_spark.sql.database import check_name, create_exceptions, insert_exceptions
from rmq_spark.sql.jdbc import JdbcConnection, JdbcDatabase

LEDGER = "rmq_export"
# Columns of the stage. ROW identifies a row, whichever task writes it. Rows of earlier attempts are
# ignored, because a late task may still write them.
ATTEMPT, ROW = "rmq_attempt", "rmq_row"
_TRIES = 3
# Options of Spark for the tables that it creates, in lower case.
_SHAPE_OF_TABLE = {"createtableoptions", "createtablecolumntypes"}


class _DuplicateRows(Exception):
    """The exception for a stage that holds duplicate rows."""


class JdbcTarget(Target):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._table = check_name(place.options["dbtable"])
        check_name(place.exceptions)
        self._database = JdbcDatabase(place.spark, place.options)
        # Both are in the target's schema, where the user can probably create tables.
        schema, dot, _ = self._table.rpartition(".")
        self._ledger = f"{schema}{dot}{LEDGER}"
        self._stage = f"{schema}{dot}rmq_stage_{uuid.uuid4().hex[:12]}"
        self._columns: list[str] = []
        self._attempt = 0

    def write(self, batch: ExportBatch) -> int:
        with self._database.connect() as connection:
            if not self._columns:
                self._begin(connection, batch)
            for _ in range(_TRIES):
                if self._noted(connection, batch):
                    return 0
                # Not TRUNCATE, which would wait for the transaction of a lost task.
                connection.run(f"DELETE FROM {self._stage}")
                refused = self._fill(batch)
                with suppress(_DuplicateRows):
                    return self._commit(connection, batch, refused)
        raise JobFailed(
            f"Spark wrote duplicate rows in each of {_TRIES} tries, because executors die or seem "
            "lost. Nothing of the batch was committed. Start the export again to repeat it."
        )

    def close(self) -> None:
        if self._columns:
            with self._database.connect() as connection:
                _drop(connection, self._stage)

    def _begin(self, connection: JdbcConnection, batch: ExportBatch) -> None:
        rows = batch.shape(batch.messages)
        if not connection.columns(self._table):
            self._create(connection, rows.drop(NUMBER))
        columns = self._columns_of(connection, rows)
        create_exceptions(connection, self.place.exceptions)
        connection.create(
            self._ledger,
            f"CREATE TABLE {self._ledger} "
            "(query VARCHAR(36) PRIMARY KEY, batch BIGINT, stage VARCHAR(300))"
            f"{connection.dialect.table_options}",
        )
        dialect = connection.dialect
        tables = (self._table, self.place.exceptions, self._ledger)
        unsafe = [dialect.unsafe_session(connection)]
        unsafe += [dialect.unsafe_table(connection, table) for table in tables]
        for why in filter(None, unsafe):
            raise JobFailed(why)
        found = connection.query(
            f"SELECT stage FROM {self._ledger} WHERE query = %s", [batch.query]
        )
        if found:
            _drop(connection, found[0][0])
            change = f"UPDATE {self._ledger} SET stage = %s WHERE query = %s"
            connection.run(change, [self._stage, batch.query])
        else:
            change = f"INSERT INTO {self._ledger} VALUES (%s, -1, %s)"
            connection.run(change, [batch.query, self._stage])
        own = {NUMBER: "BIGINT", ATTEMPT: "BIGINT", ROW: "VARCHAR(50)"}
        connection.run(dialect.create_empty_copy(self._stage, self._table, columns, own))
        index = f"{self._stage.rpartition('.')[2]}_number"
        connection.run(f"CREATE INDEX {index} ON {self._stage} ({NUMBER})")
        self._columns = columns

    def _create(self, connection: JdbcConnection, rows: DataFrame) -> None:
        """Create the target. Spark chooses the types, unless the dialect has better ones."""
        given = {name.lower() for name in self._database.options}
        dialect = connection.dialect
        if not dialect.own_types or given & _SHAPE_OF_TABLE:
            self._append(rows.limit(0), self._table)
            return
        columns = ", ".join(
            f"{connection.quoted(name)} {self._database.type_of(kind)}"
            for name, kind in rows.dtypes
        )
        connection.create(
            self._table, f"CREATE TABLE {self._table} ({columns}){dialect.table_options}"
        )

    def _columns_of(self, connection: JdbcConnection, rows: DataFrame) -> list[str]:
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

    def _noted(self, connection: JdbcConnection, batch: ExportBatch) -> bool:
        noted = f"SELECT batch FROM {self._ledger} WHERE query = %s AND batch >= %s"
        return bool(connection.query(noted, [batch.query, batch.batch]))

    def _note(self, connection: JdbcConnection, batch: ExportBatch) -> bool:
        """Note the batch, and return True; False if another run has noted it.

        Waits for a run that is just noting it.
        """
        change = f"UPDATE {self._ledger} SET batch = %s WHERE query = %s AND batch < %s"
        return bool(connection.run(change, [batch.batch, batch.query, batch.batch]))

    def _fill(self, batch: ExportBatch) -> dict[int, Refusal]:
        """Write the batch into the stage. Return the messages that fail even there."""
        self._attempt += 1
        rows = batch.shape(batch.messages)
        why = self._staged(rows, sql.monotonically_increasing_id())
        if why is None:
            return {}
        self._attempt += 1  # tasks of the failed write may have committed
        of_message = Window.partitionBy(NUMBER).orderBy(NUMBER)

        def attempt(first: int, last: int) -> Refusal | None:
            # One task is one transaction, so either all rows are staged or no row is.
            rows = batch.between(first, last).coalesce(1)
            return self._staged(rows, sql.row_number().over(of_message))

        return refused_among(batch, attempt)

    def _staged(self, rows: DataFrame, place: Column) -> Refusal | None:
        """Append rows to the stage. Return the reason if they can never be written.

        place: unique to a row, and the same when its task is run again.
        """
        rows = rows.withColumn(ROW, sql.concat_ws(":", NUMBER, place))
        rows = rows.withColumn(ATTEMPT, sql.lit(self._attempt).cast("long"))
        try:
            self._append(rows, self._stage)
        except Exception as error:
            return self._refusal(error)
        return None

    def _append(self, rows: DataFrame, table: str) -> None:
        options = {**self._database.options, "dbtable": table}
        rows.write.format("jdbc").options(**options).mode("append").save()

    def _commit(
        self, connection: JdbcConnection, batch: ExportBatch, refused: dict[int, Refusal]
    ) -> int:
        with connection.transaction():
            if not self._note(connection, batch):
                if self._noted(connection, batch):
                    return 0
                raise JobFailed(
                    f"The row of the query {batch.query} in {self._ledger} is gone: somebody "
                    f"deleted it while the export ran. Nothing of batch {batch.batch} was written. "
                    "Start the export again: it adds the row, and writes the batch."
                )
            refused = refused | self._insert(connection, batch)
            ((too_many,),) = connection.query(
                f"SELECT count(*) - count(DISTINCT {ROW}) FROM {self._stage} WHERE {ATTEMPT} = %s",
                [self._attempt],
            )
            if too_many:
                raise _DuplicateRows
            insert_exceptions(connection, self.place.exceptions, batch.refuse(refused))
        return len(refused)

    def _insert(self, connection: JdbcConnection, batch: ExportBatch) -> dict[int, Refusal]:
        names = ", ".join(self._columns)
        move = (
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {self._stage} "
            f"WHERE {ATTEMPT} = %s AND {NUMBER} BETWEEN %s AND %s ORDER BY {NUMBER}"
        )

        def attempt(first: int, last: int) -> Refusal | None:
            try:
                with connection.savepoint():
                    connection.run(move, [self._attempt, first, last])
            except Exception as error:
                return self._refusal(error)
            return None

        if attempt(0, LAST) is None:
            return {}
        return refused_among(batch, attempt)

    def _refusal(self, error: Exception) -> Refusal:
        return refusal(self.place.spark, error, self._database.dialect)


def _drop(connection: JdbcConnection, table: str) -> None:
    if connection.columns(table):
        connection.run(f"DROP TABLE {table}")
