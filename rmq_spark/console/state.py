"""What all pages of the console share: the connections, the last look, and what is remembered."""

import hashlib
import hmac
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rmq_spark.client.broker import Broker
from rmq_spark.client.ownership import topic_in_zookeeper
from rmq_spark.client.queue import Queue
from rmq_spark.console.auth import ConsoleSettings, Sessions
from rmq_spark.console.jobs import BulkJobs
from rmq_spark.errors import InvalidOption, OwnershipError, RmqError
from rmq_spark.inspect.checks import Finding, check_server
from rmq_spark.inspect.figures import Rates, Row, Shared, look
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.protocol.pages import Position, QueueKind
from rmq_spark.redis.permissions import Role
from rmq_spark.topics.definition import parse_group
from rmq_spark.topics.reasons import class_of, public_class_of

if TYPE_CHECKING:
    from rmq_spark.ownership.nodes import MemberSeen

NOTES_KEPT = 200
# How many messages of lists are remembered at most, and how many bytes of contents and keys.
MESSAGES_REMEMBERED = 50_000
BYTES_REMEMBERED = 64 * 2**20
_T = TypeVar("_T")
# Pages that ask within this time share an answer.
MEMBERS_S = 3.0
# A ZooKeeper that did not answer is not asked again for so long: each attempt makes a page wait.
REST_S = 20.0
# Pages that ask within this time share one look at all topics.
LOOK_S = 3.0
# What the checks look at changes seldom.
CHECK_S = 60.0
RATES_KEPT = 300


class Latest(Generic[_T]):
    """The latest things, each by a name. most, most_bytes: how many, and how large they may be."""

    def __init__(self, most: int, most_bytes: int = 0) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._known: OrderedDict[str, tuple[_T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: str, thing: _T, size: int = 0) -> str:
        with self._lock:
            if name not in self._known:
                self._known[name] = thing, size
                self._bytes += size
            self._known.move_to_end(name)
            # The last one stays, however large it is.
            while len(self._known) > 1 and self._is_full():
                self._bytes -= self._known.popitem(last=False)[1][1]
        return name

    def _is_full(self) -> bool:
        return self._bytes > self._most_bytes or len(self._known) > self._most

    def find(self, name: str) -> _T | None:
        with self._lock:
            return self._known.get(name, (None, 0))[0]


class Note(NamedTuple):
    """A sentence for a user. failed: whether it says why a change was refused."""

    text: str
    failed: bool = False


class Notes(Latest[Note]):
    """The latest notes. An address names one, so that nobody can put words on a page."""

    def __init__(self) -> None:
        super().__init__(NOTES_KEPT)

    def keep(self, note: Note) -> str:
        return self.add(secrets.token_urlsafe(9), note)


class References(Latest[Position]):
    """The messages that pages have listed, by a name for each.

    A content may be long, and may be a secret: it must not stand in an address. So a message is
    named by a digest with a key of this process, and found by that name as long as it is
    remembered. The messages listed first are forgotten first.
    """

    def __init__(self) -> None:
        super().__init__(MESSAGES_REMEMBERED, BYTES_REMEMBERED)
        self._key = secrets.token_bytes(32)

    def name(self, queue: Queue, kind: QueueKind, position: Position) -> str:
        of_queue = (queue.keys.topic, queue.keys.group, kind.value)
        place = (*of_queue, position.slot, f"{position.score:.17g}", position.claim)
        text = "\n".join(map(str, place)).encode() + b"\n" + position.name
        reference = hmac.new(self._key, text, hashlib.sha256).hexdigest()[:32]
        return self.add(reference, position, len(position.name))


class LastingEnsemble:
    """A ZooKeeper that many requests share."""

    def __init__(self, options: EnsembleOptions) -> None:
        self.options = options
        self._client: Any = None
        self._failed: tuple[float, OwnershipError] | None = None
        self._known: dict[str, tuple[float, list[MemberSeen]]] = {}
        self._lock = threading.Lock()

    def members(self, queue: Queue) -> "list[MemberSeen]":
        topic = topic_in_zookeeper(queue)
        with self._lock:
            read_s, members = self._known.get(topic, (0.0, []))
            if read_s and time.monotonic() - read_s < MEMBERS_S:
                return members
            if self._failed and time.monotonic() - self._failed[0] < REST_S:
                raise self._failed[1]
            try:
                members = self._read(topic)
            except OwnershipError as error:
                self._failed = time.monotonic(), error
                raise
            self._known[topic] = time.monotonic(), members
            return members

    def _read(self, topic: str) -> "list[MemberSeen]":
        try:
            from rmq_spark.ownership.nodes import members_seen, new_client
        except ModuleNotFoundError as error:
            raise InvalidOption(
                f"zookeeper.hosts needs the package {error.name}: "
                "pip install 'rmq-spark[zookeeper]'"
            ) from None
        if self._client is None:
            self._client = new_client(self.options)
        return members_seen(self._client, self.options, topic)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.stop()
                self._client.close()


class Console:
    """What the pages share. connect: connects to Redis. ensemble: the ZooKeeper to look at."""

    def __init__(
        self,
        settings: ConsoleSettings,
        connect: Callable[[], Broker],
        ensemble: EnsembleOptions | None = None,
    ) -> None:
        self.settings = settings
        self.ensemble = None if ensemble is None else LastingEnsemble(ensemble)
        self._connect = connect
        self._connected: Broker | None = None
        self._broker = Shared(self._connect_now, math.inf)
        self.sessions = Sessions()
        self.references = References()
        self.notes = Notes()
        self.class_of = public_class_of if settings.hide_contents else class_of
        self.jobs = BulkJobs(self.class_of)
        self.rates = Rates(RATES_KEPT, LOOK_S / 2)
        self._look = Shared(self._look_now, LOOK_S)
        self._check = Shared(self._check_now, CHECK_S)

    @property
    def broker(self) -> Broker:
        """The broker, connected at the first call that succeeds."""
        return self._broker.get()

    def _connect_now(self) -> Broker:
        self._connected = self._connect()
        return self._connected

    def queue(self, topic: str, group: str | None) -> Queue:
        queue = self.broker.queue(topic, group=parse_group(group) if group else None)
        return queue.of_group(queue.keys.group)  # the first one, if there is no default group

    def look(self) -> tuple[list[Row], list[dict[str, str]]]:
        """Return the state of all topics, at most LOOK_S old, and the groups that have none."""
        return self._look.get()

    def _look_now(self) -> tuple[list[Row], list[dict[str, str]]]:
        unreadable: list[dict[str, str]] = []

        def note(topic: str, group: str, error: RmqError) -> None:
            unreadable.append({"topic": topic, "group": group, "reason": str(error)})

        rows = look(self.broker, failed=note)
        self.rates.note_all(rows)
        return rows, unreadable

    def findings(self) -> list[Finding]:
        """Return what the checks of the server have found, at most CHECK_S ago."""
        return self._check.get()

    def _check_now(self) -> list[Finding]:
        role = Role.ALL if self.settings.allow_changes else Role.READER
        return list(check_server(self.broker, role))

    def changed(self) -> None:
        """Look again at the next request, because a user has changed something."""
        self._look.forget()

    def close(self) -> None:
        self.jobs.stop_all()
        if self._connected is not None:
            self._connected.close()
        if self.ensemble is not None:
            self.ensemble.close()
