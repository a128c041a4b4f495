"""One worker of a topic: which slots are its own, as ZooKeeper says.

::

            start            joined              connection gone
      new --------> JOINING --------> MEMBER ----------------------> SUSPENDED
                     ^   ^                                            |    |
                     |   +----------------- connected again ----------+    |
                     |                                                     |
                     +--- connected, with a new session -- LOST <----------+
                                                           the session has ended
      any state -- stop --> STOPPED

Only a MEMBER claims. SUSPENDED it may still be the owner, but cannot know; what it has claimed
stays its own, as Redis keeps it for its lease. LOST it owns nothing: it joins again by another
name. kazoo tells LOST only when it is connected again, so between the end of the session and that
moment the state is SUSPENDED. A process that was stopped (SIGSTOP) takes itself for a MEMBER when
it goes on, until kazoo has looked: the claim script then knows better, by the epoch.

One thread does all that changes ZooKeeper. It compares what is there with what should be there,
whenever anything has changed, and makes what is missing; so it does not matter in which order
things happen, nor which of them it misses.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable
from enum import Enum
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState

from rmq_spark.errors import OwnershipError
from rmq_spark.ownership.balance import balance
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.ownership.paths import Nodes, read_assignment, write_assignment
from rmq_spark.ownership.registry import publish
from rmq_spark.ownership.zookeeper import as_refusal, new_client
from rmq_spark.topics.definition import TopicDefinition

_log = logging.getLogger(__name__)

# Workers that come together are seen together: one share-out instead of several.
GATHER_S = 0.05
# Nothing is known to get lost between the watches and us; if it does, this mends it.
LOOK_AGAIN_S = 30.0
TRY_AGAIN_S = 0.5
# A reply that does not come means that the connection is gone, which kazoo finds out by itself.
REPLY_S = 30.0


class State(Enum):
    """How a worker stands with ZooKeeper."""

    JOINING = "joining"
    MEMBER = "member"
    SUSPENDED = "suspended"
    LOST = "lost"
    STOPPED = "stopped"


class Worker:
    """Owns slots of a topic for one consumer, between start and stop.

    A slot that others are to have stays until the worker says that nothing of it is in flight,
    by ``between_batches``.
    """

    def __init__(
        self, ensemble: EnsembleOptions, definition: TopicDefinition, topic: str, consumer: str
    ) -> None:
        """Connects to nothing yet.

        topic: as it is named in ZooKeeper: with its key prefix, and its group behind an @.
        consumer: what others are told about who this is.
        """
        self._ensemble = ensemble
        self._definition = definition
        self._nodes = Nodes(ensemble.path, topic)
        self._consumer = consumer
        self._name = ""
        self._client: Any = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._state = State.JOINING
        self._session: int | None = None  # of the connection in which all below was made
        self._owned: dict[int, int] = {}  # slot -> epoch
        self._leaving: set[int] = set()  # let go, but the node is not known to be deleted
        self._wanted: frozenset[int] | None = None  # assigned to us; None: not known
        self._in_doubt = True  # a call failed: what it did, only ZooKeeper knows
        self._workers: tuple[str, ...] = ()
        self._failure: OwnershipError | None = None
        self._thread = threading.Thread(target=self._run, name="rmq-worker", daemon=True)

    # -- what its user calls

    def start(self) -> "Worker":
        """Connects and joins; slots follow as others let go of them.

        Raises OwnershipUnavailable, OwnershipRefused, TopicMismatch.
        """
        self._client = new_client(self._ensemble)
        try:
            publish(self._client, self._ensemble, self._nodes, self._definition)
        except BaseException:
            self._close()
            raise
        self._client.add_listener(self._connection_changed)
        self._thread.start()
        return self

    def between_batches(self) -> dict[int, int]:
        """The slots that may be claimed from now, with their epochs; none unless a MEMBER.

        To be called when nothing that was claimed is in work any more: slots that others are to
        have are let go now. Raises OwnershipRefused when ZooKeeper does not let us go on.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._state is not State.MEMBER or self._wanted is None:
                return {}
            for slot in self._owned.keys() - self._wanted:
                del self._owned[slot]
                self._leaving.add(slot)
                self._wake.set()
            return dict(sorted(self._owned.items()))

    def wait_for_slots(self, timeout_s: float) -> bool:
        """Waits until slots are assigned to it and all of them its own. False: not in that time."""
        with self._changed:
            return self._changed.wait_for(self._has_all, timeout_s)

    def _has_all(self) -> bool:
        if self._failure is not None:
            return True
        return self._state is State.MEMBER and self._wanted == frozenset(self._owned) != frozenset()

    @property
    def state(self) -> State:
        """How it stands with ZooKeeper."""
        with self._lock:
            return self._state

    @property
    def slots_owned(self) -> int:
        """How many slots are its own, whether it may claim now or not."""
        with self._lock:
            return len(self._owned)

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of all workers of the topic, as they were seen last."""
        with self._lock:
            return self._workers

    def stop(self) -> None:
        """Leaves: all its slots are free at once. To be called when nothing is in work."""
        with self._lock:
            self._state = State.STOPPED
            self._owned.clear()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # a session that cannot be closed ends by itself
            self._client.stop()
            self._client.close()

    # -- told by kazoo, in its thread

    def _connection_changed(self, state: str) -> None:
        with self._changed:
            if self._state is State.STOPPED:
                return
            if state == KazooState.LOST:
                self._state = State.LOST
                self._forget()
            elif state == KazooState.SUSPENDED:
                self._state = State.SUSPENDED
            else:
                self._state = State.JOINING
            self._changed.notify_all()
        self._wake.set()

    def _forget(self) -> None:
        self._session = None
        self._owned.clear()
        self._leaving.clear()
        self._wanted = None

    def _look(self, _event: object) -> None:
        self._wake.set()

    # -- the thread

    def _run(self) -> None:
        known = False
        while self.state is not State.STOPPED:
            if not self._wake.wait(LOOK_AGAIN_S if known else TRY_AGAIN_S):
                self._in_doubt = True
            time.sleep(GATHER_S)
            self._wake.clear()
            known = self.state in (State.JOINING, State.MEMBER) and self._compare()

    def _compare(self) -> bool:
        """Makes ZooKeeper and us what they should be. False: that did not succeed."""
        try:
            session = self._join()
            wanted = self._agree(session)
            taken = {int(name) for name in self._client.get_children(self._nodes.slots, self._look)}
            if self._in_doubt:
                self._look_at_all(session, wanted, taken)
            self._delete(session)
            self._note(session, wanted, taken)
            self._take(session, wanted, taken)
            if self._client.client_id[0] != session:
                raise SessionExpiredError  # some of this was done in the next one
        except (NoAuthError, InvalidACLError) as error:
            self._fail(as_refusal(self._ensemble, error))
        except Exception as error:  # without this thread our slots would be nobody's
            _log.info("rmq: worker %s: %s: %s", self._name, type(error).__name__, error)
        else:
            return True
        self._in_doubt = True
        return False

    def _fail(self, failure: OwnershipError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _join(self) -> int:
        """Takes a name for each session: who comes back with a new one is somebody else."""
        session = int(self._client.client_id[0])
        with self._lock:
            if self._session == session:
                return session
            self._forget()
            self._session = session
        self._name = f"{self._consumer}-{session & (2**64 - 1):x}"
        return session

    def _agree(self, session: int) -> frozenset[int]:
        """The slots that are to be ours. Shares them out anew if others are there than before."""
        while True:
            workers = sorted(self._client.get_children(self._nodes.workers, self._look))
            if self._in_doubt and self._forget_names(session, workers):
                continue
            if self._name not in workers:
                self._report()
                continue
            value, stat = self._client.get(self._nodes.assignment, self._look)
            shares = read_assignment(value)
            if sorted(shares) != workers:
                shares = balance(shares, workers, self._definition.slot_amount)
                try:
                    self._client.set(self._nodes.assignment, write_assignment(shares), stat.version)
                except BadVersionError:
                    continue  # somebody else was faster
            with self._lock:
                self._workers = tuple(workers)
            return frozenset(shares.get(self._name, ()))

    def _report(self) -> None:
        about = {
            "consumer": self._consumer,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with contextlib.suppress(NodeExistsError):
            self._client.create(
                self._nodes.worker(self._name), json.dumps(about).encode(), ephemeral=True
            )

    def _forget_names(self, session: int, workers: Iterable[str]) -> bool:
        """Deletes other names that this session has reported itself by; whether there were any.

        A session may end, and the next one begin, between two calls of the one before.
        """
        others = [name for name in workers if name.startswith(f"{self._consumer}-")]
        found = False
        for path in (self._nodes.worker(name) for name in others if name != self._name):
            stat = self._client.exists(path)
            if stat is not None and stat.ephemeralOwner == session:
                self._client.delete(path)
                found = True
        return found

    def _look_at_all(self, session: int, wanted: frozenset[int], taken: Iterable[int]) -> None:
        """Finds out which slots' nodes are ours: to be owned if they are wanted, else deleted."""
        asked = [(slot, self._client.exists_async(self._nodes.slot(slot))) for slot in taken]
        stats = [(slot, reply.get(timeout=REPLY_S)) for slot, reply in asked]
        ours = {s: stat.czxid for s, stat in stats if stat and stat.ephemeralOwner == session}
        with self._lock:
            if self._session != session:
                return
            unknown = ours.keys() - self._owned.keys()
            self._leaving |= unknown - wanted
            self._owned = {
                slot: epoch
                for slot, epoch in ours.items()
                if slot not in self._leaving and (slot in wanted or slot in self._owned)
            }
            self._in_doubt = False

    def _delete(self, session: int) -> None:
        """Deletes the nodes of slots that were let go.

        A reply may have been lost: then a node of the same name is another's by now.
        """
        with self._lock:
            leaving = sorted(self._leaving)
        looked = [(slot, self._client.exists_async(self._nodes.slot(slot))) for slot in leaving]
        stats = [(slot, reply.get(timeout=REPLY_S)) for slot, reply in looked]
        ours = [slot for slot, stat in stats if stat and stat.ephemeralOwner == session]
        for reply in [self._client.delete_async(self._nodes.slot(slot)) for slot in ours]:
            with contextlib.suppress(NoNodeError):
                reply.get(timeout=REPLY_S)
        with self._lock:
            if self._session == session:
                self._leaving.difference_update(leaving)

    def _note(self, session: int, wanted: frozenset[int], taken: set[int]) -> None:
        """From now on a MEMBER. What somebody else has deleted is not ours any more."""
        with self._changed:
            if self._session != session or self._state not in (State.JOINING, State.MEMBER):
                return
            self._state = State.MEMBER
            self._wanted = wanted
            for slot in self._owned.keys() - taken:
                del self._owned[slot]
            self._changed.notify_all()

    def _take(self, session: int, wanted: frozenset[int], taken: set[int]) -> None:
        """Makes the nodes of slots that are to be ours and nobody's yet."""
        with self._lock:
            missing = sorted(wanted - self._owned.keys() - self._leaving)
            free = [slot for slot in missing if slot not in taken]
        replies = [
            (
                slot,
                self._client.create_async(
                    self._nodes.slot(slot), self._name.encode(), ephemeral=True, include_data=True
                ),
            )
            for slot in free
        ]
        for slot, reply in replies:
            try:
                stat = reply.get(timeout=REPLY_S)[1]
            except NodeExistsError:
                stat = self._client.exists(self._nodes.slot(slot))
            self._got(session, slot, stat)
        with self._changed:
            self._changed.notify_all()

    def _got(self, session: int, slot: int, stat: Any) -> None:
        """A slot's node was made, or there already: it is ours if our session made it."""
        with self._lock:
            if self._session != session:
                return
            if stat is not None and stat.ephemeralOwner == session:
                self._owned[slot] = stat.czxid
            elif stat is None:
                self._wake.set()  # deleted a moment ago: it is free
