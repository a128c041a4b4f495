"""What operators do with the messages of a queue, without claiming them.

They cancel, requeue and purge messages, and give back what consumers will not commit.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmq_spark.client import staging
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol import returning, sending
from rmq_spark.protocol.calls import Request, fields_of
from rmq_spark.protocol.pages import Page, QueueKind
from rmq_spark.redis.server import Server
from rmq_spark.topics.keys import DEFAULT_GROUP

if TYPE_CHECKING:  # its methods call this module
    from rmq_spark.client.queue import Queue

# The messages of each slot, by their contents, or in a keyed topic by their keys.
Names = Mapping[int, Sequence[bytes]]
_CLAIM_NAME = re.compile(r"[^:]+:\d+:\d+")


def requeue(queue: "Queue", names: Names, score: int) -> int:
    """Requeue dead messages as first deliveries. Return how many were dead.

    score: theirs in the store (messages.requeue_score).
    """
    pairs = {
        slot: [v for name in of_slot for v in (score, name)] for slot, of_slot in names.items()
    }
    return queue.ask(sending.requeue, pairs)


def purge(
    queue: "Queue",
    kind: QueueKind,
    names: Names,
    scores: Mapping[int, Sequence[float]] | None = None,
) -> int:
    """Delete messages from one queue for good. Return how many were there.

    scores: those of the messages; one whose score has changed meanwhile (it died again, or was sent
    again) then stays. None deletes messages of any score. Raises InvalidOption.
    """
    if kind is QueueKind.PREPARE:
        raise InvalidOption("Messages that a consumer holds cannot be deleted.")
    pairs = {
        slot: [
            value
            for pair in zip(scores[slot] if scores else [""] * len(of_slot), of_slot, strict=True)
            for value in pair
        ]
        for slot, of_slot in names.items()
    }
    return queue.ask(sending.purge, pairs, kind)


def requeue_page(queue: "Queue", page: Page, score: int) -> int:
    """Requeue the messages of a page of the dead queue. Return how many were still dead."""
    return requeue(queue, {page.slot: page.contents}, score)


def purge_page(queue: "Queue", page: Page) -> int:
    """Delete the messages of a page that have not changed. Return how many these were."""
    return purge(queue, page.kind, {page.slot: page.contents}, {page.slot: page.scores})


class Swept(NamedTuple):
    """The number of messages that were given back, and of dead ones that were deleted."""

    given_back: int
    forgotten: int


def sweep(queue: "Queue", slots: Iterable[int] | None = None) -> Swept:
    """Do what Queue.expire does. Return also how many dead messages were deleted."""
    asked = list(queue.slots if slots is None else slots)
    for slot in asked:
        queue.definition.check_slot(slot)
    # By a retention that is longer now, less must be deleted.
    forgotten = queue.ask(returning.forget, asked) if queue.refresh() else 0
    staging.forget(queue, asked)
    return Swept(queue.ask(returning.expire, asked), forgotten)


# A claim's key loses its record only by hand. Its messages are then in no queue: nobody sees them.


def claim_keys(server: Server, key_prefix: str) -> list[str]:
    """List the keys of the claims of all topics. Looks through all keys of the database."""
    escaped = re.sub(r"([*?\[\]\\])", r"\\\1", key_prefix)  # for a pattern of SCAN
    return list(server.keys_like(f"{escaped}prepare_*"))


def queues_with_strays(server: Server, key_prefix: str, queues: Iterable["Queue"]) -> list["Queue"]:
    """Return those of the queues of all topics that have claims without a record."""
    prefix = re.escape(key_prefix)
    of_queue = re.compile(rf"{prefix}prepare_\{{{prefix}(.+)_\d+\}}(?:@(.+))?")
    found: dict[tuple[str, str], list[str]] = {}
    for key in claim_keys(server, key_prefix):
        if match := of_queue.fullmatch(_split(key)[0]):
            found.setdefault((match[1], match[2] or DEFAULT_GROUP), []).append(key)
    return [
        queue
        for queue in queues
        if stray_claims(queue, found.get((queue.keys.topic, queue.keys.group), ()))
    ]


def stray_claims(queue: "Queue", keys: Sequence[str]) -> list[tuple[int, str]]:
    """Find the claims of a consumer group that have a key, but no record. Returns slots and names.

    keys: those that claim_keys lists.
    """
    slots = {queue.keys.claim(slot, "")[:-1]: slot for slot in queue.slots} if keys else {}
    found = []
    for key in keys:
        beginning, name = _split(key)
        slot = slots.get(beginning)
        if slot is not None and _CLAIM_NAME.fullmatch(name):
            found.append((slot, name))
    holding = sorted({slot for slot, _ in found})
    known = {
        slot: {name for name, _ in fields}
        for slot, fields in zip(holding, _records(queue, holding), strict=True)
    }
    strays = sorted((slot, name) for slot, name in found if name.encode() not in known[slot])
    # A claim that was committed in the meantime has lost its key as well.
    return [
        (slot, name)
        for slot, name in strays
        if queue.server.command("EXISTS", queue.keys.claim(slot, name))
    ]


def give_back_strays(queue: "Queue") -> int:
    """Give back the messages of all stray claims, as if nobody had got them. Return how many."""
    strays = stray_claims(queue, claim_keys(queue.server, queue.key_prefix))
    return sum(queue.ask(returning.give_back_claims, strays).values())


def _records(queue: "Queue", slots: Sequence[int]) -> list[list[tuple[bytes, bytes]]]:
    reads = [("HGETALL", queue.keys.claims(slot)) for slot in slots]
    return queue.server.ask(Request(reads, lambda replies: list(map(fields_of, replies))))


def _split(key: str) -> tuple[str, str]:
    """Split a key into its slot's part and the name of a claim, which has two colons."""
    parts = key.rsplit(":", 3)
    return (parts[0], ":".join(parts[1:])) if len(parts) == 4 else (key, "")
