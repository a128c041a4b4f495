"""The ZooKeeper nodes of a topic: their paths and their contents.

::

    <root>/<topic>                    the topic's definition, JSON
    <root>/<topic>/members/<member>   ephemeral: the member's consumer, host and pid, JSON
    <root>/<topic>/assignment         the slots of each member, JSON; replaced by compare-and-set
    <root>/<topic>/slots/<slot>       ephemeral: the owner's name; its czxid is the epoch

``<topic>`` includes the key prefix, and the consumer group behind an @.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

# The version of the assignment's format. Members replace an assignment of another version.
VERSION = 1


@dataclass(frozen=True)
class Nodes:
    """The paths of one topic (and group) below a root such as ``/rmq``."""

    root: str
    topic: str

    @property
    def definition(self) -> str:
        """The path of the topic's definition, the parent of all other nodes."""
        name = quote(self.topic, safe="@:")
        if not name.strip("."):  # a topic may be named . or .. but a node may not
            name = name.replace(".", "%2E")
        return f"{self.root}/{name}"

    @property
    def members(self) -> str:
        """The path of the parent of the members."""
        return f"{self.definition}/members"

    def member(self, name: str) -> str:
        """Return the path of a member."""
        return f"{self.members}/{name}"

    @property
    def assignment(self) -> str:
        """The path of the assignment."""
        return f"{self.definition}/assignment"

    @property
    def slots(self) -> str:
        """The path of the parent of the owned slots."""
        return f"{self.definition}/slots"

    def slot(self, slot: int) -> str:
        """Return the path of an owned slot."""
        return f"{self.slots}/{slot}"


def write_assignment(shares: Mapping[str, Iterable[int]]) -> bytes:
    """Write an assignment as its node stores it."""
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
