"""Looks at the messages of a queue, part by part, with a bound on what is read at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rmq_spark.client.queue import Queue
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import ClaimRecord
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, Entry, Page, QueueKind

# A page of so many entries holds Redis for less than 0.5 ms, and their requeue for 1 to 2 ms in
# large queues (bench/stalls.py).
ENTRIES_A_READ = 128
# The most entries that one search reads, in about 0.1 s.
ENTRIES_A_SEARCH = 8_000


@dataclass(frozen=True)
class Position:
    """Where a message lies. name: its content, or in a keyed topic its key.

    claim: the name of the claim that holds it; empty in other queues than prepare.
    """

    slot: int
    score: float
    name: bytes
    claim: str = ""


class Found(NamedTuple):
    """The messages that a look has found.

    looked: how many messages it has read. after: where to continue; None at the end of the queue.
    """

    entries: list[tuple[Entry, Position]]
    looked: int
    after: Position | None


# Takes the content of a message (in a keyed topic, its key), and why it died if it is dead.
Wanted = Callable[[bytes, str | None], bool]


def browse(
    queue: Queue,
    kind: QueueKind,
    *,
    slots: Sequence[int] | None = None,
    after: Position | None = None,
    most: int = 50,
    wanted: Wanted | None = None,
    scores: Bounds = UNBOUNDED,
) -> Found:
    """Read up to ``most`` messages of one queue, slot by slot, in the order of their scores.

    slots: None for all. after: the message to continue after. wanted: which messages to return; it
    reads at most ENTRIES_A_SEARCH to find them. Each call to Redis reads at most ENTRIES_A_READ.
    """
    size = min(most, ENTRIES_A_READ) if wanted is None else ENTRIES_A_READ
    found: list[tuple[Entry, Position]] = []
    looked, last = 0, after
    for page in _pages(queue, kind, slots, after, size, scores):
        reasons = page.reasons()
        for at, name in enumerate(page.contents):
            if len(found) == most or (wanted and looked == ENTRIES_A_SEARCH):
                return Found(found, looked, last)
            last = _position(page, at)
            looked += 1
            if wanted is None or wanted(name, reasons[at]):
                found.append((next(page.only([at]).entries()), last))
    return Found(found, looked, None)


def _position(page: Page, at: int) -> Position:
    claim = page.claim.name if page.claim else ""
    return Position(page.slot, page.scores[at], page.contents[at], claim)


class Deaths(NamedTuple):
    """The reasons and times of deaths that a look has found; otherwise as Found."""

    reasons: list[tuple[str, int]]
    after: Position | None


def deaths_from(queue: Queue, after: Position | None) -> Deaths:
    """Read why and when messages died, of up to ENTRIES_A_SEARCH messages after one of them."""
    found: list[tuple[str, int]] = []
    for page in pages_from(queue, QueueKind.DEAD, after):
        reasons = (reason or "" for reason in page.reasons())
        found += zip(reasons, (int(score) for score in page.scores), strict=True)
        if len(found) >= ENTRIES_A_SEARCH:
            return Deaths(found, _position(page, -1))
    return Deaths(found, None)


def pages_from(
    queue: Queue, kind: QueueKind, after: Position | None, scores: Bounds = UNBOUNDED
) -> Iterator[Page]:
    """Yield the rest of a queue after a message, in pages of at most ENTRIES_A_READ."""
    return _pages(queue, kind, None, after, ENTRIES_A_READ, scores)


def _pages(
    queue: Queue,
    kind: QueueKind,
    slots: Sequence[int] | None,
    after: Position | None,
    size: int,
    scores: Bounds,
) -> Iterator[Page]:
    asked = [slot for slot in slots or queue.slots if after is None or slot >= after.slot]
    sizes = queue.ask(reading.sizes, [kind], asked)
    for slot in (slot for slot, held in zip(asked, sizes, strict=True) if held):
        at = after if after is not None and after.slot == slot else None
        if kind is not QueueKind.PREPARE:
            yield from _pages_of_slot(queue, kind, slot, at, size, scores)
            continue
        for claim in _claims_from(queue.ask(reading.records, slot), at):
            begin = at if at is not None and at.claim == claim.name else None
            yield from _pages_of_slot(queue, kind, slot, begin, size, UNBOUNDED, claim)


def _claims_from(claims: Sequence[ClaimRecord], at: Position | None) -> list[ClaimRecord]:
    """Return the claims with messages, from that of a position on; all if that one is gone."""
    names = [claim.name for claim in claims]
    first = names.index(at.claim) if at is not None and at.claim in names else 0
    return [claim for claim in claims[first:] if claim.held]


def _pages_of_slot(
    queue: Queue,
    kind: QueueKind,
    slot: int,
    after: Position | None,
    size: int,
    scores: Bounds,
    claim: ClaimRecord | None = None,
) -> Iterator[Page]:
    at = None if after is None else (after.score, after.name)
    more = True
    while more:
        page, more = queue.ask(reading.page, kind, slot, scores, at, claim, size)
        if not page.contents:
            return
        seen, at = at, (page.scores[-1], page.contents[-1])
        fresh = page if seen is None else page.after(seen)
        if fresh.contents:
            yield fresh


def find_named(queue: Queue, kind: QueueKind, name: bytes) -> list[tuple[Entry, Position]]:
    """Find the messages with a content (in a keyed topic, a key) in all slots of a queue.

    kind: any queue except prepare.
    """
    slots = queue.ask(reading.slots_with, kind, name, queue.slots)
    found = (read_entry(queue, kind, Position(slot, 0, name)) for slot in slots)
    return [one for one in found if one is not None]


def read_entry(queue: Queue, kind: QueueKind, position: Position) -> tuple[Entry, Position] | None:
    """Read one message again; None if the queue does not hold it any more."""
    if kind is not QueueKind.PREPARE:
        page = queue.ask(reading.entry, kind, position.slot, position.name)
        for entry, score in zip(page.entries(), page.scores, strict=True):
            return entry, Position(position.slot, score, position.name)
        return None
    for claim in queue.ask(reading.records, position.slot):
        if claim.name == position.claim:
            return _entry_of_claim(queue, claim, position)
    return None


def _entry_of_claim(
    queue: Queue, claim: ClaimRecord, position: Position
) -> tuple[Entry, Position] | None:
    pages = _pages_of_slot(
        queue, QueueKind.PREPARE, position.slot, None, ENTRIES_A_READ, UNBOUNDED, claim
    )
    for page in pages:
        if position.name in page.contents:
            at = page.contents.index(position.name)
            return list(page.entries())[at], position
    return None
