"""Looks at the messages of a queue, part by part, with a bound on what is read at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rmq_spark.client.queue import Queue, walk
from rmq_spark.protocol import reading
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, Entry, Page, Position, QueueKind

# A page of so many entries holds Redis for less than 0.5 ms, and their requeue for 1 to 2 ms in
# large queues (bench/stalls.py).
ENTRIES_A_READ = 128
# The most entries that one search reads, in about 0.1 s.
ENTRIES_A_SEARCH = 8_000
# A look ends before a message with which it would return more contents and keys than that.
BYTES_A_LOOK = 16 * 2**20
# Takes the content of a message (in a keyed topic, its key), and why it died if it is dead.
Wanted = Callable[[bytes, str | None], bool]


class Found(NamedTuple):
    """What a look has found. looked: how many it read. after: where to continue, or None."""

    entries: list[tuple[Entry, Position]]
    looked: int
    after: Position | None


def browse(
    queue: Queue,
    kind: QueueKind,
    *,
    slots: Sequence[int] | None = None,
    after: Position | None = None,
    most: int = 50,
    wanted: Wanted | None = None,
    name: bytes | None = None,
) -> Found:
    """Read up to ``most`` messages of one queue, slot by slot, in the order of delivery.

    Returns one message, or at most BYTES_A_LOOK. slots: None for all. after: the message to
    continue after. wanted: which messages to return; it reads at most ENTRIES_A_SEARCH to find
    them. name: a content or key; None for all. Each call to Redis reads at most ENTRIES_A_READ.
    """
    size = min(most, ENTRIES_A_READ) if wanted is None else ENTRIES_A_READ
    found: list[tuple[Entry, Position]] = []
    looked, last, left = 0, after, BYTES_A_LOOK
    pages = (
        pages_from(queue, kind, after, slots=slots, size=size)
        if name is None
        else _copies(queue, kind, after, name, slots)
    )
    for page in pages:
        reasons = page.reasons()
        for at, content in enumerate(page.contents):
            if len(found) == most or (wanted and looked == ENTRIES_A_SEARCH):
                return Found(found, looked, last)
            if wanted is None or wanted(content, reasons[at]):
                entry = next(page.only([at]).entries())
                left -= len(entry.content or b"") + len(entry.key or b"")
                if found and left < 0:
                    return Found(found, looked, last)
                found.append((entry, page.position(at)))
            last = page.position(at)
            looked += 1
    return Found(found, looked, None)


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
            return Deaths(found, page.position(-1))
    return Deaths(found, None)


def pages_from(
    queue: Queue,
    kind: QueueKind,
    after: Position | None,
    scores: Bounds = UNBOUNDED,
    *,
    slots: Sequence[int] | None = None,
    size: int | None = None,
) -> Iterator[Page]:
    """Yield the rest of a queue after a message, slot by slot. None: all slots, ENTRIES_A_READ."""
    asked = _slots_from(queue, slots, after)
    sizes = queue.ask(reading.sizes, [kind], asked)
    for slot, held in zip(asked, sizes, strict=True):
        if held:
            at = after if after is not None and after.slot == slot else None
            yield from walk(queue, kind, slot, scores, at, size or ENTRIES_A_READ)


def _slots_from(queue: Queue, slots: Sequence[int] | None, after: Position | None) -> list[int]:
    return [slot for slot in slots or queue.slots if after is None or slot >= after.slot]


def _copies(
    queue: Queue, kind: QueueKind, after: Position | None, name: bytes, slots: Sequence[int] | None
) -> list[Page]:
    """Return the messages of a queue with a content or key, each as a page, from one of them on."""
    found = queue.ask(reading.find, {slot: [name] for slot in _slots_from(queue, slots, after)})
    pages = [page for copies in found for page in copies if page.kind is kind]
    places = [page.position(0) for page in pages]
    return pages[places.index(after) + 1 if after in places else 0 :]


def read_entry(queue: Queue, kind: QueueKind, position: Position) -> tuple[Entry, Position] | None:
    """Read a message of a queue again; None if it has left the queue, or that claim of it."""
    (copies,) = queue.ask(reading.find, {position.slot: [position.name]})
    for page in copies:
        if page.kind is kind and page.position(0).claim == position.claim:
            return next(page.entries()), page.position(0)
    return None
