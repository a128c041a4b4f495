"""Requests that only read: due messages, counts, consumers, pages of queues."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from rmq_spark.protocol.calls import (
    Call,
    Conversation,
    Read,
    Request,
    TopicQueues,
    all_of,
    fields_of,
    repeated,
    text_of,
)
from rmq_spark.protocol.claims import (
    ClaimRecord,
    ConsumerSeen,
    Figures,
    Header,
    OtherClaims,
    Overview,
    QueueFigures,
    SlotDue,
    SlotHolders,
)
from rmq_spark.protocol.packing import chunks
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, Death, Page, QueueKind, is_descending
from rmq_spark.topics.definition import TOPIC, TopicDefinition
from rmq_spark.topics.keys import KEYS_OF_FIGURES, Keys

# Redis checks a store in about 1 us, so a call takes about 4 ms.
STORES_A_CALL = 4096
# A call takes 20 us if nobody has used the slots, else up to half a ms.
SLOTS_A_FIGURES_CALL = 16
# A page usually blocks Redis for 2 ms (measured with bench/table.py).
ENTRIES_A_PAGE = 1024
BYTES_A_PAGE = 1024 * 1024
COUNTERS = (
    "accepted",
    "merged",
    "claimed",
    "committed",
    "rolledBack",
    "dead",
    "cancelled",
    "expired",
    "forgotten",
    "repeated",
)
# The beginning of the counters of dead messages by the class of their reason.
_DEATHS = "dead:"
# The field, beside the consumers' headers, with the highest epoch that has claimed in the slot.
EPOCH_FIELD = "@epoch"


def headers(queues: TopicQueues, consumer: str) -> Request[list[Header]]:
    """Look up a consumer's progress in every slot, in order."""
    reads = [("HGET", queues.keys.consumers(slot), consumer) for slot in queues.slots]
    return Request(reads, lambda replies: [Header.parse(reply) for reply in replies])


def holders(queues: TopicQueues) -> Request[list[SlotHolders]]:
    """List the consumers that each slot knows, and the claims in it, slot by slot."""
    headers = [("HGETALL", queues.keys.consumers(slot)) for slot in queues.slots]
    claims = [("HGETALL", queues.keys.claims(slot)) for slot in queues.slots]

    def read(replies: list[Any]) -> list[SlotHolders]:
        pairs = zip(replies[: len(headers)], replies[len(headers) :], strict=True)
        return [SlotHolders(_headers_of(known), _records_of(made)) for known, made in pairs]

    return Request(headers + claims, read)


def _headers_of(fields: Any) -> dict[str, Header]:
    """Return the headers of a slot by consumer. A field that begins with an @ is the slot's own."""
    return {
        name.decode(): Header.parse(text)
        for name, text in fields_of(fields)
        if not name.startswith(b"@")
    }


def _records_of(claims: Any) -> list[ClaimRecord]:
    """Return the records of a slot, the oldest claim first."""
    records = [ClaimRecord.parse(name, text) for name, text in fields_of(claims)]
    return sorted(records, key=lambda record: (record.made_ms, record.name))


def records(queues: TopicQueues, slot: int) -> Request[list[ClaimRecord]]:
    """List the claims of a slot, the oldest first."""
    return Request([("HGETALL", queues.keys.claims(slot))], lambda replies: _records_of(replies[0]))


def epochs(queues: TopicQueues, slots: Sequence[int]) -> Request[list[int]]:
    """Look up the highest epoch that has claimed in each slot; 0 if there is no epoch."""
    reads = [("HGET", queues.keys.consumers(slot), EPOCH_FIELD) for slot in slots]
    return Request(reads, lambda replies: [int(epoch or 0) for epoch in replies])


def due(
    queues: TopicQueues,
    slots: Sequence[int],
    consumer: str,
    *,
    due_before_ms: int | None = None,
    epochs: Mapping[int, int | None] | None = None,
) -> Request[list[SlotDue]]:
    """Count the messages that claims could take now, slot by slot.

    There are none in a slot that is paused. due_before_ms, epochs: as for claiming.claim. Raises
    ExclusiveSlot if a slot takes no claim without an epoch.
    """
    known = epochs or {}
    calls = [
        Call(
            "due",
            queues.keys_of(slot, "store retry claims consumers"),
            [consumer, text_of(due_before_ms), text_of(known.get(slot)), queues.descending],
        )
        for slot in slots
    ]
    return Request(
        calls,
        lambda replies: [
            SlotDue(
                *(slot, count, held, None if next_ms == b"" else next_ms),
                expired=tuple(name.decode() for name in expired),
                live=tuple(name.decode() for name in live),
                alone=bool(alone),
                top=top,
            )
            for slot, (count, held, next_ms, expired, live, alone, top) in zip(
                slots, replies, strict=True
            )
        ],
    )


