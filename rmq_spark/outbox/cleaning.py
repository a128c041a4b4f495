"""The cleaning of an outbox: messages that were sent long ago are deleted."""

from collections.abc import Sequence

from rmq_spark.errors import OutboxMisused
from rmq_spark.outbox.databases.sql_database import (
    IDS_A_STATEMENT,
    Connection,
    Database,
    among,
)
from rmq_spark.outbox.tables import Tables, check_table
from rmq_spark.protocol.chunks import chunks

# States of messages that nobody waits for any more.
DONE = ("sent", "delivered")
# States of messages that were sent, or never will be.
ENDED = (*DONE, "dead", "refused")
# So many rows are looked at in one step, which takes some 10 ms.
_ROWS_A_STEP = 10_000
_BEFORE_ALL = -(2**63)


class Cleaning:
    """Deletes messages in steps along the primary key, so that nothing waits for it for long.

    older_ms: messages that were sent so many ms ago are old. states: only messages in these states
    are deleted.
    """

    def __init__(
        self, database: Database, tables: Tables, older_ms: int, states: Sequence[str] = DONE
    ) -> None:
        self._database = database
        self._tables = tables
        self._table = tables.messages
        self._older_ms = older_ms
        self._states = tuple(states)
        self._last = _BEFORE_ALL
        self._is_checked = False
        self.deleted = 0

    def step(self, connection: Connection) -> bool:
        """Look at the next rows, and delete the old ones among them.

        Returns False at the end of the table; the next step then starts again at the beginning.
        Raises OutboxUnavailable, and OutboxMisused for a table without sent_at.
        """
        with self._database.errors(), connection.transaction():
            self._check(connection)
            ((top,),) = connection.query(
                f"SELECT max(id) FROM (SELECT id FROM {self._table} WHERE id > {self._last} "
                f"ORDER BY id LIMIT {_ROWS_A_STEP}) AS step"
            )
            if top is None:
                self._last = _BEFORE_ALL
                return False
            done = f"state IN ({', '.join(['%s'] * len(self._states))})"
            # Found first and deleted then: a DELETE would wait for rows that others have locked.
            old = connection.query(
                f"SELECT id FROM {self._table} WHERE id > {self._last} AND id <= {top} "
                f"AND {done} AND sent_at < {self._database.ago(self._older_ms)}",
                self._states,
            )
            for some in chunks([number for (number,) in old], IDS_A_STATEMENT):
                self.deleted += connection.run(
                    f"DELETE FROM {self._table} WHERE {among(some)} AND {done}", self._states
                )
            self._last = int(top)
        return True

    def _check(self, connection: Connection) -> None:
        if self._is_checked:
            return
        if "sent_at" not in check_table(self._database, connection, self._tables):
            raise OutboxMisused(
                f"The table {self._table} has no column sent_at, which shows when "
                "a message was sent. Add the column, or delete messages by columns of your own."
            )
        self._is_checked = True
