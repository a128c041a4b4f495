"""What each page of the console shows: functions that return dicts, as JSON and HTML show them."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import redis

from rmq_spark.client.administration import all_queues
from rmq_spark.client.queue import Queue, overview_of
from rmq_spark.console.state import Console, LastingEnsemble
from rmq_spark.errors import InvalidOption, OwnershipError
from rmq_spark.inspect.browse import (
    ENTRIES_A_SEARCH,
    Wanted,
    browse,
    deaths_from,
    read_entry,
)
from rmq_spark.inspect.checks import FAIL, WARN
from rmq_spark.inspect.fields import (
    content_text,
    definition_json,
    entry_json,
    queues_json,
    row_json,
    time_json,
    warnings_of,
)
from rmq_spark.inspect.figures import CONSUMER_SEEN_MS, Rate, Row
from rmq_spark.inspect.histogram import bar_json, bars_of
from rmq_spark.protocol import reading
from rmq_spark.protocol.calls import ALL_KINDS
from rmq_spark.protocol.claims import (
    STATES,
    ClaimRecord,
    Figures,
    Header,
    SlotHolders,
)
from rmq_spark.protocol.pages import Bounds, Entry, Position, QueueKind
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import FLAGS, group_text
from rmq_spark.topics.parsing import Option, duration, whole
from rmq_spark.topics.reasons import printable

Query = Mapping[str, str]

SORTS = {
    "topic": "topic",
    "in": "inPerSecond",
    "out": "outPerSecond",
    **dict(zip(STATES, STATES, strict=True)),
    "oldest": "oldestDueForMs",
}
SPAN = Option("span", duration(1000), "For how long from now to draw bars")
SPANS = ("5m", "1h", "6h", "1d", "7d", "30d")
# A strip of slots shows at most so many cells; a cell of a larger topic stands for several slots.
MOST_CELLS = 128
MESSAGES_A_PAGE = 50
LIMIT = Option("limit", whole(1, 500), "How many messages to list")
# A page shows at most so many bytes of a content, as text or as a dump.
TEXT_SHOWN, DUMP_SHOWN = 64 * 1024, 2 * 1024
BYTES_A_LINE = 16
# What an entry carries that --hide-contents hides.
_CARRIED = ("content", "contentBase64", "key", "keyBase64", "headers", "reason")
# Estimates weigh the keys of so many slots of a topic, and of each key so many messages.
SLOTS_WEIGHED = 4
MESSAGES_WEIGHED = 10
BYTES_WEIGHED = 2**20
# Redis keeps a sorted set of at most so many entries in another form; an entry of a larger one
# takes so many bytes beside its content (lua/include/limits.lua).
SORTED_KINDS, SMALL_SET, ENTRY_BYTES = "store retry dead", 128, 107
SLOW_CALLS = 128
_MORE = (
    ("CONFIG GET", "save"),
    ("CONFIG GET", "slowlog-log-slower-than"),
    ("SLOWLOG GET", SLOW_CALLS),
)
_NOT_PERMITTED = "this Redis user may not run CONFIG GET and SLOWLOG GET"
_INFO = (
    *("redis_version", "valkey_version", "uptime_in_seconds", "connected_clients", "maxclients"),
    *("used_memory", "used_memory_peak", "maxmemory", "maxmemory_policy"),
    *("mem_fragmentation_ratio", "aof_enabled", "aof_last_write_status", "rdb_last_save_time"),
    *("rdb_last_bgsave_status", "role", "connected_slaves", "instantaneous_ops_per_sec"),
)


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
        "totals": {name: sum(one[name] for one in listed) for name in STATES},
        "unreadable": unreadable,
        "findings": [f._asdict() for f in console.findings() if f.state in (WARN, FAIL)],
    }


def _row(console: Console, row: Row) -> dict[str, Any]:
    line = console.rates.line(row.topic, row.group)
    return {
        **row_json(row, line[-1] if line else Rate(0.0, 0.0, 0.0)),
        "topicType": row.definition.type.name,
        "paused": row.queue.is_paused,
        "warnings": warnings_of(row),
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


def topic(console: Console, query: Query, name: str) -> dict[str, Any]:
    """Return the state of a topic in one group. query: group, span."""
    queue = console.queue(name, query.get("group"))
    definition, row = queue.definition, Row(queue, *overview_of(queue))
    figures, now_ms = row.figures, row.now_ms
    _, by_slot = queue.ask(reading.figures_by_slot)
    holders = queue.ask(reading.holders)
    rate, owners = console.rates.note(row), _owners(console, queue)
    return {
        **{setting.option.name: definition.text_of(name) for name, setting in FLAGS.items()},
        **definition_json(definition),
        "settings": [
            {
                "name": name,
                "label": setting.flag.strip("-").replace("-", " "),
                "value": definition.text_of(name),
                "choices": setting.option.parser.choices,
            }
            for name, setting in FLAGS.items()
        ],
        "group": row.group,
        "now": time_json(now_ms),
        "inPerSecond": round(rate.came, 1),
        "outPerSecond": round(rate.went, 1),
        "line": _line_json(console.rates.line(name, row.group)),
        "oldestDueForMs": row.oldest_age_ms,
        "mergedShare": _share(figures.counters["merged"], figures.counters["accepted"]),
        "queues": queues_json(figures, now_ms),
        "counters": figures.counters,
        "deaths": _deaths(console, figures),
        "warnings": warnings_of(row),
        **_bars(queue, now_ms, query.get("span", "")),
        "slots": [
            {**_slot_json(slot, of, held), "owner": owners.get(slot)}
            for slot, (of, held) in enumerate(zip(by_slot, holders, strict=True))
        ],
        "consumers": consumers_json(holders, now_ms),
    }


def _deaths(console: Console, figures: Figures) -> dict[str, int]:
    found = Counter[str]()
    for name, messages in figures.deaths.items():
        found[console.class_of(name)] += messages
    return found


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _bars(queue: Queue, now_ms: int, span: str) -> dict[str, Any]:
    """Return the bars of a queue; span: a duration from now on, or empty for all messages."""
    topic = queue.definition
    span = span if topic.type.has_due_times else ""
    times = Bounds(None, now_ms + SPAN.parse(span)) if span else Bounds()
    return {"span": span, "bars": [bar_json(topic, bar) for bar in bars_of(queue, now_ms, times)]}


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
    headers, claims = (
        defaultdict[str, list[Header]](list),
        defaultdict[str, list[ClaimRecord]](list),
    )
    held_slots = Counter[str]()
    for of_slot in holders:
        for name, header in of_slot.headers.items():
            headers[name].append(header)
        held = [claim for claim in of_slot.claims if claim.held]
        held_slots.update({claim.consumer for claim in held})
        for claim in held:
            claims[claim.consumer].append(claim)
    found = [
        _consumer_json(name, headers[name], claims[name], now_ms) | {"heldSlots": held_slots[name]}
        for name in {*headers, *claims}
    ]
    return sorted(found, key=lambda one: (one["seenMsAgo"], one["consumer"]))


def _consumer_json(
    name: str, headers: Sequence[Header], claims: Sequence[ClaimRecord], now_ms: int
) -> dict[str, Any]:
    seen_ms = max((header.seen_ms for header in headers), default=0)
    run = max((header.run for header in headers), default=0)
    return {
        "consumer": name,
        "started": time_json(run or None),  # a run's number is the time of its start
        "slots": len(headers),
        "claims": len(claims),
        "messages": sum(claim.held for claim in claims),
        "lastBatch": (last := max((header.last_seq for header in headers), default=0)),
        # The end of a listener settles one more, so that no late call claims anything.
        "committedBatch": min(last, max((header.settled for header in headers), default=0)),
        "holdsSince": time_json(min((claim.made_ms for claim in claims), default=None)),
        "leaseEnds": time_json(min((claim.deadline_ms for claim in claims), default=None)),
        "seen": time_json(seen_ms or None),
        "seenMsAgo": max(0, now_ms - seen_ms),
    }


class MessageGone(InvalidOption):
    """An error for a message that the queue does not hold any more, or that is not known."""


def messages(console: Console, query: Query, name: str) -> dict[str, Any]:
    """Return a part of a queue of a topic.

    query: group; queue; slot; limit; after, the reference of the message to continue after; find, a
    text, and by: "prefix", or "name" for a whole content or key; reason, a class.
    """
    queue, kind = console.queue(name, query.get("group")), _kind_of(query)
    slot = query.get("slot", "").strip()
    of_slot = Option("slot", whole(0, queue.slots[-1]), "The slot")
    slots = [of_slot.parse(slot)] if slot else None
    text, by, reason = query.get("find", ""), query.get("by", "prefix"), query.get("reason", "")
    if console.settings.hide_contents and text:
        raise InvalidOption(
            "A search is not accepted with --hide-contents: it would show what is in messages."
        )
    name_wanted = text.encode() if text and by == "name" else None
    found = browse(
        queue,
        kind,
        slots=slots,
        after=_position_of(console, query.get("after", "")),
        most=LIMIT.parse(query.get("limit") or str(MESSAGES_A_PAGE)),
        wanted=_wanted(console, b"" if name_wanted else text.encode(), reason),
        name=name_wanted,
    )
    sizes = queue.ask(reading.sizes, [kind], slots or queue.slots)
    return {
        **_topic_of(queue),
        "queue": kind.value,
        "slot": query.get("slot", ""),
        "find": text,
        "by": by,
        "reason": reason,
        "after": query.get("after", ""),
        "held": sum(sizes),
        "looked": found.looked,
        "lookedAtMost": ENTRIES_A_SEARCH if text or reason else None,
        "messages": [_listed_json(console, queue, kind, *one) for one in found.entries],
        "next": _next_of(console, queue, kind, found.after),
    }


def _group_of(queue: Queue) -> dict[str, Any]:
    return {"topic": queue.definition.name, "group": group_text(queue.keys.group)}


def _topic_of(queue: Queue) -> dict[str, Any]:
    return {**definition_json(queue.definition), "group": group_text(queue.keys.group)}


def _next_of(console: Console, queue: Queue, kind: QueueKind, after: Position | None) -> str | None:
    return None if after is None else console.references.name(queue, kind, after)


def _kind_of(query: Query) -> QueueKind:
    return QueueKind(query.get("queue") or QueueKind.STORE)


def _position_of(console: Console, reference: str) -> Position | None:
    if not reference:
        return None
    found = console.references.find(reference)
    if found is None:
        raise MessageGone(
            "The place to continue at is not known any more: the console was restarted, or has "
            "listed many messages since. Begin at the first page again."
        )
    return found


def _wanted(console: Console, text: bytes, reason: str) -> Wanted | None:
    if not text and not reason:
        return None

    def is_wanted(name: bytes, death: str | None) -> bool:
        return name.startswith(text) and (not reason or console.class_of(death or "") == reason)

    return is_wanted


def _listed_json(
    console: Console, queue: Queue, kind: QueueKind, entry: Entry, position: Position
) -> dict[str, Any]:
    fields = entry_json(queue.definition.name, entry)
    own = {field: fields.pop(field) for field in _CARRIED if field in fields}
    hidden = console.settings.hide_contents
    return {
        "ref": console.references.name(queue, kind, position),
        **fields,
        "preview": None if hidden else content_text(entry.content),
        "keyPreview": None if hidden or entry.key is None else content_text(entry.key),
        "bytes": len(entry.content or b""),
        "headers": len(entry.headers),
        "reasonClass": _class_of(console, entry),
        "reason": None if hidden else own.get("reason"),
        "hidden": hidden,
    }


def _class_of(console: Console, entry: Entry) -> str | None:
    return None if entry.reason is None else console.class_of(entry.reason)


def message(console: Console, query: Query, name: str, reference: str) -> dict[str, Any]:
    """Return a message with all it carries, as a list has named it. query: group, queue."""
    queue, kind = console.queue(name, query.get("group")), _kind_of(query)
    position = console.references.find(reference)
    found = None if position is None else read_entry(queue, kind, position)
    if found is None:
        raise MessageGone(
            "The message is not in this queue any more: it was delivered, moved or deleted. Or the "
            "console was restarted, or has listed many messages since. Look for it in the list "
            "again."
        )
    entry, hidden = found[0], console.settings.hide_contents
    fields = entry_json(queue.definition.name, entry)
    if hidden:
        fields = {field: value for field, value in fields.items() if field not in _CARRIED}
    return {
        **_topic_of(queue),
        "ref": reference,
        "message": fields,
        "bytes": len(entry.content or b""),
        "keyBytes": None if entry.key is None else len(entry.key),
        "hidden": hidden,
        "now": time_json(queue.now_ms()),
        "reasonClass": _class_of(console, entry),
        "shown": None if hidden else content_shown(entry.content),
        "keyShown": None if hidden or entry.key is None else content_text(entry.key),
        "headersShown": []
        if hidden
        else [{"name": key, "value": content_text(value)} for key, value in entry.headers],
    }


def content_shown(content: bytes | None) -> dict[str, Any]:
    """Return a content as a text, or as a dump if it is not UTF-8. cut: its end is left out."""
    if content is None:
        return {"form": "none", "text": "", "cut": False}
    try:
        text = content[:TEXT_SHOWN].decode()
    except UnicodeDecodeError as error:
        if error.start < len(content[:TEXT_SHOWN]) - 3 or len(content) <= TEXT_SHOWN:
            return {
                "form": "bytes",
                "text": _dump(content[:DUMP_SHOWN]),
                "cut": len(content) > DUMP_SHOWN,
            }
        text = content[: error.start].decode()
    cut = len(content) > TEXT_SHOWN
    indented = None if cut else _indented(text)
    return {
        "form": "text" if indented is None else "JSON",
        "text": printable(text if indented is None else indented, "\n\t"),
        "cut": cut,
    }


def _indented(text: str) -> str | None:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _dump(content: bytes) -> str:
    lines = []
    for at in range(0, len(content), BYTES_A_LINE):
        part = content[at : at + BYTES_A_LINE]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * BYTES_A_LINE}} {plain}")
    return "\n".join(lines)


def dead(console: Console, query: Query, name: str) -> dict[str, Any]:
    """Return some of the dead by class of reason, and how many were read. query: group, after."""
    queue = console.queue(name, query.get("group"))
    after = _position_of(console, query.get("after", ""))
    found = deaths_from(queue, after)
    figures = queue.figures()
    reasons: dict[str, dict[str, Any]] = {}
    for reason, died_ms in found.reasons:
        _count_death(console, reasons, reason, died_ms)
    listed = sorted(reasons.values(), key=lambda one: (-one["messages"], one["reason"]))
    return {
        **_topic_of(queue),
        "dead": figures.dead.count,
        "firstDied": time_json(figures.dead.oldest_ms),
        "looked": len(found.reasons),
        "after": query.get("after", ""),
        "next": _next_of(console, queue, QueueKind.DEAD, found.after),
        "reasons": [
            {**one, "first": time_json(one["first"]), "last": time_json(one["last"])}
            for one in listed
        ],
        "diedEver": _deaths(console, figures),
        "hidden": console.settings.hide_contents,
    }


def _count_death(
    console: Console, reasons: dict[str, dict[str, Any]], reason: str, died_ms: int
) -> None:
    named, hidden = console.class_of(reason), console.settings.hide_contents
    new = {"messages": 0, "first": died_ms, "last": died_ms, "example": None}
    of = reasons.setdefault(named, {"reason": named, **new})
    of["messages"] += 1
    of["first"] = min(of["first"], died_ms)
    if died_ms >= of["last"]:
        of["last"] = died_ms
        of["example"] = None if hidden else reason


def consumers(console: Console, query: Query) -> dict[str, Any]:
    rows, _ = console.look()
    found = [
        {**_backlog_json(row), "oldestDueForMs": row.oldest_age_ms, **one}
        for row in rows
        if row.known_consumers or row.figures.prepare.count
        for one in consumers_json(row.queue.ask(reading.holders), row.now_ms)
    ]
    return {
        "consumers": sorted(found, key=lambda one: one["seenMsAgo"] >= CONSUMER_SEEN_MS),
        "unread": [_backlog_json(row) for row in rows if row.due and not row.consumers],
        "zookeeper": _zookeeper(console.ensemble, rows),
    }


def _backlog_json(row: Row) -> dict[str, Any]:
    return {"topic": row.topic, "group": row.group, "due": row.due}


def _zookeeper(ensemble: LastingEnsemble | None, rows: list[Row]) -> dict[str, Any] | None:
    if ensemble is None:
        return None
    options, error = ensemble.options, None
    try:
        members = [
            {"topic": row.topic, "group": row.group, **asdict(member)}
            for row in rows
            if row.definition.exclusive
            for member in ensemble.members(row.queue)
        ]
    except (OwnershipError, InvalidOption) as failure:
        members, error = [], str(failure)
    return {"hosts": options.hosts, "root": options.path, "error": error, "members": members}


def server(console: Console, query: Query) -> dict[str, Any]:
    broker = console.broker
    queues = list(all_queues(broker))
    slots = {queue.definition.name: queue.definition.slot_amount for queue in queues}
    infos, more = broker.server.infos(), broker.server.on_masters(*_MORE)
    nodes = [
        _node_json(broker.server, node, info, *more.get(node, (None, None, None)))
        for node, info in infos.items()
    ]
    return {
        "redisAddress": broker.server.address,
        "keyPrefix": broker.key_prefix,
        "nodes": nodes,
        "findings": [finding._asdict() for finding in console.findings()],
        "memory": sorted(map(_memory_json, queues), key=lambda one: -(one["bytes"] or 0)),
        "topics": len(slots),
        "slots": sum(slots.values()),
    }


def _node_json(
    of: Server, node: str | None, info: dict[str, Any], save: Any, threshold: Any, calls: Any
) -> dict[str, Any]:
    """Describe a master. save, threshold, calls: what it replied to _MORE."""
    return {
        "node": node or of.address,
        **{field: info[field] for field in _INFO if field in info},
        **_disk_json(info, save),
        **_slow(of, threshold, calls),
    }


def _disk_json(info: dict[str, Any], save: Any) -> dict[str, Any]:
    """Return how the node keeps its data on disk, None if unknown, and the time of its snapshot."""
    started_s = int(info.get("server_time_usec", 0)) // 10**6 - info.get("uptime_in_seconds", 0)
    saved_s = info.get("rdb_last_save_time", 0)
    # A server that has not written a snapshot names its start instead.
    has_saved = bool(saved_s) and saved_s > started_s + 1
    kept: str | None = "append only"
    if not info.get("aof_enabled"):
        if isinstance(save, dict):
            kept = "snapshots" if save.get("save") else "nothing"
        else:  # not permitted
            kept = "snapshots" if has_saved else None
    return {"onDisk": kept, "lastSaved": time_json(1000 * saved_s) if has_saved else None}


def _slow(of: Server, threshold: Any, calls: Any) -> dict[str, Any]:
    """Return the slow calls that the node remembers, by script, without their arguments."""
    if not isinstance(threshold, dict) or not isinstance(calls, list):
        return {"slow": [], "slowError": _NOT_PERMITTED}
    names = of.script_names
    found: dict[str, dict[str, Any]] = {}
    for call in calls:
        name = _called(call["command"], names)
        one = found.setdefault(name, {"call": name, "calls": 0, "longestMs": 0.0, "last": 0})
        one["calls"] += 1
        one["longestMs"] = max(one["longestMs"], round(call["duration"] / 1000, 1))
        one["last"] = max(one["last"], call["start_time"])
    listed = sorted(found.values(), key=lambda one: -one["longestMs"])
    return {
        "slow": [{**one, "last": time_json(1000 * one["last"])} for one in listed],
        "slowError": None,
        "slowAboveMs": int(threshold.get("slowlog-log-slower-than", 0)) / 1000,
    }


def _called(command: bytes, names: Mapping[str, str]) -> str:
    """Name a call without its arguments, which may be contents."""
    words = command.split(b" ", 2)
    verb = words[0].decode("ascii", "replace")[:40]
    if verb.upper() == "EVALSHA" and len(words) > 1:
        return f"script {names.get(words[1].decode('ascii', 'replace'), 'of another program')}"
    return verb


def _memory_json(queue: Queue) -> dict[str, Any]:
    amount = queue.definition.slot_amount
    weighed = queue.slots[:: max(1, amount // SLOTS_WEIGHED)][:SLOTS_WEIGHED]
    try:
        size = _bytes_of(queue, weighed) * amount // len(weighed)
    except redis.ResponseError:  # not permitted
        size = None
    return {**_group_of(queue), "bytes": size, "slotsWeighed": len(weighed)}


def _bytes_of(queue: Queue, slots: Sequence[int]) -> int:
    """Estimate the memory of slots. MEMORY USAGE looks only at the first of sorted messages."""
    client, of_queue = queue.server.client, queue.queues
    keys = [key for slot in slots for key in of_queue.keys_of(slot, ALL_KINDS)]
    ordered = [key for slot in slots for key in of_queue.keys_of(slot, SORTED_KINDS)]
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.memory_usage(key, samples=MESSAGES_WEIGHED)
    for key in ordered:
        pipeline.zcard(key)
    for slot in slots:
        pipeline.hget(queue.keys.stats(slot), "largest")
    found = pipeline.execute()
    sizes = {key: size or 0 for key, size in zip(keys, found, strict=False)}
    largest = max(int(one or 1) for one in found[-len(slots) :])
    some = max(1, min(MESSAGES_WEIGHED, BYTES_WEIGHED // largest))
    counts = zip(ordered, found[len(keys) :], strict=False)
    large = {key: count for key, count in counts if count > SMALL_SET}
    pipeline = client.pipeline(transaction=False)
    for key in large:
        pipeline.zrandmember(key, some)
    for (key, count), names in zip(large.items(), pipeline.execute(), strict=True):
        sizes[key] = count * (ENTRY_BYTES + sum(map(len, names)) // max(1, len(names)))
    return sum(sizes.values())
