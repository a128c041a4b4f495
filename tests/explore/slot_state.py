"""What a slot holds, with the clock taken out: two slots that act alike from now on are equal.

A due time or a deadline is over or FAR away, a wait is over or lasts. When a claim was made is left
out, and how many retries it moved. Of the counters, only what a script reads is kept, and whether
they balance.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import floor
from typing import NamedTuple

from rmq_spark.protocol.bodies import Body, PackedBodies
from rmq_spark.protocol.pages import Death
from rmq_spark.topics.definition import TopicDefinition

MOST_RETRIES = 16
FAR = float("inf")
NO_PLAN = "-"
ELSEWHERE = "elsewhere"  # a server that no real one is
REQUEUED = b"~"
FAR_MS = 3_600_000  # from now: no call takes that long
LONG_PAST_MS = 1
LOST_MS = 2  # the deadline of a claim that is over, and that its consumer did not give up
# Of suspects: their level times this, and their deliveries left, is their score without its sign.
A_LEVEL = 32
SUSPECTS = {1: 256, 2: 16, 3: 1, 4: 1}  # by level: how many of them a claim takes
ALONE = 4
ENDS = ("merged", "committed", "cancelled", "dead", "expired")
# The keys of a slot, in the order of restore.lua and dump.lua; behind them those of the claims, and
# in a keyed topic the hash of bodies and those of the claims' bodies.
KINDS = ("store", "retry", "dead", "part", "deaths", "claims", "consumers", "stats")
# A record's fields, as records.lua writes them.
VERSION, MADE, RUN, DEADLINE, SEALED, HELD, MOVED, MAX_RETRIES, CHARGED, REPLAYED, ARRIVALS = range(
    11
)


def level_of(score: float) -> int:
    return int(-score // A_LEVEL) if score < 0 else 0


def deliveries_of(score: float) -> int:
    """Of a message that was delivered before."""
    return int(-score % A_LEVEL if score < 0 else score)


def after_wait(score: int) -> int:
    """The score for the store of a message in the retry queue."""
    return -score if score > MOST_RETRIES else score


class Record(NamedTuple):
    """One claim. live: its lease has not run out. sealed, held: what it took, and still has.

    latest: since it was made, no message has arrived. given_up: by its consumer, and over.
    """

    run: int
    live: bool
    sealed: int
    held: int
    max_retries: int
    charged: int = 0
    replayed: int = 0
    latest: bool = False
    given_up: bool = False

    def left(self, score: float) -> int:
        """Retries left of a message that had this score in the store."""
        at_first = deliveries_of(score) - 1 if score <= MOST_RETRIES else self.max_retries
        return max(0, at_first - self.charged)


class Header(NamedTuple):
    """mark: of the plan that was left last. here: whether in this life of the server."""

    run: int
    settled: int
    last_seq: int
    last_ordinal: int
    mark: str = NO_PLAN
    here: bool = False


class Copy(NamedTuple):
    """What a copy of a keyed message carries.

    expires: FAR, or LONG_PAST_MS if that is over, or None if it does not expire. requeued: whether
    it waits since it was requeued.
    """

    payload: str
    expires: float | None = None
    requeued: bool = False

    @property
    def is_over(self) -> bool:
        return self.expires == LONG_PAST_MS


class Slot(NamedTuple):
    """Everything in a slot, sorted."""

    store: tuple = ()  # content, score
    retry: tuple = ()  # content, score for the store without its sign, whether it still waits
    dead: tuple = ()  # content
    untold: tuple = ()  # content that is dead or tells of a death, and not both
    claims: tuple = ()  # name, Record
    held: tuple = ()  # name, its messages as content, score in the store; of keys that are there
    part: tuple = ()  # content, score
    headers: tuple = ()  # consumer, Header
    epoch: int = 0
    turn: int = 0  # whether the number of messages claimed so far is odd
    balance: int = 0  # accepted, less what has ended and what is held
    paused: bool = False
    equals: tuple = ()  # contents that have their priority with others, in the order they came
    # of keyed topics; a Copy is None if the body is missing
    bodies: tuple = ()  # content, Copy; of waiting messages
    claim_bodies: tuple = ()  # name, its content and Copy in the order of the hash
    dead_bodies: tuple = ()  # content, Copy


class Held(NamedTuple):
    claim: str
    left: int


class View:
    """A slot, looked up by content and by claim."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.store = dict(slot.store)
        self.retry = {content: (left, waits) for content, left, waits in slot.retry}
        self.dead = set(slot.dead)
        self.claims: dict[str, Record] = dict(slot.claims)
        self._scores = {name: dict(messages) for name, messages in slot.held}
        self._held = {
            name: {content: self.claims[name].left(score) for content, score in messages.items()}
            for name, messages in self._scores.items()
            if name in self.claims
        }
        self.prepare = {
            content: Held(name, left)
            for name, messages in self._held.items()
            for content, left in messages.items()
        }
        self.waiting = self.store.keys() | self.retry.keys()
        self.anywhere = self.waiting | self.prepare.keys()
        self.holding = tuple(name for name, record in slot.claims if record.held)
        self.compared = frozenset(
            name for name, record in slot.claims if record.held and not record.latest
        )

        self.bodies: dict[str, Copy] = dict(slot.bodies)
        self.claim_bodies = {name: dict(bodies) for name, bodies in slot.claim_bodies}
        self.dead_bodies: dict[str, Copy] = dict(slot.dead_bodies)

    def held_body(self, content: str) -> Copy | None:
        """The body of a message in flight."""
        return self.claim_bodies.get(self.prepare[content].claim, {}).get(content)

    def copies(self, content: str) -> set[Copy | None]:
        """The bodies of all copies of a message, dead ones as well."""
        found = {self.bodies.get(content), self.dead_bodies.get(content)}
        return found | ({self.held_body(content)} if content in self.prepare else set())

    def held(self, name: str) -> dict[str, int]:
        """The contents that a claim holds, by their scores, and their retries left."""
        return self._held.get(name, {})

    def scores(self, name: str) -> dict[str, float]:
        """The contents that a claim holds, and the scores that they had in the store."""
        return self._scores.get(name, {})

    def holders(self) -> set[str]:
        """The consumers that have messages in flight."""
        return {name.split(":")[0] for name in self._held}