def counts(
    queues: TopicQueues,
    slots: Sequence[int],
    scores: Sequence[int],
    kind: QueueKind = QueueKind.STORE,
) -> Request[list[list[int]]]:
    """Count what a queue delivers up to and including each score: a list for each slot."""
    args = [queues.descending if kind is QueueKind.STORE else 0, *scores]
    return Request([Call("counts", queues.keys_of(slot, kind), args) for slot in slots], list)


def any_due(queues: TopicQueues, slots: Sequence[int], *, one_node: bool) -> Request[bool]:
    """Check whether a message is due in the store of any of these slots.

    The request is cheap, because it ignores claims and the retry queue. one_node: False for a Redis
    Cluster, where each slot takes a call of its own.
    """
    parts = chunks(_stores(queues.keys, tuple(slots)), STORES_A_CALL if one_node else 1)
    return Request([Call("any_due", part, [queues.descending]) for part in parts], any)


class Stir(IntEnum):
    """What a slot holds, for a reader that waits."""

    NOTHING = 0
    LATER = 1
    """Claims, or messages that wait for a retry."""
    DUE = 2
    """A message that is due, in the store."""


def stirred(
    queues: TopicQueues, slots: Sequence[int], *, one_node: bool
) -> Request[dict[int, Stir]]:
    """Look into slots, cheaply. one_node: as for any_due."""
    calls = [
        Call(
            "stirred",
            [key for slot in part for key in queues.keys_of(slot, "store retry claims")],
            [queues.descending],
        )
        for part in chunks(slots, STORES_A_CALL if one_node else 1)
    ]

    def read(replies: list[Any]) -> dict[int, Stir]:
        return dict(zip(slots, map(Stir, chain.from_iterable(replies)), strict=True))

    return Request(calls, read)


def any_of(requests: Iterable[Request[bool]]) -> Request[bool]:
    """Combine requests into one. The answer is True if the answer to any of them is."""
    return Request([call for request in requests for call in request.calls], any)


@lru_cache(maxsize=16)
def _stores(keys: Keys, slots: tuple[int, ...]) -> list[str]:
    """Return the keys of the stores of slots. Cached: a waiting query asks once a second."""
    return [keys.store(slot) for slot in slots]


def overview(queues: TopicQueues, *, one_node: bool) -> Conversation[Overview]:
    """Count what is in all slots of a topic. one_node: as for any_due."""
    (counted,) = yield from overviews([queues], one_node=one_node)
    return counted


def overviews(several: Sequence[TopicQueues], *, one_node: bool) -> Conversation[list[Overview]]:
    """Count what is in all slots of each of several topics. one_node: as for any_due."""
    size = SLOTS_A_FIGURES_CALL if one_node else 1
    by_queues = [_figure_calls(queues, size) for queues in several]
    left = list(chain.from_iterable(by_queues))

    def next_call(at: int, reply: Any) -> Call | None:
        keys = left[at].keys[reply[14] * KEYS_OF_FIGURES :]
        left[at] = replace(left[at], keys=keys)
        return left[at] if keys else None

    replies = iter((yield from repeated(left, next_call)))
    of_each = [list(chain.from_iterable(islice(replies, len(calls)))) for calls in by_queues]
    full_at: dict[TopicQueues, float] = {}
    if limited := [
        one for one in several if one.definition.rate and one.definition.rate_by == TOPIC
    ]:
        noted = yield Request([("HGET", one.keys.rate(), "fullAt") for one in limited], list)
        full_at = {one: float(at or 0) for one, at in zip(limited, noted, strict=True)}
    most_bytes: dict[TopicQueues, int] = {}
    if bounded := [one for one in several if "bytes" in one.definition.shares]:
        counts = yield all_of(waiting(one, one.slots, "bytes") for one in bounded)
        most_bytes = dict(zip(bounded, map(max, counts), strict=True))
    return [
        _overview_of(
            *(replies, queues.definition), full_at.get(queues, 0), most_bytes.get(queues, 0)
        )
        for queues, replies in zip(several, of_each, strict=True)
    ]


