"""The pages about topics: all of them, and one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rmq_spark.client.overview import CONSUMER_SEEN_MS, Row
from rmq_spark.client.queue import Queue
from rmq_spark.console.console import Console
from rmq_spark.errors import InvalidOption, OwnershipError
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import ClaimRecord, Figures, SlotHolders
from rmq_spark.protocol.pages import Bounds
from rmq_spark.topics.definition import TopicDefinition, group_text
from rmq_spark.topics.durations import duration_text
from rmq_spark.topics.parsers import NotAccepted, duration
from rmq_spark.views.due_bars import (
    bars_of_priorities,
    bars_of_times,
    priority_bar_json,
    time_bar_json,
)
from rmq_spark.views.json_fields import definition_json, first_json, row_json
from rmq_spark.views.rates import Rate
from rmq_spark.views.server_checks import FAIL, WARN
from rmq_spark.views.shown_texts import time_json

Query = Mapping[str, str]

SORTS = {
    "topic": "topic",
    "in": "inPerSecond",
    "out": "outPerSecond",
    "due": "due",
    "delayed": "delayed",
    "prepared": "prepared",
    "retry": "retry",
    "dead": "dead",
    "oldest": "oldestDueForMs",
}
SPANS = ("5m", "1h", "6h", "1d", "7d", "30d")
# A strip of slots shows at most so many cells; a cell of a larger topic stands for several slots.
MOST_CELLS = 128


def topics(console: Console, query: Query) -> dict[str, Any]:
    """Return the state of all topics. query: q, sort, order."""
    rows, unreadable = console.look()
    wanted = query.get("q", "").strip().lower()
    sort = query.get("sort", "") if query.get("sort") in SORTS else "topic"
    field, down = SORTS[sort], query.get("order", "asc" if sort == "topic" else "desc") == "desc"
    listed = [_row(console, row) for row in rows if wanted in row.topic.lower()]
    listed.sort(key=lambda one: (one["topic"], one["group"]))
    listed.sort(key=lambda one: 0 if one[field] is None else one[field], reverse=down)
    return {
        "redisAddress": console.broker.server.address,
        "q": query.get("q", ""),
        "sort": sort,
        "order": "desc" if down else "asc",
        "topics": listed,
        "totals": {
            name: sum(one[name] for one in listed)
            for name in ("due", "delayed", "prepared", "retry", "dead")
        },
        "unreadable": [one._asdict() for one in unreadable],
        "findings": [f._asdict() for f in console.findings() if f.state in (WARN, FAIL)],
    }


def _row(console: Console, row: Row) -> dict[str, Any]:
    line = console.rates.line(row.topic, row.group)
    return {
        **row_json(row, line[-1] if line else Rate(0.0, 0.0, 0.0)),
        "topicType": row.definition.type.name,
        "paused": row.definition.paused,
        "warnings": warnings_of(row.definition, row.figures, len(row.consumers)),
        "line": _line_json(line),
    }


def _line_json(line: Sequence[Rate]) -> list[dict[str, float]]:
    end_s = line[-1].at_s if line else 0.0
    return [
        {
            "secondsAgo": round(end_s - rate.at_s, 1),
            "inPerSecond": round(rate.came, 1),
            "outPerSecond": round(rate.went, 1),
        }
        for rate in line
    ]


def warnings_of(topic: TopicDefinition, figures: Figures, consumers: int) -> list[str]:
    """Return what needs attention in a consumer group, in a few words each."""
    due = figures.store.due + figures.retry.due
    found = []
    if topic.paused:
        found.append("paused")
    if due and not consumers and not topic.paused:
        found.append("nobody reads")
    if figures.prepare.due:
        found.append("leases ended")
    return found


def topic(console: Console, query: Query, name: str) -> dict[str, Any]:
    """Return the state of a topic in one group. query: group, span. Raises UnknownTopic."""
    queue = console.queue(name, query.get("group"))
    definition, now_ms = queue.definition, queue.now_ms()
    figures, by_slot = queue.ask(reading.figures_by_slot)
    holders = queue.ask(reading.holders)
    group = group_text(queue.keys.group)
    rate = console.rates.note(name, group, figures.counters)
    consumers = consumers_json(holders, now_ms)
    owners = _owners(console, queue)
    oldest_ms = figures.store.oldest_ms
    seen = sum(1 for one in consumers if one["seenMsAgo"] < CONSUMER_SEEN_MS)
    return {
        **definition_json(definition),
        "retryBackoff": ", ".join(map(duration_text, definition.retry_backoff_ms)) or "none",
        "deadRetention": _duration_or_none(definition.dead_retention_ms),
        "group": group,
        "now": time_json(now_ms),
        "inPerSecond": round(rate.came, 1),
        "outPerSecond": round(rate.went, 1),
        "line": _line_json(console.rates.line(name, group)),
        "oldestDueForMs": None if oldest_ms is None else max(0, now_ms - oldest_ms),
        "mergedShare": _share(figures.counters["merged"], figures.counters["accepted"]),
        "queues": [
            {"queue": kind, "messages": of.count, "due": of.due, **first_json(kind, of, now_ms)}
            for kind, of in figures.queues.items()
        ],
        "counters": figures.counters,
        "deaths": figures.deaths,
        "warnings": warnings_of(definition, figures, seen),
        **_bars(queue, now_ms, query.get("span", "")),
        "slots": [
            {**_slot_json(slot, of, held), "owner": owners.get(slot)}
            for slot, (of, held) in enumerate(zip(by_slot, holders, strict=True))
        ],
        "consumers": consumers,
    }


def _duration_or_none(ms: int | None) -> str:
    return "none" if ms is None else duration_text(ms)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _bars(queue: Queue, now_ms: int, span: str) -> dict[str, Any]:
    """Return the bars of a queue; span: a duration from now on, or empty for all messages."""
    if not queue.definition.type.has_due_times:
        return {"span": "", "bars": list(map(priority_bar_json, bars_of_priorities(queue)))}
    times = Bounds(None, now_ms + _span_ms(span)) if span else Bounds()
    bars = bars_of_times(queue, now_ms, times)
    return {"span": span, "bars": list(map(time_bar_json, bars))}


def _span_ms(text: str) -> int:
    try:
        return duration(1000).read(text)
    except NotAccepted:
        raise InvalidOption(
            f"span={text[:100]!r} is not accepted. Accepted: a duration such as {', '.join(SPANS)}."
        ) from None


def _slot_json(slot: int, figures: Figures, holders: SlotHolders) -> dict[str, Any]:
    return {
        "slot": slot,
        "store": figures.store.count,
        "due": figures.store.due + figures.retry.due,
        "prepared": figures.prepare.count,
        "retry": figures.retry.count,
        "dead": figures.dead.count,
        "holders": sorted({claim.consumer for claim in holders.claims if claim.held}),
    }


def _owners(console: Console, queue: Queue) -> dict[int, str]:
    """Return who owns each slot of an exclusive topic; empty if ZooKeeper cannot be asked."""
    if console.ensemble is None or not queue.definition.exclusive:
        return {}
    try:
        members = console.ensemble.members(queue)
    except (OwnershipError, InvalidOption):  # the page about consumers says why
        return {}
    return {slot: member.name for member in members for slot in member.owned}


def cells_of(slots: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of the strip of slots. In a large topic, a cell sums up several slots."""
    width = -(-len(slots) // MOST_CELLS)
    return [_cell(slots[at : at + width]) for at in range(0, len(slots), width)]


def _cell(slots: Sequence[dict[str, Any]]) -> dict[str, Any]:
    counts = ("store", "due", "prepared", "retry", "dead")
    return {
        "first": slots[0]["slot"],
        "last": slots[-1]["slot"],
        **{name: sum(slot[name] for slot in slots) for name in counts},
        "holders": sorted({holder for slot in slots for holder in slot["holders"]}),
        "owners": sorted({slot["owner"] for slot in slots if slot["owner"]}),
    }


def consumers_json(holders: Iterable[SlotHolders], now_ms: int) -> list[dict[str, Any]]:
    """Return the consumers of a queue as JSON fields, the last seen first."""
    listed = list(holders)
    names = {name for of_slot in listed for name in of_slot.headers}
    names |= {claim.consumer for of_slot in listed for claim in of_slot.claims if claim.held}
    found = [_consumer_json(name, listed, now_ms) for name in names]
    return sorted(found, key=lambda one: (one["seenMsAgo"], one["consumer"]))


def _consumer_json(name: str, holders: Sequence[SlotHolders], now_ms: int) -> dict[str, Any]:
    headers = [of.headers[name] for of in holders if name in of.headers]
    claims = [claim for of_slot in holders for claim in _held_by(name, of_slot)]
    seen_ms = max((header.seen_ms for header in headers), default=0)
    run = max((header.run for header in headers), default=0)
    return {
        "consumer": name,
        "started": time_json(run or None),  # a run's number is the time of its start
        "slots": len(headers),
        "heldSlots": sum(1 for of in holders if _held_by(name, of)),
        "claims": len(claims),
        "messages": sum(claim.held for claim in claims),
        "lastBatch": max((header.last_seq for header in headers), default=0),
        "committedBatch": max((header.settled for header in headers), default=0),
        "holdsSince": time_json(min((claim.made_ms for claim in claims), default=None)),
        "leaseEnds": time_json(min((claim.deadline_ms for claim in claims), default=None)),
        "seen": time_json(seen_ms or None),
        "seenMsAgo": max(0, now_ms - seen_ms),
    }


def _held_by(consumer: str, of_slot: SlotHolders) -> list[ClaimRecord]:
    return [claim for claim in of_slot.claims if claim.consumer == consumer and claim.held]
