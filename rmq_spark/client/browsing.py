"""What a topic's queues hold: all that only reads."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.calls import Call
from rmq_spark.protocol.chunks import chunks, in_parts
from rmq_spark.protocol.claims import ConsumerSeen, Figures, Header, QueueFigures, SlotDue
from rmq_spark.protocol.pages import (
    UNBOUNDED,
    Bounds,
    Page,
    QueueKind,
    page_of,
    pages_after_each_other,
)
from rmq_spark.topics.definition import DEFAULT_GROUP, Keys, TopicDefinition, group_text
from rmq_spark.transport.server import Server

# Redis looks at a store in about 1 us.
STORES_A_CALL = 4096
# One reply or request of a pipeline is held in memory whole on both sides.
CALLS_A_PIPELINE = 256
# A page keeps others waiting for 2 ms, as a rule (bench/table.py).
ENTRIES_A_PAGE = 1024
BYTES_A_PAGE = 1024 * 1024
COUNTERS = ("accepted", "merged", "claimed", "committed", "rolledBack", "dead", "cancelled")


class QueueView:
    """A topic (and one of its consumer groups) on a server, for those who only look.

    All methods raise an RmqError for what fails and may be called again.
    """

    def __init__(
        self,
        server: Server,
        definition: TopicDefinition,
        *,
        key_prefix: str = "",
        group: str = DEFAULT_GROUP,
    ) -> None:
        if group not in definition.groups:
            raise InvalidOption(
                f"group={group_text(group)!r} is no consumer group of topic {definition.name}. "
                f"Accepted: {', '.join(map(group_text, definition.groups))}."
            )
        self.server = server
        self.key_prefix = key_prefix
        self.keys = Keys(definition.name, key_prefix, group)
        self._take(definition)

    def _take(self, definition: TopicDefinition) -> None:
        """Goes by this definition from now on."""
        self.definition = definition
        self._read_s = time.monotonic()
        self._backoff = ",".join(str(wait) for wait in definition.retry_backoff_ms)
        self._descending = int(definition.type.descending)

    def through(self, server: Server) -> Self:
        """The same through another connection."""
        keys = self.keys
        return type(self)(server, self.definition, key_prefix=keys.prefix, group=keys.group)

    def of_group(self, group: str) -> Self:
        """The same of another consumer group. Raises InvalidOption where there is none."""
        prefix = self.keys.prefix
        return type(self)(self.server, self.definition, key_prefix=prefix, group=group)

    def __repr__(self) -> str:
        return f"Queue({self.definition.name}, {self.server!r})"

    @property
    def slots(self) -> range:
        """All slots of the topic."""
        return range(self.definition.slot_amount)

    # -- consumers

    def headers(self, consumer: str) -> list[Header]:
        """How far a consumer came, slot by slot. No script: plain reads."""
        replies = self._plain_pipeline(
            [("HGET", self.keys.consumers(slot), consumer) for slot in self.slots]
        )
        return [Header.parse(reply) for reply in replies]

    def consumers(self, now_ms: int) -> list[ConsumerSeen]:
        """All consumers that are remembered, the last seen first. Plain reads.

        now_ms: Redis' time.
        """
        hashes = self._plain_pipeline(
            [("HGETALL", self.keys.consumers(slot)) for slot in self.slots]
        )
        headers: dict[str, list[Header]] = {}
        for found in hashes:
            pairs = (
                found.items()
                if isinstance(found, dict)
                else zip(found[::2], found[1::2], strict=True)
            )
            for name, text in pairs:
                if name != b"@epoch":
                    headers.setdefault(name.decode(), []).append(Header.parse(text))
        seen = [
            ConsumerSeen(
                name,
                len(of_slots),
                sum(header.last_seq > header.settled for header in of_slots),
                max(0, now_ms - max(header.seen_ms for header in of_slots)),
            )
            for name, of_slots in headers.items()
        ]
        return sorted(seen, key=lambda consumer: (consumer.ms_ago, consumer.consumer))

    def epochs(self, slots: Sequence[int]) -> list[int]:
        """The epoch under which each slot was claimed last; 0 where none was. A plain read."""
        asked = [("HGET", self.keys.consumers(slot), "@epoch") for slot in slots]
        return [int(epoch or 0) for epoch in self._plain_pipeline(asked)]

    # -- messages

    def due(
        self,
        slots: Sequence[int],
        consumer: str,
        *,
        due_before_ms: int | None = None,
        epochs: Mapping[int, int | None] | None = None,
    ) -> list[SlotDue]:
        """What claims of these slots could take now."""
        calls = [
            Call(
                "due",
                self._keys(slot, "store prepare retry claims consumers"),
                [
                    consumer,
                    text_of(due_before_ms),
                    text_of((epochs or {}).get(slot)),
                    self._descending,
                ],
            )
            for slot in slots
        ]
        replies = self._pipelines(calls)
        return [
            SlotDue(slot, due, held, None if next_ms == b"" else next_ms)
            for slot, (due, held, next_ms) in zip(slots, replies, strict=True)
        ]

    def counts(self, slots: Sequence[int], scores: Sequence[int]) -> list[list[int]]:
        """How many messages each store delivers up to and with each score, by slot and score."""
        calls = [
            Call("counts", [self.keys.store(slot)], [self._descending, *scores]) for slot in slots
        ]
        return self._pipelines(calls)

    def any_due(self, slots: Sequence[int]) -> bool:
        """Whether a message is due in the store of any of these slots: one cheap call.

        (In a cluster one for each slot.) Retries that wait and claims are not looked at.
        """
        return any(self._pipelines(self.any_due_calls(slots)))

    def any_due_calls(self, slots: Sequence[int]) -> list[Call]:
        """The calls that any_due makes: of several topics they go in one pipeline."""
        size = 1 if self.server.is_cluster else STORES_A_CALL
        parts = chunks(_stores(self.keys, tuple(slots)), size)
        return [Call("any_due", part, [self._descending]) for part in parts]

    def figures(self) -> Figures:
        """Counts of all queues, and the counters, over all slots."""
        calls = [
            Call("figures", self._keys(slot, "store prepare retry dead claims"), [self._descending])
            for slot in self.slots
        ]
        columns = list(zip(*self._pipelines(calls), strict=True))
        counted = self._plain_pipeline(
            [("HMGET", self.keys.stats(slot), *COUNTERS) for slot in self.slots]
        )
        return Figures(
            store=QueueFigures(sum(columns[1]), sum(columns[2]), _earliest(columns[3])),
            prepare=QueueFigures(sum(columns[4]), sum(columns[5]), _earliest(columns[6])),
            retry=QueueFigures(sum(columns[7]), sum(columns[8]), _earliest(columns[9])),
            dead=QueueFigures(sum(columns[10]), 0, _earliest(columns[11])),
            counters={
                name: sum(int(row[at] or 0) for row in counted) for at, name in enumerate(COUNTERS)
            },
        )

    def page(
        self,
        kind: QueueKind,
        slot: int,
        scores: Bounds = UNBOUNDED,
        after: tuple[float, bytes] | None = None,
        most: int = ENTRIES_A_PAGE,
    ) -> tuple[Page, bool]:
        """Entries of a queue of one slot by score, and whether there may be more.

        after: score and content of the entry to go on from; where it has left, all of its score
        come again. A page ends at ``most`` entries, or soon after a MiB.
        """
        names = f"{kind} claims first" if kind is QueueKind.PREPARE else kind
        score, content = ("", b"") if after is None else (f"{after[0]:.17g}", after[1])
        args = [*scores.limits, score, content, most, BYTES_A_PAGE]
        reply = self.server.call("page", self._keys(slot, names), args)
        return page_of(self.definition, kind, slot, reply), bool(reply[2])

    def pages(self, kind: QueueKind, slot: int, scores: Bounds = UNBOUNDED) -> Iterator[Page]:
        """A queue of one slot, page by page: what stays in it meanwhile comes once."""
        return pages_after_each_other(lambda after: self.page(kind, slot, scores, after))

    def sizes(self, kinds: Sequence[QueueKind], slots: Sequence[int]) -> list[int]:
        """How many messages these queues hold together, slot by slot. Plain reads."""
        asked = [("ZCARD", getattr(self.keys, kind)(slot)) for slot in slots for kind in kinds]
        counts = self._plain_pipeline(asked)
        size = len(kinds)
        return [sum(counts[at : at + size]) for at in range(0, len(counts), size)]

    def now_ms(self) -> int:
        """Redis' time."""
        seconds, microseconds = self.server.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    # -- below: how scripts are called

    def _keys(self, slot: int, kinds: str) -> tuple[str, ...]:
        return keys_of(self.keys, slot, kinds)

    def _pipelines(self, calls: Sequence[Call]) -> list[Any]:
        return in_parts(calls, self.server.pipeline, CALLS_A_PIPELINE)

    def _plain_pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return in_parts(commands, self.server.commands, CALLS_A_PIPELINE)


@lru_cache(maxsize=16)
def _stores(keys: Keys, slots: tuple[int, ...]) -> list[str]:
    """Asked for ten times a second while a query waits."""
    return [keys.store(slot) for slot in slots]


@lru_cache(maxsize=8192)
def keys_of(keys: Keys, slot: int, kinds: str) -> tuple[str, ...]:
    """The keys of a slot, by the names of their methods. Asked for again and again."""
    return tuple(getattr(keys, kind)(slot) for kind in kinds.split())


def text_of(number: int | None) -> str:
    """A number as scripts take it, or nothing."""
    return "" if number is None else str(number)


def _earliest(texts: Iterable[bytes]) -> int | None:
    return min((int(float(text)) for text in texts if text), default=None)