def waiting(queues: TopicQueues, slots: Iterable[int], unit: str) -> Request[list[int]]:
    """Count what waits in each slot, as the limits of the topic do. unit: messages or bytes."""
    calls = queues.calls("waiting", "store retry stats bodies", slots, [])
    at = ("messages", "bytes").index(unit)
    return Request(calls, lambda replies: [reply[at] for reply in replies])


def figures_by_slot(queues: TopicQueues) -> Request[tuple[Figures, list[Figures]]]:
    """Count the messages in all queues, and sum up the counters: over all slots, and by slot."""

    def read(replies: list[Any]) -> tuple[Figures, list[Figures]]:
        return _figures_of(replies), [_figures_of([reply]) for reply in replies]

    return Request(_figure_calls(queues, 1), read)


def _figure_calls(queues: TopicQueues, slots_a_call: int) -> list[Call]:
    args = [queues.descending, queues.has_due_times]
    return [
        Call("figures", queues.keys.of_figures(part), args)
        for part in chunks(queues.slots, slots_a_call)
    ]


def _overview_of(
    replies: list[Any], topic: TopicDefinition, full_at_ms: float, most_bytes: int
) -> Overview:
    now_ms = max(reply[0] for reply in replies)
    held_until_ms = max(reply[15] for reply in replies)
    if full_at_ms:  # of a bucket that may have been filled under another limit: grant.lua
        full_at_ms = min(full_at_ms, now_ms + topic.most_at_once * topic.interval_ms)
        next_ms = math.ceil(full_at_ms - (topic.most_at_once - 1) * topic.interval_ms)
        held_until_ms = max(held_until_ms, next_ms)
    consumers = _consumers_of(replies, now_ms)
    held = held_until_ms if held_until_ms > now_ms else None
    most = {"messages": max(reply[16] for reply in replies), "bytes": most_bytes}
    used = {unit: most[unit] / share for unit, share in topic.shares.items()}
    return Overview(now_ms, _figures_of(replies), consumers, held, used)


def _figures_of(replies: list[Any]) -> Figures:
    columns = list(zip(*replies, strict=True))
    counters: Counter[str] = Counter()
    for fields in columns[12]:
        counters.update({name.decode(): number for name, number in fields_of(fields)})
    return Figures(
        store=QueueFigures(sum(columns[1]), sum(columns[2]), _earliest(columns[3])),
        prepare=QueueFigures(sum(columns[4]), sum(columns[5]), _earliest(columns[6])),
        retry=QueueFigures(sum(columns[7]), sum(columns[8]), _earliest(columns[9])),
        dead=QueueFigures(sum(columns[10]), 0, _earliest(columns[11])),
        counters={name: counters[name] for name in COUNTERS},
        deaths={
            name.removeprefix(_DEATHS): counters[name]
            for name in sorted(counters)
            if name.startswith(_DEATHS)
        },
    )


def _earliest(texts: Iterable[bytes]) -> int | None:
    return min((int(text) for text in texts if text), default=None)


def _consumers_of(replies: list[Any], now_ms: int) -> list[ConsumerSeen]:
    """Return the consumers in replies of figures, the last seen first."""
    found: dict[str, ConsumerSeen] = {}
    for reply in replies:
        for name, slots, held_slots, seen_ms in chunks(reply[13], 4):
            known = found.get(name.decode()) or ConsumerSeen(name.decode(), 0, 0, now_ms)
            found[known.consumer] = ConsumerSeen(
                known.consumer,
                known.slots + slots,
                known.held_slots + held_slots,
                min(known.ms_ago, max(0, now_ms - seen_ms)),
            )
    return sorted(found.values(), key=lambda consumer: (consumer.ms_ago, consumer.consumer))


