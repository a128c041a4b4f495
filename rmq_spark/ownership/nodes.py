"""The nodes in ZooKeeper by which readers share slots, and the kazoo client that reads them."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL

from rmq_spark.errors import OwnershipError, OwnershipRefused, OwnershipUnavailable, TopicMismatch
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.topics.definition import TopicDefinition

# Retry forever, with short waits: nobody works on the slots of a member that is out of touch.
CONNECT_AGAIN = {"max_tries": -1, "delay": 0.1, "max_delay": 1.0}
# The version of the assignment's format. Members replace an assignment of another version.
VERSION = 1


def new_client(options: EnsembleOptions) -> Any:
    """Connect a kazoo client. Raises OwnershipUnavailable within the session timeout.

    With a username, only this user can access the nodes that the client creates.
    """
    login = options.username is not None
    client = KazooClient(
        hosts=options.servers,
        timeout=options.session_timeout_ms / 1000,
        auth_data=[("digest", f"{options.username}:{options.password}")] if login else None,
        default_acl=list(CREATOR_ALL_ACL) if login else None,
        connection_retry=CONNECT_AGAIN,
        use_ssl=options.ssl,
        check_hostname=options.ssl,
        ca=options.ssl_ca_certs,
        certfile=options.ssl_certfile,
        keyfile=options.ssl_keyfile,
        keyfile_password=options.ssl_password,
    )
    try:
        client.start(timeout=options.session_timeout_ms / 1000)
    except KazooTimeoutError:
        raise _unavailable(options) from None
    except KazooException as error:
        client.stop()
        client.close()
        raise as_refusal(options, error) from None
    return client


def _unavailable(options: EnsembleOptions) -> OwnershipUnavailable:
    tls = (
        " With TLS, also check its certificate, which must be valid for the host in "
        "zookeeper.hosts and signed by an authority in zookeeper.sslCaCerts."
        if options.ssl
        else ""
    )
    return OwnershipUnavailable(
        f"ZooKeeper at {options.hosts} did not answer within {options.session_timeout_ms} ms. "
        "Check zookeeper.hosts, and that a majority of the ensemble is running. The log of "
        f"kazoo.client shows each failure to connect.{tls}"
    )


def as_refusal(options: EnsembleOptions, error: Exception) -> OwnershipRefused:
    who = options.username or "nobody (zookeeper.username is not set)"
    return OwnershipRefused(
        f"ZooKeeper at {options.hosts} refuses {options.path} to {who}: {type(error).__name__}. "
        "Check zookeeper.username and zookeeper.password, and that this user may create, read, "
        "write and delete nodes there. Or set another zookeeper.root."
    )


@dataclass(frozen=True)
class Nodes:
    """The paths of one topic (and group) below a root such as ``/rmq``."""

    root: str
    topic: str

    @property
    def definition(self) -> str:
        name = quote(self.topic, safe="@:")
        if not name.strip("."):  # a topic may be named . or .. but a node may not
            name = name.replace(".", "%2E")
        return f"{self.root}/{name}"

    @property
    def members(self) -> str:
        return f"{self.definition}/members"

    def member(self, name: str) -> str:
        return f"{self.members}/{name}"

    @property
    def assignment(self) -> str:
        return f"{self.definition}/assignment"

    @property
    def slots(self) -> str:
        return f"{self.definition}/slots"

    def slot(self, slot: int) -> str:
        return f"{self.slots}/{slot}"


def write_assignment(shares: Mapping[str, Iterable[int]]) -> bytes:
    return json.dumps(
        {"version": VERSION, "members": {name: list(slots) for name, slots in shares.items()}},
        separators=(",", ":"),
        sort_keys=True,
    ).encode()


def read_assignment(value: bytes) -> dict[str, list[int]]:
    """Read the slots of each member; empty for a new node or another version."""
    try:
        fields = json.loads(value)
        if fields["version"] != VERSION:
            return {}
        return {
            str(name): [int(slot) for slot in slots] for name, slots in fields["members"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def publish(
    client: Any, ensemble: EnsembleOptions, nodes: Nodes, definition: TopicDefinition
) -> None:
    """Create a topic's nodes, or update its definition."""
    try:
        with suppress(NodeExistsError):
            client.create(nodes.definition, definition.to_json().encode(), makepath=True)
        _compare(client, nodes, definition)
        for parent in (nodes.members, nodes.slots, nodes.assignment):
            with suppress(NodeExistsError):
                client.create(parent, b"")
    except NoAuthError as error:
        raise as_refusal(ensemble, error) from None
    except KazooException as error:
        raise OwnershipError(
            f"A request to ZooKeeper at {ensemble.hosts} below {ensemble.path} failed: "
            f"{type(error).__name__} {error}. Check its logs, and start the query again."
        ) from None


