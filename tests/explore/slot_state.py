"""What a slot holds, with the clock taken out: two slots that act alike from now on are equal.

A due time or a deadline is over or FAR away, a wait is over or lasts. The stamps of the claims are
numbered in the order of the claims' names: a script asks only whether a stamp is in use. Of the
counters, only what a script reads is kept, and whether they balance.
"""

from functools import lru_cache
from typing import NamedTuple

MOST_RETRIES = 16
FAR = float("inf")
NO_PLAN = "-"
ELSEWHERE = "elsewhere"  # a server that no real one is
FAR_MS = 3_600_000  # from now: no call takes that long
LONG_PAST_MS = 1
ENDS = ("merged", "committed", "cancelled", "dead")
KINDS = ("store", "prepare", "retry", "dead", "claims", "first", "consumers", "stats")


class Record(NamedTuple):
    """One claim. stamp: its number, 0 if it is empty. live: its lease has not run out."""

    stamp: int
    run: int
    live: bool
    count: int
    replayed: int = 0


class Header(NamedTuple):
    """mark: of the plan that was left last. here: whether in this life of the server."""

    run: int
    settled: int
    last_seq: int
    last_ordinal: int
    mark: str = NO_PLAN
    here: bool = False


class Slot(NamedTuple):
    """Everything in a slot, sorted."""

    store: tuple = ()  # content, score
    prepare: tuple = ()  # content, stamp, retries left, rank
    retry: tuple = ()  # content, retries left, whether it still waits
    dead: tuple = ()  # content
    claims: tuple = ()  # name, Record
    first: tuple = ()  # name, the text that claim.lua wrote
    headers: tuple = ()  # consumer, Header
    epoch: int = 0
    turn: int = 0  # whether the number of messages claimed so far is odd
    balance: int = 0  # accepted, less what has ended and what is held
    paused: bool = False


class Held(NamedTuple):
    claim: str | None
    left: int
    rank: float


