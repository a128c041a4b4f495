"""The fields of topics, figures, consumers and messages as JSON shows them."""

from typing import Any

from rmq_spark.client.overview import Row
from rmq_spark.client.queue import Queue
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import Delivered, QueueFigures
from rmq_spark.protocol.pages import Entry, QueueKind
from rmq_spark.topics.definition import TopicDefinition, group_text
from rmq_spark.views.rates import Rate
from rmq_spark.views.shown_texts import content_json, headers_json, time_json, without_none


def definition_json(topic: TopicDefinition) -> dict[str, Any]:
    """Convert the definition of a topic to JSON fields."""
    return {
        "topic": topic.name,
        "topicType": topic.type.name,
        "slotAmount": topic.slot_amount,
        "maxRetries": topic.max_retries,
        "retryBackoffMs": list(topic.retry_backoff_ms),
        "exclusive": topic.exclusive,
        "paused": topic.paused,
        "groups": [group_text(group) for group in topic.groups],
        "keyed": topic.keyed,
        "payload": topic.payload,
        "onExpiry": topic.on_expiry,
        "deadRetentionMs": topic.dead_retention_ms,
    }


def group_json(queue: Queue) -> dict[str, Any]:
    """Read the queues, counters and consumers of a group, as JSON fields."""
    figures, now_ms = queue.figures(), queue.now_ms()
    return {
        "group": group_text(queue.keys.group),
        "queues": [
            {"queue": name, "messages": of.count, "due": of.due, **first_json(name, of, now_ms)}
            for name, of in figures.queues.items()
        ],
        "counters": figures.counters,
        "consumers": consumers_json(queue, now_ms),
    }


def first_json(name: str, queue: QueueFigures, now_ms: int) -> dict[str, Any]:
    """Return the earliest time in a queue as a JSON field, named after its meaning.

    Returns no field for a queue without such a time.
    """
    if queue.oldest_ms is None:
        return {}
    if name == QueueKind.PREPARE and queue.oldest_ms <= now_ms:
        return {}  # this lease has ended: the field due counts its messages
    names = {"store": "dueTime", "prepare": "leaseEnds", "retry": "dueTime", "dead": "diedAt"}
    return {names[name]: time_json(queue.oldest_ms)}


def consumers_json(queue: Queue, now_ms: int) -> list[dict[str, Any]]:
    """Read the consumers that Redis remembers, as JSON fields. now_ms: Redis' time."""
    return [
        {
            "consumer": seen.consumer,
            "slots": seen.slots,
            "heldSlots": seen.held_slots,
            "seenMsAgo": seen.ms_ago,
        }
        for seen in queue.ask(reading.consumers, now_ms)
    ]


def own_json(message: Delivered | Entry) -> dict[str, Any]:
    """Convert what a message carries to JSON fields; key, headers and expiresAt if it has them."""
    return {
        **({} if message.key is None else content_json(message.key, "key")),
        **content_json(message.content),
        **({"headers": headers_json(message.headers)} if message.headers else {}),
        **without_none({"expiresAt": time_json(message.expires_at_ms)}),
    }


def entry_json(topic: str, entry: Entry) -> dict[str, Any]:
    """Convert a message to JSON fields, which are named like the columns of a table."""
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


def row_json(row: Row, rate: Rate) -> dict[str, Any]:
    """Convert the state of a group to JSON fields."""
    figures = row.figures
    return {
        "topic": row.topic,
        "group": row.group,
        "inPerSecond": round(rate.came, 1),
        "outPerSecond": round(rate.went, 1),
        "due": row.due,
        "delayed": row.delayed,
        "prepared": figures.prepare.count,
        "retry": figures.retry.count,
        "dead": figures.dead.count,
        "oldestDueForMs": row.oldest_age_ms,
        "consumers": [
            {
                "consumer": seen.consumer,
                **({"slots": seen.slots} if row.exclusive else {}),
                "seenMsAgo": seen.ms_ago,
            }
            for seen in row.consumers
        ],
    }
