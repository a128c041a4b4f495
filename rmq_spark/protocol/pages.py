"""Pages of a queue, which show its messages without claiming them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from rmq_spark.errors import InvalidOption, quoted
from rmq_spark.protocol.bodies import Body, Headers
from rmq_spark.protocol.claims import ClaimRecord, retries_of
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.keys import LOWEST_SCORE, MOST_RETRIES, SUSPECT_LEVEL, deliveries_of
from rmq_spark.topics.reasons import class_of

_T = TypeVar("_T")
# In the place of a consumer: the message has expired before anybody got it.
_NOBODY = b"-"


class QueueKind(StrEnum):
    """The parts of a queue: STORE, PREPARE, RETRY and DEAD.

    Functions also take their names as text, such as "dead".
    """

    STORE = "store"
    PREPARE = "prepare"
    RETRY = "retry"
    DEAD = "dead"

    @classmethod
    def _missing_(cls, value: object) -> "QueueKind":
        """Find a kind in any case. Raises InvalidOption for another value."""
        for kind in cls:
            if isinstance(value, str) and value.strip().lower() == kind:
                return kind
        raise InvalidOption(
            f"The queue {quoted(value)} is not accepted. Accepted: {', '.join(cls)}."
        )


@dataclass(frozen=True)
class Bounds:
    """A range of scores, from low (inclusive) to high (exclusive). None: no bound.

    Scores in a store are due times in ms or priorities; 1 to 16 is the number of retries left of a
    message that was rolled back. A prepare queue has the times of claims, a retry queue due times,
    both in ms but whole seconds, and a dead queue times of death in ms.
    """

    low: int | None = None
    high: int | None = None

    def within(self, low: int | None, high: int | None) -> "Bounds":
        """Return the overlap with the range from low (inclusive) to high (exclusive)."""
        lows = [bound for bound in (self.low, low) if bound is not None]
        highs = [bound for bound in (self.high, high) if bound is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))

    def includes(self, value: int) -> bool:
        """Check whether a value is in the range."""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value < self.high)

    @property
    def limits(self) -> tuple[str, str]:
        """The bounds as arguments of Redis commands."""
        low = "-inf" if self.low is None else str(self.low)
        return low, "+inf" if self.high is None else f"({self.high}"


UNBOUNDED = Bounds()


@dataclass(frozen=True)
class Scope:
    """A selection of queues, slots and times.

    slots: None for all. times: a range in ms since 1970. It selects messages by due time in the
    store and the retry queue, by claim time in the prepare queue, and by time of death in the dead
    queue.
    """

    queues: tuple[QueueKind, ...]
    slots: frozenset[int] | None = None
    times: Bounds = UNBOUNDED

    def slots_of(self, topic: TopicDefinition) -> list[int]:
        """Return the slots in order. Raises InvalidOption for one that the topic does not have."""
        if self.slots is None:
            return list(range(topic.slot_amount))
        beyond = [slot for slot in self.slots if slot >= topic.slot_amount]
        if beyond:
            raise InvalidOption(
                f"slots names {min(beyond)}, but topic {topic.name} does not have that slot. "
                f"Accepted: 0 to {topic.slot_amount - 1}."
            )
        return sorted(self.slots)

    def scores_of(self, kind: QueueKind, topic: TopicDefinition) -> Bounds | None:
        """Return the range of scores to read from one queue; None if it has no times."""
        times = self.times
        if times == UNBOUNDED or kind is QueueKind.DEAD:
            return times
        if kind is QueueKind.STORE:
            # The score of a rolled-back message is a number of retries, below all times: skip it.
            return times.within(LOWEST_SCORE, None) if topic.type.has_due_times else None
        # These scores are full seconds in ms plus the retries left and a rank, which are below 1 s.
        return Bounds(_round_up_to_second(times.low), _round_up_to_second(times.high))


def _retries_of(deliveries: int, most: int) -> int:
    """Return the retries left of a message that came already. most: the retries of the topic.

    One that came at no charge may have all of them and a first delivery. More than that has one
    that failed when the topic had more.
    """
    return deliveries - 1 if deliveries == most + 1 else deliveries


def _round_up_to_second(ms: int | None) -> int | None:
    return None if ms is None else -(-ms // 1000) * 1000


class Entry(NamedTuple):
    """A message in a queue; times in ms since 1970. What the queue does not keep is None."""

    queue: str
    slot: int
    content: bytes | None
    due_time_ms: int | None
    priority: int | None
    retries_left: int
    prepared_at_ms: int | None
    died_at_ms: int | None
    consumer: str | None
    reason: str | None
    key: bytes | None = None
    headers: Headers = ()
    expires_at_ms: int | None = None

    @property
    def name(self) -> bytes | None:
        """What operations name the message by: its key in a keyed topic, else its content."""
        return self.content if self.key is None else self.key


class Death(NamedTuple):
    """The consumer whose delivery of a message was the last one, and why that failed.

    reason: empty if the consumer gave none. consumer: None for a message that has expired. body:
    the one that the message had, packed; empty for none.
    """

    consumer: str | None
    reason: str | None
    body: bytes = b""

    @staticmethod
    def parse(text: bytes) -> "Death":
        """Parse the text that a script wrote (lua/include/dead.lua); empty if there is none."""
        if not text:
            return Death(None, None)
        consumer, length, rest = text.split(b" ", 2)
        size = int(length)
        name = None if consumer == _NOBODY else consumer.decode()
        return Death(name, rest[:size].decode("utf-8", "replace"), rest[size:])


@dataclass(frozen=True)
class Position:
    """Where a message lies. name: its content or key. claim: the one that holds it, or empty."""

    slot: int
    score: float
    name: bytes
    claim: str = ""


def is_descending(kind: QueueKind, topic: TopicDefinition) -> bool:
    """Return whether a queue is read from its highest score on: so priorities are delivered."""
    return kind is QueueKind.STORE and not topic.type.has_due_times


@dataclass(frozen=True)
class Page:
    """Entries of one queue of one slot, in the order of delivery, column by column.

    claim: the one that holds the entries, in a prepare queue; their scores are those that they had
    in the store. deaths: one for each entry of a dead queue. bodies: packed; empty for none.
    """

    topic: TopicDefinition
    kind: QueueKind
    slot: int
    contents: list[bytes]
    scores: list[float]
    claim: ClaimRecord | None = None
    deaths: Sequence[Death] = ()
    bodies: Sequence[bytes] = ()

    def after(self, seen: tuple[float, bytes]) -> "Page":
        """Return the page behind a score and a content, the order of equal scores."""
        descending = is_descending(self.kind, self.topic)
        skipped = 0
        for pair in zip(self.scores, self.contents, strict=True):
            if pair != seen and (pair < seen) is descending:
                break
            skipped += 1
        return self.only(range(skipped, len(self.contents))) if skipped else self

    def only(self, wanted: Sequence[int]) -> "Page":
        """Return the page with some of its entries. wanted: their indices."""
        return replace(
            self,
            contents=[self.contents[at] for at in wanted],
            scores=[self.scores[at] for at in wanted],
            deaths=[self.deaths[at] for at in wanted] if self.deaths else [],
            bodies=[self.bodies[at] for at in wanted] if self.bodies else [],
        )

    def of_reason(self, reason_class: str, class_of: Callable[[str], str] = class_of) -> "Page":
        """Return the page with those of the dead that died of one class of reasons."""
        classes = [class_of(reason or "") for reason in self.reasons()]
        return self.only([at for at, one in enumerate(classes) if one == reason_class])

    def position(self, at: int) -> Position:
        """Return where one of the entries lies. at: its index."""
        claim = self.claim.name if self.claim else ""
        return Position(self.slot, self.scores[at], self.contents[at], claim)

    def due_times_ms(self) -> Sequence[int | None]:
        """Return when each entry, or its retry, is due; None where there is no time."""
        if self.kind is QueueKind.RETRY:
            return [_whole_second_ms(score) for score in self.scores]
        return self._first_scores() if self.topic.type.has_due_times else self._none

    def priorities(self) -> Sequence[int | None]:
        """Return the priority of each entry; None for retries, the dead, and other types."""
        return self._none if self.topic.type.has_due_times else self._first_scores()

    def retries_left(self) -> list[int]:
        """Return the number of retries that each entry has left."""
        if self.claim is not None:
            most, charged = self.claim.max_retries, self.claim.charged
            return [retries_of(int(score), most, charged) for score in self.scores]
        most = self.topic.max_retries
        if self.kind is QueueKind.STORE:
            return [
                _retries_of(deliveries_of(int(score)), most) if score <= MOST_RETRIES else most
                for score in self.scores
            ]
        if self.kind is QueueKind.DEAD:
            return [0] * len(self.scores)
        return [_retries_of(int(score % 1000 % SUSPECT_LEVEL), most) for score in self.scores]

    def prepared_at_ms(self) -> Sequence[int | None]:
        """Return the time at which each entry was claimed; None in other queues."""
        return self._of_claim(None if self.claim is None else self.claim.made_ms)

    def died_at_ms(self) -> Sequence[int | None]:
        """Return the time at which each entry died; None in other queues."""
        return [int(score) for score in self.scores] if self.kind is QueueKind.DEAD else self._none

    def consumers(self) -> Sequence[str | None]:
        """Return who holds each entry, or had a dead one last; None in other queues."""
        if self.kind is QueueKind.DEAD:
            return [death.consumer for death in self.deaths]
        return self._of_claim(None if self.claim is None else self.claim.consumer)

    def reasons(self) -> Sequence[str | None]:
        """Return why each entry died; None in other queues."""
        return [death.reason for death in self.deaths] or self._none

    def keys(self) -> Sequence[bytes | None]:
        """Return the key of each entry; None in a topic without keys."""
        return self.contents if self.topic.keyed else self._none

    def payloads(self) -> Sequence[bytes | None]:
        """Return the content of each entry; in a keyed topic, it may be None."""
        if not self.topic.keyed:
            return self.contents
        return [body.payload for body in self._bodies]

    def headers(self) -> Sequence[Any]:
        """Return the headers of each entry as an Arrow array takes them; None for none."""
        return [
            [{"key": name, "value": value} for name, value in body.headers] or None
            for body in self._bodies
        ]

    def expire_at_ms(self) -> Sequence[int | None]:
        """Return when each entry expires, counted from its due time if it has one; or None."""
        return [
            body.expires_at_ms if lives is None or due is None else due + lives
            for body, lives, due in zip(
                self._bodies,
                (body.time_to_live_ms for body in self._bodies),
                self.due_times_ms(),
                strict=True,
            )
        ]

    @cached_property
    def _bodies(self) -> list[Body]:
        return [Body.parse(text) for text in self.bodies or [b""] * len(self.contents)]

    def entries(self) -> Iterator[Entry]:
        """Yield the entries one by one, with all their values."""
        size = len(self.contents)
        columns = (
            [self.kind.value] * size,
            [self.slot] * size,
            self.payloads(),
            self.due_times_ms(),
            self.priorities(),
            self.retries_left(),
            self.prepared_at_ms(),
            self.died_at_ms(),
            self.consumers(),
            self.reasons(),
            self.keys(),
            [body.headers for body in self._bodies],
            self.expire_at_ms(),
        )
        return map(Entry, *columns)

    def _of_claim(self, value: _T) -> list[_T]:
        return [value] * len(self.contents)

    @property
    def _none(self) -> list[None]:
        return [None] * len(self.contents)

    def _first_scores(self) -> Sequence[int | None]:
        if self.kind in (QueueKind.STORE, QueueKind.PREPARE):
            return [_first_delivery_score(score) for score in self.scores]
        return self._none


def _whole_second_ms(score: float) -> int:
    return int(score / 1000) * 1000


def _first_delivery_score(score: float) -> int | None:
    return int(score) if score > MOST_RETRIES else None


ReadPage = Callable[[tuple[float, bytes] | None], tuple[Page, bool]]


def pages_after_each_other(
    read: ReadPage, after: tuple[float, bytes] | None = None
) -> Iterator[Page]:
    """Yield the pages of a queue. A message that stays in the queue is yielded once.

    A message that moves in the meantime may be missing. read: takes the last entry read (score and
    content; None at first), and returns the page after it and whether there may be more. If that
    entry has left the queue, the page begins with all entries of its score, and so may repeat some.
    after: the entry to begin after; None for the first page.
    """
    at = seen = after
    more = True
    while more:
        page, more = read(at)
        if not page.contents:
            return
        at = page.scores[-1], page.contents[-1]
        fresh = page if seen is None else page.after(seen)
        if fresh.contents:
            seen = at
            yield fresh


def first_entries(pages: Iterator[Page], how_many: int) -> list[Entry]:
    """Return the first ``how_many`` entries of several pages."""
    return list(islice((entry for page in pages for entry in page.entries()), how_many))