class View:
    """A slot, looked up by content and by claim."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.store = dict(slot.store)
        self.retry = {content: (left, waits) for content, left, waits in slot.retry}
        self.dead = set(slot.dead)
        self.claims: dict[str, Record] = dict(slot.claims)
        by_stamp = {record.stamp: name for name, record in slot.claims if record.stamp}
        self.prepare = {
            content: Held(by_stamp.get(stamp), left, rank)
            for content, stamp, left, rank in slot.prepare
        }
        self._held: dict[str | None, dict[str, int]] = {}
        for content, held in sorted(self.prepare.items(), key=lambda item: item[1].rank):
            self._held.setdefault(held.claim, {})[content] = held.left
        self.waiting = self.store.keys() | self.retry.keys()
        self.anywhere = self.waiting | self.prepare.keys()

    def held(self, name: str) -> dict[str, int]:
        """The contents that a claim holds, in order, and their retries left."""
        return self._held.get(name, {})

    def holders(self) -> set[str]:
        """The consumers that have messages in flight."""
        return {held.claim.split(":")[0] for held in self.prepare.values() if held.claim}


@lru_cache(maxsize=20_000)
def view_of(slot: Slot) -> View:
    return View(slot)


@lru_cache(maxsize=256)  # a slot is put back for many calls in turn
def values_of(slot: Slot, now_ms: int, server_id: str) -> list:
    """The arguments of restore.lua. All claims were made in this second, or moved on from it."""
    second, far = now_ms // 1000, now_ms + FAR_MS
    stamps = {number: second + number - 1 for number in stamps_of(slot)} | {0: 0}
    parts = [
        [v for c, score in slot.store for v in (far if score == FAR else score, c)],
        [
            v
            for c, stamp, left, rank in slot.prepare
            for v in (repr(stamps[stamp] * 1000 + left + rank / 2048), c)
        ],
        [
            v
            for c, left, waits in slot.retry
            for v in ((far if waits else 0) // 1000 * 1000 + left, c)
        ],
        [v for c in slot.dead for v in (LONG_PAST_MS, c)],
        [v for name, record in slot.claims for v in (name, text_of(record, stamps, far))],
        [v for pair in slot.first for v in pair],
        [
            v
            for consumer, header in slot.headers
            for v in (consumer, text_of_header(header, now_ms, server_id))
        ],
        ["accepted", len(slot.store) + len(slot.prepare) + len(slot.retry), "claimed", slot.turn],
    ]
    if slot.epoch:
        parts[6] += ["@epoch", slot.epoch]
    if slot.paused:
        parts[6] += ["@paused", 1]
    return [value for part in parts for value in (len(part), *part)]


def stamps_of(slot: Slot) -> set[int]:
    return {record.stamp for _, record in slot.claims} | {held[1] for held in slot.prepare}


def text_of(record: Record, stamps: dict[int, int], far: int) -> str:
    deadline = far if record.live else LONG_PAST_MS
    fields = (2, stamps[record.stamp], record.run, deadline, record.count, 0, LONG_PAST_MS)
    return " ".join(map(str, (*fields, record.replayed)))


def text_of_header(header: Header, now_ms: int, server_id: str) -> str:
    server = server_id if header.here else ELSEWHERE
    return " ".join(map(str, (*header[:4], now_ms, header.mark, server)))


def header_of(text: bytes, server_id: str) -> Header:
    *numbers, mark, server = text.decode().split()
    return Header(*map(int, numbers[:4]), mark, server == server_id)


def fallen_back(slot: Slot) -> Slot:
    """The same on another server, or in another life of this one."""
    headers = tuple((consumer, header._replace(here=False)) for consumer, header in slot.headers)
    return slot._replace(headers=headers)


def slot_of(dump: list, turns: bool, server_id: str) -> Slot:
    """What dump.lua returned."""
    *held, time = dump
    store, prepare, retry, dead, claims, first, consumers, stats = map(pairs, held)
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    records = sorted((name.decode(), list(map(int, text.split()))) for name, text in claims)
    in_flight = sorted((c.decode(), *in_prepare(float(score))) for c, score in prepare)
    stamps = numbered([fields[1] for _, fields in records] + [held[1] for held in in_flight])
    known = {name.decode(): text for name, text in consumers}
    epoch, paused = int(known.pop("@epoch", 0)), known.pop("@paused", None) is not None
    headers = {name: header_of(text, server_id) for name, text in known.items()}
    counted = {name.decode(): int(number) for name, number in stats}
    held_now = len(store) + len(prepare) + len(retry)
    return Slot(
        store=tuple(sorted((c.decode(), when_due(float(score), now_ms)) for c, score in store)),
        prepare=tuple((c, stamps[stamp], left, rank) for c, stamp, left, rank in in_flight),
        retry=tuple(
            sorted((c.decode(), int(float(s)) % 1000, float(s) > now_ms) for c, s in retry)
        ),
        dead=tuple(sorted(c.decode() for c, _ in dead)),
        claims=tuple(
            (name, Record(stamps[stamp], run, deadline > now_ms, count, replayed))
            for name, (_, stamp, run, deadline, count, _, _, replayed) in records
        ),
        first=tuple(sorted((name.decode(), text) for name, text in first)),
        headers=tuple(sorted(headers.items())),
        epoch=epoch,
        turn=counted.get("claimed", 0) % 2 if turns else 0,
        balance=counted.get("accepted", 0) - sum(counted.get(end, 0) for end in ENDS) - held_now,
        paused=paused,
    )


def pairs(flat: list) -> list:
    return list(zip(flat[::2], flat[1::2], strict=True))


def in_prepare(score: float) -> tuple[int, int, float]:
    """Stamp, retries left and rank of a score in the PrepareQueue."""
    whole = int(score)
    return whole // 1000, whole % 1000, (score - whole) * 2048


def numbered(stamps: list[int]) -> dict[int, int]:
    """1, 2, ... for the stamps in this order; 0 stays what it is."""
    numbers = {0: 0}
    for stamp in stamps:
        numbers.setdefault(stamp, len(numbers))
    return numbers


def when_due(score: float, now_ms: int) -> float:
    return FAR if score > now_ms else score
