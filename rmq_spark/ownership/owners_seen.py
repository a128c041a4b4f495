"""What ZooKeeper knows of the readers of a topic, for people who look at it."""

import json
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError

from rmq_spark.errors import OwnershipUnavailable
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.ownership.paths import Nodes, read_assignment
from rmq_spark.ownership.zookeeper import as_refusal


@dataclass(frozen=True)
class MemberSeen:
    """A member of a topic, and the slots that are assigned to it and that it owns.

    since: when it joined, in ISO 8601.
    """

    name: str
    consumer: str
    host: str
    pid: int
    since: str
    assigned: list[int] = field(default_factory=list)
    owned: list[int] = field(default_factory=list)


def members_seen(client: Any, ensemble: EnsembleOptions, topic: str) -> list[MemberSeen]:
    """Read the members of a topic, sorted by name; none for a topic without readers there.

    topic: its name in ZooKeeper: with its key prefix, and its group behind an @. Raises
    OwnershipRefused, OwnershipUnavailable.
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
