"""A relay: rounds of an outbox, one after another, until it is told to stop."""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from rmq_spark.errors import OutboxUnavailable, RmqError, ServerError
from rmq_spark.outbox.databases.database import Connection, Database, Waiter
from rmq_spark.outbox.rounds import Round, Rounds

_log = logging.getLogger(__name__)

# After an error, wait so long, and twice as long after each further one.
_SHORTEST_S, _LONGEST_S = 0.1, 10.0
# How often to ask for the lock of an outbox at which another relay works.
_LOCK_S = 1.0

OpenRounds = Callable[[Connection], Rounds]


class Relay:
    """A relay of one outbox. Of several relays one works; the others wait for it to end or die.

    As a context manager, it relays in a thread of its own during the block. It goes on after errors
    that may pass, and logs them.
    """

    def __init__(
        self, database: Database, channel: str, open_rounds: OpenRounds, look_s: float
    ) -> None:
        """Prepare a relay; ``Outbox.relay`` does it.

        channel: where new messages are announced. look_s: the wait between two looks at the outbox
        that nobody asked for.
        """
        self._database = database
        self._channel = channel
        self._open_rounds = open_rounds
        self._look_s = look_s
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._total = Round()

    @property
    def total(self) -> Round:
        """The sum of all rounds."""
        return self._total

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, name="rmq-outbox", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Let the relay end after its round."""
        self._is_over.set()

    def run(self) -> None:
        """Relay until ``stop``. Raises OutboxMisused, InvalidOption."""
        wait_s = _SHORTEST_S
        while not self._is_over.is_set():
            before = self._total
            try:
                self._work(to_the_end=False)
            except (OutboxUnavailable, ServerError) as error:
                wait_s = _SHORTEST_S if self._total != before else min(2 * wait_s, _LONGEST_S)
                _log.warning("rmq: the outbox waits %.1f s: %s", wait_s, error)
                self._is_over.wait(wait_s)
            except RmqError as error:
                _log.error("rmq: the relay of the outbox has ended: %s", error)
                raise

    def run_once(self) -> Round:
        """Relay until no message is due, and return the sum. Raises RmqError."""
        self._work(to_the_end=True)
        return self._total

    def _work(self, *, to_the_end: bool) -> None:
        """Open connections, wait for the lock, and run rounds."""
        with ExitStack() as stack:
            connection = self._database.connect()
            stack.callback(connection.close)
            rounds = self._open_rounds(connection)
            # Listen before the first round, so that no message is announced in between.
            waiter = Waiter() if to_the_end else self._waiter()
            stack.callback(waiter.close)
            while not self._is_over.is_set() and not self._locks(connection, rounds.name):
                self._is_over.wait(_LOCK_S)
            while not self._is_over.is_set():
                done = rounds.round()
                self._add(done)
                if done.full:
                    continue
                if to_the_end:
                    return
                with self._database.errors():
                    waiter.wait(self._look_s, self._is_over)

    def _waiter(self) -> Waiter:
        with self._database.errors():
            return self._database.waiter(self._channel)

    def _locks(self, connection: Connection, name: str) -> bool:
        with self._database.errors(), connection.transaction():
            return self._database.lock(connection, name)

    def _add(self, done: Round) -> None:
        self._total += done
        if done.sent or done.refused:
            _log.info(
                "rmq: outbox: %d sent, %d of them late, %d refused",
                *(done.sent, done.late, done.refused),
            )
