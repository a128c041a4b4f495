"""A member of a topic: it owns some of the topic's slots, through ZooKeeper.

::

            start            joined              connection gone
      new --------> JOINING --------> JOINED ----------------------> SUSPENDED
                     ^   ^                                            |    |
                     |   +----------------- connected again ----------+    |
                     |                                                     |
                     +--- connected, with a new session -- LOST <----------+
                                                           the session has ended
      any state -- stop --> STOPPED

A member claims only while it is JOINED. While it is SUSPENDED, it may still own its slots, but
cannot know; Redis keeps its claims until their lease expires. A LOST member owns nothing and joins
again under another name. kazoo reports LOST only when it is connected again: from the end of the
session until then, the state is SUSPENDED. When a stopped process (SIGSTOP) continues, its state is
JOINED until kazoo notices that the session has ended. The claim script then refuses its old epoch.

One thread makes all changes in ZooKeeper. After every event, it compares the actual nodes with the
desired ones and creates or deletes the difference. Neither the order of events nor a missed event
matters.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Collection, Container, Iterable, Mapping
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

from rmq_spark.errors import OwnershipError, OwnershipRefused, RmqError, TopicMismatch
from rmq_spark.ownership.nodes import (
    Nodes,
    as_refusal,
    new_client,
    publish,
    read_assignment,
    write_assignment,
)
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.topics.definition import TopicDefinition

_log = logging.getLogger(__name__)

# Wait for members that start together, to balance once instead of several times.
GATHER_S = 0.05
# Compare at least this often, in case a watch is lost.
LOOK_AGAIN_S = 30.0
TRY_AGAIN_S = 0.5
# Out of touch for so many session timeouts, a member accepts a ZooKeeper that has lost its data.
OUT_OF_TOUCH = 2
# Longer than kazoo needs to notice a broken connection, so that its own error comes first.
REPLY_S = 30.0
Assignment = Mapping[str, Iterable[int]]


class State(Enum):
    """The state of a member; the module draws the transitions."""

    JOINING = "joining"
    JOINED = "joined"
    SUSPENDED = "suspended"
    LOST = "lost"
    STOPPED = "stopped"


class Member:
    """A member of a topic, which owns slots for one consumer between start and stop.

    A slot that is assigned to another member is released only in ``between_batches``, when the
    consumer has no claim in flight.
    """

    def __init__(
        self, ensemble: EnsembleOptions, definition: TopicDefinition, topic: str, consumer: str
    ) -> None:
        """Prepare a member, without connecting.

        topic: the topic's name in ZooKeeper: with its key prefix, and its group behind an @.
        consumer: the consumer's name, which other members see.
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
        self._session: int | None = None  # the session in which all below was created
        self._owned: dict[int, int] = {}  # slot -> epoch
        self._leaving: set[int] = set()  # released, but the node may still exist
        self._wanted: frozenset[int] | None = (
            None  # the slots assigned to this member; None: not known
        )
        self._in_doubt = True  # a call failed, but ZooKeeper may have carried it out
        self._members: tuple[str, ...] = ()
        self._failure: RmqError | None = None
        self._suspended_s: float | None = None  # since when; None if it is not
        self._thread = threading.Thread(target=self._run, name="rmq-member", daemon=True)

    # -- called by the consumer

    def start(self) -> "Member":
        """Connect and join. The slots come later, as other members release them."""
        self._client = new_client(self._ensemble)
        try:
            publish(self._client, self._ensemble, self._nodes, self._definition)
        except BaseException:
            self._close()
            raise
        self._client.add_listener(self._connection_changed)
        self._thread.start()
        if self.state is State.STOPPED:  # by another thread
            self._close()
        return self

    def between_batches(self, at_work: Container[int] = ()) -> dict[int, int]:
        """Return the slots to claim from, with their epochs; none unless JOINED.

        Releases the slots that are assigned to other members. at_work: the slots with a claim in
        flight, which are released by a later call.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._state is not State.JOINED or self._wanted is None:
                return {}
            for slot in self._owned.keys() - self._wanted:
                if slot not in at_work:
                    del self._owned[slot]
                    self._leaving.add(slot)
                    self._wake.set()
            return {slot: self._owned[slot] for slot in sorted(self._owned.keys() & self._wanted)}

    def wait_for_slots(self, timeout_s: float) -> bool:
        """Wait until the member owns all slots assigned to it. False: not within timeout_s."""
        with self._changed:
            return self._changed.wait_for(self._has_all, timeout_s)

    def _has_all(self) -> bool:
        if self._failure is not None:
            return True
        return self._state is State.JOINED and self._wanted == frozenset(self._owned) != frozenset()

    @property
    def state(self) -> State:
        with self._lock:
            return self._state

    @property
    def slots_owned(self) -> int:
        with self._lock:
            return len(self._owned)

    @property
    def members(self) -> tuple[str, ...]:
        with self._lock:
            return self._members

    def stop(self) -> None:
        """Leave and free all slots at once. Call this when no claim is in flight."""
        with self._lock:
            self._state = State.STOPPED
            self._owned.clear()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # a session that cannot be closed expires
            self._client.stop()
            self._client.close()

    # -- called by kazoo, in its thread

    def _connection_changed(self, state: str) -> None:
        with self._changed:
            if self._state is State.STOPPED:
                return
            if state == KazooState.LOST:
                self._state = State.LOST
                self._forget()
            elif state == KazooState.SUSPENDED:
                self._state = State.SUSPENDED
                self._suspended_s = time.monotonic()
            else:
                self._state = State.JOINING
                self._suspended_s = None
            self._changed.notify_all()
        self._wake.set()

    def _forget(self) -> None:
        self._session = None
        self._owned.clear()
        self._leaving.clear()
        self._wanted = None

    def _on_change(self, _event: object) -> None:
        self._wake.set()

    # -- the thread that changes ZooKeeper

    def _run(self) -> None:
        known = False
        while self.state is not State.STOPPED:
            if not self._wake.wait(LOOK_AGAIN_S if known else TRY_AGAIN_S):
                self._in_doubt = True
            time.sleep(GATHER_S)
            self._wake.clear()
            self._look_at_connection()
            known = self.state in (State.JOINING, State.JOINED) and self._compare()

    def _look_at_connection(self) -> None:
        """Let a ZooKeeper that has lost its data take this member, if it is out of touch for long.

        A server refuses a client that has seen later changes than the server has, and kazoo would
        try again forever. The session has ended by now, so nothing is left of what it has seen.
        """
        with self._lock:
            since_s, longest_s = self._suspended_s, OUT_OF_TOUCH * self._session_timeout_s
        if since_s is None or time.monotonic() - since_s < longest_s:
            return
        if self._client.last_zxid:
            _log.warning(
                "rmq: member %s of %s is out of touch with ZooKeeper at %s for %.0f s, and takes "
                "no messages meanwhile",
                *(self._name, self._nodes.topic, self._ensemble.servers, longest_s),
            )
        self._client.last_zxid = 0

    @property
    def _session_timeout_s(self) -> float:
        return self._ensemble.session_timeout_ms / 1000

    def _compare(self) -> bool:
        """Bring ZooKeeper and this member to the desired state. False: a step failed."""
        try:
            session = self._join()
            wanted = self._agree(session)
            taken = {
                int(name) for name in self._client.get_children(self._nodes.slots, self._on_change)
            }
            if self._in_doubt:
                self._look_at_all(session, wanted, taken)
            self._delete(session)
            self._note(session, wanted, taken)
            self._take(session, wanted, taken)
            if self._client.client_id[0] != session:
                raise SessionExpiredError  # some of the steps ran in the next session
        except (NoAuthError, InvalidACLError) as error:
            self._fail(as_refusal(self._ensemble, error))
        except NoNodeError:
            self._publish_again()
        except Exception as error:  # the thread must survive: without it, nobody works on the slots
            _log.info("rmq: member %s: %s: %s", self._name, type(error).__name__, error)
        else:
            return True
        self._in_doubt = True
        return False

    def _publish_again(self) -> None:
        _log.warning("rmq: %s is gone from ZooKeeper: it is created again", self._nodes.definition)
        try:
            publish(self._client, self._ensemble, self._nodes, self._definition)
        except (OwnershipRefused, TopicMismatch) as error:
            self._fail(error)
        except OwnershipError as error:  # the next comparison tries again
            _log.info("rmq: member %s: %s", self._name, error)

    def _fail(self, failure: RmqError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _join(self) -> int:
        """Take a new name for each session, and return the session's id."""
        session = int(self._client.client_id[0])
        with self._lock:
            if self._session == session:
                return session
            self._forget()
            self._session = session
        self._name = f"{self._consumer}-{session & (2**64 - 1):x}"
        return session

    def _agree(self, session: int) -> frozenset[int]:
        """Return the slots assigned to this member; balance first if the members have changed."""
        while True:
            members = sorted(self._client.get_children(self._nodes.members, self._on_change))
            if self._in_doubt and self._forget_names(session, members):
                continue
            if self._name not in members:
                self._report()
                continue
            value, stat = self._client.get(self._nodes.assignment, self._on_change)
            shares = read_assignment(value)
            if sorted(shares) != members:
                shares = balance(shares, members, self._definition.slot_amount)
                try:
                    self._client.set(self._nodes.assignment, write_assignment(shares), stat.version)
                except BadVersionError:
                    continue  # another member stored an assignment first
            with self._lock:
                self._members = tuple(members)
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
                self._nodes.member(self._name), json.dumps(about).encode(), ephemeral=True
            )

    def _forget_names(self, session: int, members: Iterable[str]) -> bool:
        """Delete other names of this session, which may have changed before a name was created."""
        others = [name for name in members if name.startswith(f"{self._consumer}-")]
        found = False
        for path in (self._nodes.member(name) for name in others if name != self._name):
            stat = self._client.exists(path)
            if stat is not None and stat.ephemeralOwner == session:
                self._client.delete(path)
                found = True
        return found

    def _look_at_all(self, session: int, wanted: frozenset[int], taken: Iterable[int]) -> None:
        """Find the slot nodes of this session: own those that are wanted, delete the others."""
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
        """Delete the nodes of released slots.

        Checks the owner first: if an earlier reply was lost, the node may be another member's now.
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
        """Become JOINED, and give up slots whose nodes somebody else has deleted."""
        with self._changed:
            if self._session != session or self._state not in (State.JOINING, State.JOINED):
                return
            self._state = State.JOINED
            self._wanted = wanted
            for slot in self._owned.keys() - taken:
                del self._owned[slot]
            self._changed.notify_all()

    def _take(self, session: int, wanted: frozenset[int], taken: set[int]) -> None:
        """Create the nodes of slots that are assigned to this member and free."""
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
        """Own a slot if its node belongs to the session."""
        with self._lock:
            if self._session != session:
                return
            if stat is not None and stat.ephemeralOwner == session:
                self._owned[slot] = stat.czxid
            elif stat is None:
                self._wake.set()  # somebody has just deleted the node: compare again


def balance(before: Assignment, members: Collection[str], slot_amount: int) -> dict[str, list[int]]:
    """Divide all slots among members: no member has two more than another. Slots are sorted.

    before: the previous assignment, possibly of other members. A slot moves only if its member has
    left or has more than its share. The result depends only on the input, so members agree.
    """
    kept = {name: _kept(before.get(name, ()), slot_amount) for name in members}
    share, extra = divmod(slot_amount, len(kept))
    # The members with the most slots keep one more, so that as few slots as possible move.
    by_size = sorted(kept, key=lambda name: (-len(kept[name]), name))
    quotas = {name: share + (at < extra) for at, name in enumerate(by_size)}
    shares = {name: kept[name][: quotas[name]] for name in by_size}
    placed = {slot for slots in shares.values() for slot in slots}
    free = iter(slot for slot in range(slot_amount) if slot not in placed)
    for name in by_size:
        missing = quotas[name] - len(shares[name])
        shares[name] = sorted(shares[name] + [next(free) for _ in range(missing)])
    return shares


def _kept(slots: Iterable[int], slot_amount: int) -> list[int]:
    return sorted(slot for slot in set(slots) if 0 <= slot < slot_amount)
