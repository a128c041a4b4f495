"""A relay: rounds of an outbox, one after another, until it is told to stop."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack

from rmq_spark.errors import OutboxMisused, OutboxUnavailable, ServerError, TopicFull
from rmq_spark.outbox.rounds import Relayed, Rounds
from rmq_spark.outbox.rows import Cleaning
from rmq_spark.process import Runner, UnfailingLog, sleep
from rmq_spark.sql.database import Database, DriverConnection

_log = UnfailingLog(__name__)

# How often to ask for the lock of an outbox at which another relay works.
_LOCK_S = 1.0
# How long run_once waits for it.
_ONCE_S = 10.0
# How often to look for old messages to delete.
_CLEAN_S = 600.0


class Relay(Runner):
    """A relay of one outbox. Of several relays one works; the others wait for it to end or die.

    From ``outbox.relay``. ``run`` relays in this thread. As a context manager, the relay works in a
    thread of its own during the block. Use a relay once; then ask the outbox for another one.
    """

    _name = "the relay of the outbox"
    _passing = (OutboxUnavailable, ServerError, TopicFull)
    _log = _log
    _thread_name = "rmq-outbox"
    _misused = OutboxMisused

    def __init__(
        self,
        database: Database,
        channel: str,
        open_rounds: Callable[[DriverConnection], Rounds],
        look_s: float,
        cleaning: Cleaning | None,
    ) -> None:
        """Prepare a relay; ``Outbox.relay`` does it.

        channel: where new messages are announced. look_s: the wait between two looks at the outbox
        that nobody asked for. cleaning: of old messages, when there is nothing else to do.
        """
        super().__init__()
        self._database = database
        self._channel = channel
        self._open_rounds = open_rounds
        self._look_s = look_s
        self._cleaning = cleaning
        self._cleans_at_s = 0.0
        self._total = Relayed()

    @property
    def total(self) -> Relayed:
        """The sum of all rounds."""
        return self._total

    @property
    def deleted(self) -> int:
        """The number of old messages that were deleted."""
        return 0 if self._cleaning is None else self._cleaning.deleted

    def run_once(self) -> Relayed:
        """Relay until no message is due, and return the sum of all rounds. Raises RmqError.

        If another relay works at the outbox, waits 10 s for its end, and then leaves the messages
        to it.
        """
        with self._alone():
            self._relay(to_the_end=True)
        return self._total

    def _progress(self) -> Relayed:
        return self._total

    def _work(self) -> None:
        self._relay(to_the_end=False)

    def _relay(self, *, to_the_end: bool) -> None:
        with ExitStack() as stack:
            connection = stack.enter_context(self._database.answering())
            self._database.check_session(connection)
            rounds = self._open_rounds(connection)
            self._begun.set()
            if not self._gets_lock(connection, rounds.name, _ONCE_S if to_the_end else math.inf):
                return
            # Before the first round, so that no message is announced in between. Not before the
            # lock: the database keeps announcements that somebody listens to and does not read.
            wait: Callable[[float], bool] = sleep
            if not to_the_end:
                wait = stack.enter_context(self._database.announcements(self._channel))
            while not self._is_over:
                done = rounds.round()
                self._add(done)
                if done.more or self._cleans(connection):
                    continue
                if to_the_end:
                    return
                self._rest(self._look_s, wait)

    def _cleans(self, connection: DriverConnection) -> bool:
        """Delete some old messages if it is time. Return whether there may be more of them."""
        if self._cleaning is None or time.monotonic() < self._cleans_at_s:
            return False
        goes_on = self._cleaning.step(connection)
        if not goes_on:
            self._cleans_at_s = time.monotonic() + _CLEAN_S
        return goes_on

    def _gets_lock(self, connection: DriverConnection, name: str, patience_s: float) -> bool:
        """Wait until no other relay works. Return False after stop, or if it lasts too long."""
        ends_s = time.monotonic() + patience_s
        waits = False
        while not self._locks(connection, name):
            if not waits:
                waits = True
                _log.info("rmq: another relay works at this outbox; this one waits for its end")
            self._rest(_LOCK_S)
            if self._is_over or time.monotonic() > ends_s:
                return False
        _log.info("rmq: relaying the outbox at %s", self._database.address)
        return True

    def _locks(self, connection: DriverConnection, name: str) -> bool:
        with connection.transaction():
            taken = self._database.lock(connection, name)
            if taken:
                self._database.watch_over(connection, self._look_s)
            return taken

    def _add(self, done: Relayed) -> None:
        self._total += done
        if done.sent or done.refused:
            _log.info("rmq: outbox: %d sent, %d refused", done.sent, done.refused)