def page(
    queues: TopicQueues,
    kind: QueueKind,
    slot: int,
    scores: Bounds = UNBOUNDED,
    after: tuple[float, bytes] | None = None,
    claim: ClaimRecord | None = None,
    most: int = ENTRIES_A_PAGE,
) -> Request[tuple[Page, bool]]:
    """Read one page of a queue of one slot, in the order of delivery.

    The answer is the page, and whether there may be more. scores: the range to read. after: score
    and content of the entry to continue after; if it has left the queue, all entries of its score
    are read again. claim: the one to read of a prepare queue. A page ends at ``most`` entries, or
    soon after 1 MiB.
    """
    is_dead = kind is QueueKind.DEAD
    keys = (
        queues.keys_of(slot, "dead deaths" if is_dead else f"{kind} bodies")
        if claim is None
        else queues.claims_and_bodies(slot, [claim.name])
    )
    score, content = ("", b"") if after is None else (f"{after[0]:.17g}", after[1])
    flags = int(claim is not None), int(is_descending(kind, queues.definition))
    args = [*scores.limits, score, content, most, BYTES_A_PAGE, *flags]

    def read(replies: list[Any]) -> tuple[Page, bool]:
        more, *rows = replies[0]
        return _page_of(queues, kind, slot, rows[::3], rows[1::3], rows[2::3], claim), bool(more)

    return Request([Call("page", keys, args)], read)


def sizes(
    queues: TopicQueues, kinds: Sequence[QueueKind], slots: Sequence[int]
) -> Request[list[int]]:
    """Count the messages that these queues hold together, slot by slot."""
    reads = [_size_read(queues, kind, slot) for slot in slots for kind in kinds]
    size = len(kinds)

    def count(replies: list[Any]) -> list[int]:
        counts = [_size_of(reply) for reply in replies]
        return [sum(counts[at : at + size]) for at in range(0, len(counts), size)]

    return Request(reads, count)


def _size_read(queues: TopicQueues, kind: QueueKind, slot: int) -> Read:
    if kind is QueueKind.PREPARE:
        return ("HGETALL", queues.keys.claims(slot))
    return ("ZCARD", getattr(queues.keys, kind)(slot))


def _size_of(reply: Any) -> int:
    if isinstance(reply, int):
        return reply
    return sum(record.held for record in _records_of(reply))


def find(
    queues: TopicQueues, names: Mapping[int, Sequence[bytes]]
) -> Conversation[list[list[Page]]]:
    """Find messages, by slot, in all queues. The answer: of each, a page with it for each copy.

    names: contents; in a keyed topic, keys.
    """
    wanted = [(slot, name) for slot, of_slot in names.items() for name in of_slot]
    claims = {slot: OtherClaims([]) for slot in names}
    pages: dict[int, list[Page]] = {}
    left = list(range(len(wanted)))
    while left:
        calls = [_find_call(queues, *wanted[at], claims[wanted[at][0]].names) for at in left]
        replies = yield Request(calls, list)
        asked, left = left, []
        unnamed: dict[int, list[str]] = {}
        for at, reply in zip(asked, replies, strict=True):
            slot, name = wanted[at]
            if reply and reply[0] == -1:
                unnamed[slot] = [claim.decode() for claim in reply[1:]]
                left.append(at)
                continue
            pages[at] = [
                _page_of(
                    queues,
                    *(QueueKind(kind.decode()), slot, [name], [score], [belonging]),
                    ClaimRecord.parse(claim, record) if claim else None,
                )
                for kind, score, belonging, claim, record in chunks(reply, 5)
            ]
        for slot, found in unnamed.items():
            claims[slot].learn(found)
    return [pages[at] for at in range(len(wanted))]


def _find_call(queues: TopicQueues, slot: int, name: bytes, claims: Sequence[str]) -> Call:
    keys = queues.keys_of(slot, "store retry dead deaths bodies claims")
    return Call("find", [*keys, *queues.claims_and_bodies(slot, claims)], [name, *claims])


def _page_of(
    queues: TopicQueues,
    kind: QueueKind,
    slot: int,
    contents: list[bytes],
    scores: Sequence[Any],
    texts: Sequence[bytes],
    claim: ClaimRecord | None = None,
) -> Page:
    """Return a page. texts: what Redis keeps beside each entry: its death, or else its body."""
    numbers = [float(score) for score in scores]
    if kind is not QueueKind.DEAD:
        return Page(queues.definition, kind, slot, contents, numbers, claim, (), texts)
    deaths = [Death.parse(text) for text in texts]
    bodies = [death.body for death in deaths]
    return Page(queues.definition, kind, slot, contents, numbers, claim, deaths, bodies)
