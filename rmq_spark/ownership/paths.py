"""What lies where in ZooKeeper, and in which form.

::

    <root>/<topic>                    the topic's definition, JSON
    <root>/<topic>/workers/<worker>   ephemeral: who and where, JSON
    <root>/<topic>/assignment         which slots are whose, JSON; replaced by compare-and-set
    <root>/<topic>/slots/<slot>       ephemeral: the owner's name; its czxid is the epoch

A topic stands there with its key prefix, and a group of consumers behind an @.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

# The form of the assignment; another one is replaced by a new share-out.
VERSION = 1


@dataclass(frozen=True)
class Nodes:
    """The paths of one topic (and group) below a root such as ``/rmq``."""

    root: str
    topic: str

    @property
    def definition(self) -> str:
        """The topic's definition; the parent of all others."""
        name = quote(self.topic, safe="@:")
        if not name.strip("."):  # a topic may be named . or .. but a node may not
            name = name.replace(".", "%2E")
        return f"{self.root}/{name}"

    @property
    def workers(self) -> str:
        """The parent of the workers."""
        return f"{self.definition}/workers"

    def worker(self, name: str) -> str:
        """One worker."""
        return f"{self.workers}/{name}"

    @property
    def assignment(self) -> str:
        """Which slots are whose."""
        return f"{self.definition}/assignment"

    @property
    def slots(self) -> str:
        """The parent of the slots that are owned."""
        return f"{self.definition}/slots"

    def slot(self, slot: int) -> str:
        """One slot that is owned."""
        return f"{self.slots}/{slot}"


def write_assignment(shares: Mapping[str, Iterable[int]]) -> bytes:
    """An assignment as its node holds it."""
    return json.dumps(
        {"version": VERSION, "workers": {name: list(slots) for name, slots in shares.items()}},
        separators=(",", ":"),
        sort_keys=True,
    ).encode()


def read_assignment(value: bytes) -> dict[str, list[int]]:
    """The slots of each worker; none where the node is new, or of another version."""
    try:
        found = json.loads(value)
        if found["version"] != VERSION:
            return {}
        return {
            str(name): [int(slot) for slot in slots] for name, slots in found["workers"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