def _compare(client: Any, nodes: Nodes, definition: TopicDefinition) -> None:
    value, stat = client.get(nodes.definition)
    known = TopicDefinition.from_json(definition.name, value)
    if (known.type, known.slot_amount) != (definition.type, definition.slot_amount):
        raise TopicMismatch(
            f"In ZooKeeper ({nodes.definition}), the topic {definition.name} has the type "
            f"{known.type} and slotAmount={known.slot_amount}, but in Redis the type "
            f"{definition.type} and slotAmount={definition.slot_amount}. If two Redis servers "
            "share this ZooKeeper, give each its own zookeeper.root. If the topic was deleted and "
            "created again, delete that ZooKeeper node with all nodes below it."
        )
    if known != definition:
        with suppress(BadVersionError):  # another member has just updated it
            client.set(nodes.definition, definition.to_json().encode(), stat.version)


@dataclass(frozen=True)
class MemberSeen:
    """A member of a topic, and the slots assigned to it and owned. since: in ISO 8601."""

    name: str
    consumer: str
    host: str
    pid: int
    since: str
    assigned: list[int] = field(default_factory=list)
    owned: list[int] = field(default_factory=list)


def members_seen(client: Any, ensemble: EnsembleOptions, topic: str) -> list[MemberSeen]:
    """Read the members of a topic, sorted by name; none for a topic without readers there.

    topic: its name in ZooKeeper: with its key prefix, and its group behind an @.
    """
    nodes = Nodes(ensemble.path, topic)
    try:
        names = sorted(_children(client, nodes.members))
        assigned = read_assignment(_value(client, nodes.assignment)) if names else {}
        slots = [int(slot) for slot in _children(client, nodes.slots)] if names else []
        owners = {slot: _value(client, nodes.slot(slot)).decode() for slot in sorted(slots)}
        return [
            _member(name, _value(client, nodes.member(name)), assigned, owners) for name in names
        ]
    except NoAuthError as error:
        raise as_refusal(ensemble, error) from None
    except KazooException as error:
        raise OwnershipUnavailable(
            f"ZooKeeper at {ensemble.hosts} does not answer ({type(error).__name__}). Check that a "
            "majority of the ensemble is running."
        ) from None


def _member(
    name: str, value: bytes, assigned: dict[str, list[int]], owners: dict[int, str]
) -> MemberSeen:
    about = json.loads(value or b"{}")
    return MemberSeen(
        name=name,
        consumer=str(about.get("consumer", "")),
        host=str(about.get("host", "")),
        pid=int(about.get("pid", 0)),
        since=str(about.get("since", "")),
        assigned=sorted(assigned.get(name, [])),
        owned=[slot for slot, owner in owners.items() if owner == name],
    )


def _children(client: Any, path: str) -> list[str]:
    try:
        return list(client.get_children(path))
    except NoNodeError:
        return []


def _value(client: Any, path: str) -> bytes:
    """Return the value of a node; empty for one that is gone, such as that of a member."""
    try:
        return bytes(client.get(path)[0])
    except NoNodeError:
        return b""
