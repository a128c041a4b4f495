"""How topics, messages and figures are shown: texts for people, fields of JSON for programs."""

import base64
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rmq_spark.client.schedules import ScheduleSeen
from rmq_spark.inspect.figures import FULL_PERCENT, Rate, Row
from rmq_spark.protocol.bodies import Headers
from rmq_spark.protocol.claims import Delivered, Figures, QueueFigures
from rmq_spark.protocol.pages import Entry, QueueKind
from rmq_spark.topics.definition import SETTINGS, TopicDefinition, group_text
from rmq_spark.topics.parsing import time_at
from rmq_spark.topics.reasons import printable

SHOWN_BYTES = 200
_UNITS_S = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def messages_text(how_many: int) -> str:
    return count_text(how_many, "message")


def count_text(how_many: int, one: str, several: str = "") -> str:
    """Format a number of things: ``1 slot``. several: the plural, if not with an s."""
    return f"{how_many:,} {one if how_many == 1 else several or f'{one}s'}"


def time_text(ms: int | None) -> str | None:
    """Format ms since 1970 in ISO 8601, UTC; as ``N ms`` beyond Python's calendar; None as None."""
    found = time_json(ms)
    return f"{found} ms" if isinstance(found, int) else found


def time_json(ms: int | None) -> str | int | None:
    """Convert ms since 1970 to ISO 8601 in UTC. Beyond Python's calendar, it stays a number."""
    if ms is None:
        return None
    try:
        return time_at(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return ms


def age_text(ms: int | None) -> str:
    """Format a duration in ms in its two largest units, such as ``2h5m``; "" for None."""
    if ms is None:
        return ""
    seconds = max(0, ms) // 1000
    for (unit, size), (smaller, part) in pairwise(_UNITS_S):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // part}{smaller}"
    return f"{seconds}s"


def content_text(content: bytes | None) -> str:
    """Format a content or key for people. Escapes control characters and bytes that are not UTF-8.

    None becomes the empty text. Cuts a content of more than SHOWN_BYTES; --json shows all of it.
    """
    if content is None:
        return ""
    if len(content) > SHOWN_BYTES:
        return f"{content_text(content[:SHOWN_BYTES])}... ({len(content):,} bytes)"
    return printable(content.decode("utf-8", "backslashreplace"))


def content_json(content: bytes | None, name: str = "content") -> dict[str, str | None]:
    """Convert a content to the field content, or contentBase64 if it is not UTF-8."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content or b"").decode()}


def headers_json(headers: Headers) -> list[dict[str, str | None]]:
    return [{"key": name, **content_json(value, "value")} for name, value in headers]


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def json_text(value: Any) -> str:
    """Write JSON in one line; in ASCII if a character could change how a terminal shows text."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def schedule_json(one: ScheduleSeen) -> dict[str, Any]:
    of = one.schedule
    return without_none(
        {
            "schedule": of.name,
            "topic": of.topic,
            "rule": of.rule,
            "cron": of.cron,
            "everyMs": of.every_ms,
            "timezone": None if of.cron is None else of.timezone,
            "first": time_json(of.first_ms),
            "last": time_json(of.last_ms),
            "catchUp": of.catch_up,
            "overlap": of.overlap,
            "paused": of.paused,
            "lastOccurrence": time_json(one.last_ms),
            "nextOccurrence": time_json(one.next_ms),
            "lateMs": one.late_ms,
            "waits": one.waits,
        }
    )


def definition_json(topic: TopicDefinition) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topicType": topic.type.name,
        "slotAmount": topic.slot_amount,
        **{setting.json_name: setting.of(topic) for setting in SETTINGS.values()},
        "retryBackoffMs": list(topic.retry_backoff_ms),
        "pausedGroups": [group_text(group) for group in topic.paused_groups],
        "groups": [group_text(group) for group in topic.groups],
    }


def group_json(row: Row) -> dict[str, Any]:
    return {
        "group": row.group,
        "heldUntil": time_json(row.held_until_ms),
        "usedShares": row.used,
        "queues": queues_json(row.figures, row.now_ms),
        "counters": row.figures.counters,
        "consumers": [
            {
                "consumer": seen.consumer,
                "slots": seen.slots,
                "heldSlots": seen.held_slots,
                "seenMsAgo": seen.ms_ago,
            }
            for seen in row.known_consumers
        ],
    }


def queues_json(figures: Figures, now_ms: int) -> list[dict[str, Any]]:
    return [
        {"queue": name, "messages": of.count, "due": of.due, **_first_json(name, of, now_ms)}
        for name, of in figures.queues.items()
    ]


def _first_json(name: str, queue: QueueFigures, now_ms: int) -> dict[str, Any]:
    """Return the earliest time in a queue as a JSON field, named after its meaning; or no field."""
    if queue.oldest_ms is None:
        return {}
    if name == QueueKind.PREPARE and queue.oldest_ms <= now_ms:
        return {}  # this lease has ended: the field due counts its messages
    names = {"store": "dueTime", "prepare": "leaseEnds", "retry": "dueTime", "dead": "diedAt"}
    return {names[name]: time_json(queue.oldest_ms)}


def own_json(message: Delivered | Entry) -> dict[str, Any]:
    """Convert what a message carries to JSON fields; key, headers and expiresAt if it has them."""
    return {
        **({} if message.key is None else content_json(message.key, "key")),
        **content_json(message.content),
        **({"headers": headers_json(message.headers)} if message.headers else {}),
        **without_none({"expiresAt": time_json(message.expires_at_ms)}),
    }


def entry_json(topic: str, entry: Entry) -> dict[str, Any]:
    return {
        "topic": topic,
        "queue": entry.queue,
        "slot": entry.slot,
        **own_json(entry),
        **without_none(
            {
                "dueTime": time_json(entry.due_time_ms),
                "priority": entry.priority,
                "retriesLeft": entry.retries_left,
                "preparedAt": time_json(entry.prepared_at_ms),
                "consumer": entry.consumer,
                "diedAt": time_json(entry.died_at_ms),
                "reason": entry.reason,
            }
        ),
    }


def warnings_of(row: Row) -> list[str]:
    """What keeps messages of a group back, or soon will, in a few words each."""
    paused = row.queue.is_paused
    free = not (paused or row.held_until_ms)
    rate = row.queue.definition.rate
    found = {
        "paused": paused,
        "nobody reads": row.due and not row.consumers and free,
        "leases ended": row.figures.prepare.due,
        f"held until {time_text(row.held_until_ms)}": row.due and row.held_until_ms,
        f"at most {rate}": row.due and row.consumers and free and rate,
        **dict.fromkeys(row.full_to(FULL_PERCENT).values(), True),
    }
    return [words for words, holds in found.items() if holds]


def row_json(row: Row, rate: Rate | None) -> dict[str, Any]:
    """Return the figures of a group. rate: None at a first look, which shows no rate."""
    return {
        "topic": row.topic,
        "group": row.group,
        "inPerSecond": rate and round(rate.came, 1),
        "outPerSecond": rate and round(rate.went, 1),
        **row.states,
        "oldestDueForMs": row.oldest_age_ms,
        "warnings": warnings_of(row),
        "consumers": [
            {
                "consumer": seen.consumer,
                **({"slots": seen.slots} if row.definition.exclusive else {}),
                "seenMsAgo": seen.ms_ago,
            }
            for seen in row.consumers
        ],
    }