@lru_cache(maxsize=20_000)
def view_of(slot: Slot) -> View:
    return View(slot)


@lru_cache(maxsize=256)  # a slot is put back for many calls in turn
def values_of(
    slot: Slot, names: tuple[str, ...], now_ms: int, server_id: str, topic: TopicDefinition
) -> list:
    """The arguments of restore.lua. names: the claims whose keys there are."""
    far = now_ms + FAR_MS
    headers = [
        v
        for consumer, header in slot.headers
        for v in (consumer, text_of_header(header, now_ms, server_id))
    ]
    headers += ["@epoch", slot.epoch] * bool(slot.epoch) + ["@paused", "inf"] * slot.paused
    in_flight = [message for _, messages in slot.held for message in messages]
    # One more, which was committed: 0 is what a claim notes since which messages have arrived.
    accepted = 1 + len(slot.store) + len(slot.retry) + len(in_flight)
    held, bodies_of_dead = dict(slot.held), dict(slot.dead_bodies)
    if topic.type.descending:
        held = {
            name: in_turn(messages, [c for c, _ in reversed(messages)])
            for name, messages in held.items()
        }
    parts = [
        scored(in_turn(slot.store, slot.equals) if topic.type.descending else slot.store, far),
        [
            v
            for c, left, waits in slot.retry
            for v in ((far if waits else 0) // 1000 * 1000 + left, c)
        ],
        [v for c in slot.dead for v in (LONG_PAST_MS, c)],
        scored(slot.part, far),
        [v for c in slot.dead for v in (c, b"a 0 " + packed(bodies_of_dead.get(c), far))],
        [v for name, record in slot.claims for v in (name, text_of(record, far, accepted))],
        headers,
        ["accepted", accepted, "committed", 1, "claimed", slot.turn],
        *(scored(held.get(name, ()), far) for name in names),
    ]
    before_bodies = len(parts)
    if topic.keyed:
        descending = topic.type.descending
        in_claims = dict(slot.claim_bodies)
        parts.append([v for content, copy in slot.bodies for v in (content, packed(copy, far))])
        parts += [hash_of_bodies(in_claims.get(name, ()), descending, far) for name in names]
    return [before_bodies, *(value for part in parts for value in (len(part), *part))]


def packed(copy: Copy | None, far: int) -> bytes:
    if copy is None:
        return b""
    expires = far if copy.expires == FAR else copy.expires
    body = Body(
        payload=copy.payload.encode(), expires_at_ms=None if expires is None else int(expires)
    )
    return REQUEUED * copy.requeued + body.pack()


def copy_of(text: bytes, now_ms: int) -> Copy | None:
    body = Body.parse(text.removeprefix(REQUEUED))
    if body.payload is None:
        return None
    expires = body.expires_at_ms
    if expires is not None:
        expires = FAR if expires > now_ms else LONG_PAST_MS
    return Copy(body.payload.decode(), expires, text.startswith(REQUEUED))


def hash_of_bodies(bodies: tuple, descending: bool, far: int) -> list:
    """The hash of a claim's bodies, as claim_bodies.lua writes it."""
    if not bodies:
        return []
    texts = [packed(copy, far) for _, copy in bodies]
    lengths = [len(texts), *map(len, texts)]
    part = struct.pack(f">{len(lengths)}I", *lengths) + b"".join(texts)
    return ["0", part, "order", f"{'desc' if descending else 'asc'} {len(texts)}"]


def in_turn(messages: tuple, first: Sequence[str]) -> tuple:
    """Priorities with what tells equal ones apart: lua/include/priorities.lua. first: who came."""
    places = {content: place for place, content in enumerate(first)}
    return tuple(
        (c, score + 1 - (places.get(c, 0) + 1) / 2**32 if score > MOST_RETRIES else score)
        for c, score in messages
    )


def equals_of(store: list) -> tuple:
    """Those that share their priority with others, and are told apart, in the order they came."""
    numbered = [(c.decode(), float(score)) for c, score in reversed(store) if float(score) % 1]
    shared = Counter(floor(score) for _, score in numbered)
    return tuple(c for c, score in numbered if shared[floor(score)] > 1)


def scored(messages: tuple, far: int) -> list:
    return [v for c, score in messages for v in (far if score == FAR else score, c)]


def text_of(record: Record, far: int, accepted: int) -> str:
    deadline = far if record.live else LONG_PAST_MS if record.given_up else LOST_MS
    arrivals = accepted if record.latest else 0
    fields = (1, LONG_PAST_MS, record.run, deadline, record.sealed, record.held, 0)
    fields += (record.max_retries, record.charged, record.replayed, arrivals, 0)
    return " ".join(map(str, fields))


def record_of(text: bytes, now_ms: int, arrivals: int) -> Record:
    fields = list(map(int, text.split()))
    return Record(
        run=fields[RUN],
        live=fields[DEADLINE] > now_ms,
        sealed=fields[SEALED],
        held=fields[HELD],
        max_retries=fields[MAX_RETRIES],
        charged=fields[CHARGED],
        replayed=fields[REPLAYED],
        latest=fields[ARRIVALS] == arrivals,
        given_up=fields[DEADLINE] == LONG_PAST_MS,
    )


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


def slot_of(dump: list, names: tuple[str, ...], turns: bool, server_id: str) -> Slot:
    """What dump.lua returned. names: the claims whose keys there may be."""
    *found, time = dump
    store, retry, dead, part, deaths, claims, consumers, stats, *others = map(pairs, found)
    messages, of_bodies = others[: len(names)], others[len(names) :]
    in_claims = dict(zip(names, messages, strict=True))
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    known = {name.decode(): text for name, text in consumers}
    epoch, paused = int(known.pop("@epoch", 0)), known.pop("@paused", None) is not None
    headers = {name: header_of(text, server_id) for name, text in known.items()}
    counted = {name.decode(): int(number) for name, number in stats}
    arrivals = counted.get("accepted", 0) + counted.get("rolledBack", 0)
    held_now = len(store) + len(retry) + sum(map(len, messages))
    return Slot(
        store=tuple(sorted(with_scores(store, now_ms))),
        retry=tuple(
            sorted((c.decode(), int(float(s)) % 1000, float(s) > now_ms) for c, s in retry)
        ),
        dead=tuple(sorted(c.decode() for c, _ in dead)),
        untold=tuple(sorted({c.decode() for c, _ in dead} ^ {c.decode() for c, _ in deaths})),
        claims=tuple(
            sorted((name.decode(), record_of(text, now_ms, arrivals)) for name, text in claims)
        ),
        held=tuple(
            (name, with_scores(of_one, now_ms)) for name, of_one in in_claims.items() if of_one
        ),
        part=with_scores(part, now_ms),
        headers=tuple(sorted(headers.items())),
        epoch=epoch,
        turn=counted.get("claimed", 0) % 2 if turns else 0,
        balance=counted.get("accepted", 0) - sum(counted.get(end, 0) for end in ENDS) - held_now,
        paused=paused,
        equals=equals_of(store),
        **(bodies_in(of_bodies, deaths, in_claims, now_ms) if of_bodies else {}),
    )


def bodies_in(hashes: list, deaths: list, held: dict[str, list], now_ms: int) -> dict[str, tuple]:
    """The fields of a keyed slot. hashes: that of the bodies, and those of the claims' bodies."""
    waiting, *of_claims = hashes
    return {
        "bodies": tuple(sorted(copies_of(dict(waiting), now_ms))),
        "claim_bodies": tuple(
            (name, tuple(copies_of(bodies_of_claim(dict(fields), messages), now_ms)))
            for (name, messages), fields in zip(held.items(), of_claims, strict=True)
            if fields
        ),
        "dead_bodies": tuple(
            sorted(copies_of({c: Death.parse(text).body for c, text in deaths}, now_ms))
        ),
    }


def bodies_of_claim(fields: dict[bytes, bytes], messages: list) -> dict[bytes, bytes]:
    """The bodies of a claim by content. messages: content and score, in the order of the key."""
    order = -1 if fields[b"order"].startswith(b"desc") else 1
    contents = [content for content, _ in messages[::order]]
    bodies = PackedBodies.of_claim(fields)
    nobodys = [b"nobody's"] * (len(bodies) - len(contents))
    return dict(zip([*contents, *nobodys], bodies, strict=False))


def copies_of(bodies: Mapping[bytes, bytes], now_ms: int) -> Iterable[tuple[str, Copy | None]]:
    return ((content.decode(), copy_of(text, now_ms)) for content, text in bodies.items())


def expired(bodies: tuple) -> tuple:
    """The same bodies, when all times to live are over."""
    return tuple(
        (content, copy._replace(expires=LONG_PAST_MS) if copy and copy.expires else copy)
        for content, copy in bodies
    )


def with_scores(flat: list, now_ms: int) -> tuple:
    """Contents and scores, in the order of the key."""
    return tuple((c.decode(), when_due(float(score), now_ms)) for c, score in flat)


def pairs(flat: list) -> list:
    return list(zip(flat[::2], flat[1::2], strict=True))


def when_due(score: float, now_ms: int) -> float:
    """The whole part of a score: behind the point, priorities have a number that only grows."""
    return FAR if score > now_ms else floor(score)
