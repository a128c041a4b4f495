"""The page about consumers: who reads what, and what ZooKeeper knows of them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rmq_spark.client.overview import Row
from rmq_spark.client.queue import Queue
from rmq_spark.console.console import Console
from rmq_spark.console.lasting_ensemble import LastingEnsemble
from rmq_spark.console.pages.topic_views import consumers_json
from rmq_spark.errors import InvalidOption, OwnershipError
from rmq_spark.protocol import reading
from rmq_spark.topics.definition import parse_group

Query = Mapping[str, str]


def consumers(console: Console, query: Query) -> dict[str, Any]:
    """Return the consumers of all topics, with the backlog of their group."""
    rows, _ = console.look()
    known = [(row, _queue_of(console, row)) for row in rows]
    return {
        "consumers": [
            {
                "topic": row.topic,
                "group": row.group,
                "due": row.due,
                "oldestDueForMs": row.oldest_age_ms,
                **one,
            }
            for row, queue in known
            for one in consumers_json(queue.ask(reading.holders), row.now_ms)
        ],
        "unread": [
            {"topic": row.topic, "group": row.group, "due": row.due}
            for row in rows
            if row.due and not row.consumers
        ],
        "zookeeper": _zookeeper(console.ensemble, known),
    }


def _queue_of(console: Console, row: Row) -> Queue:
    broker = console.broker
    group = parse_group(row.group)
    return Queue(broker.server, row.definition, key_prefix=broker.key_prefix, group=group)


def _zookeeper(
    ensemble: LastingEnsemble | None, known: list[tuple[Row, Queue]]
) -> dict[str, Any] | None:
    """Return the members of all exclusive topics; None without a ZooKeeper to ask."""
    if ensemble is None:
        return None
    options = ensemble.options
    found: dict[str, Any] = {"hosts": options.hosts, "root": options.path, "error": None}
    try:
        members = [
            {"topic": row.topic, "group": row.group, **asdict(member)}
            for row, queue in known
            if row.exclusive
            for member in ensemble.members(queue)
        ]
    except (OwnershipError, InvalidOption) as error:
        return {**found, "members": [], "error": str(error)}
    return {**found, "members": members}
