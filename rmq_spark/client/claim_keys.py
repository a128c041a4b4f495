"""Claims that the scripts cannot settle: keys without a record, and records of an earlier version.

A claim's key loses its record only by hand. Its messages are then in no queue: nobody sees them.
"""

import re
from collections.abc import Iterable

from rmq_spark.client.queue import Queue
from rmq_spark.protocol import returning
from rmq_spark.protocol.calls import fields_of
from rmq_spark.protocol.claims import RECORD_VERSION
from rmq_spark.transport.server import Server

_CLAIM_NAME = re.compile(r"[^:]+:\d+:\d+")


def claim_keys(server: Server, key_prefix: str) -> list[str]:
    """List the keys of the claims of all topics. Looks through all keys of the database."""
    return list(server.keys_like(f"{_escaped(key_prefix)}prepare_*"))


def stray_claims(queue: Queue, keys: Iterable[str]) -> list[tuple[int, str]]:
    """Find the claims of a consumer group that have a key, but no record. Returns slots and names.

    keys: those that claim_keys lists.
    """
    slots = {queue.keys.claim(slot, ""): slot for slot in queue.slots}
    found = []
    for key in keys:
        beginning, colon, name = _split(key)
        slot = slots.get(beginning + colon)
        if slot is not None and _CLAIM_NAME.fullmatch(name):
            found.append((slot, name))
    known = {slot: set(_records(queue, slot)) for slot in {slot for slot, _ in found}}
    strays = sorted((slot, name) for slot, name in found if name.encode() not in known[slot])
    # A claim that was committed in the meantime has lost its key as well.
    return [
        (slot, name)
        for slot, name in strays
        if queue.server.command("EXISTS", queue.keys.claim(slot, name))
    ]


def give_back_strays(queue: Queue) -> int:
    """Give back the messages of all stray claims, as if nobody had got them. Return how many."""
    strays = stray_claims(queue, claim_keys(queue.server, queue.key_prefix))
    return sum(queue.ask(returning.give_back_claims, strays).values())


def outdated_claims(queue: Queue) -> int:
    """Count the claims that another version of rmq-spark has made."""
    return sum(
        text.split()[0] != RECORD_VERSION
        for slot in queue.slots
        for text in _records(queue, slot).values()
    )


def _records(queue: Queue, slot: int) -> dict[bytes, bytes]:
    return dict(fields_of(queue.server.command("HGETALL", queue.keys.claims(slot))))


def _split(key: str) -> tuple[str, str, str]:
    """Split a key into its slot's part, a colon, and the name of a claim, which has two colons."""
    parts = key.rsplit(":", 3)
    return (parts[0], ":", ":".join(parts[1:])) if len(parts) == 4 else (key, "", "")


def _escaped(text: str) -> str:
    """Escape a text for a pattern of SCAN."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
