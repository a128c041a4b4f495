"""The page about the server: memory, persistence, limits, slow scripts, and the checks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis

from rmq_spark.client.queue import Queue
from rmq_spark.console.console import Console
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.protocol.topic_queues import ALL_KINDS
from rmq_spark.topics.definition import TopicDefinition, group_text
from rmq_spark.transport.server import Server
from rmq_spark.views.shown_texts import time_json

Query = Mapping[str, str]

# Estimates weigh the keys of so many slots of a topic, and of each key so many messages.
SLOTS_WEIGHED = 4
MESSAGES_WEIGHED = 10
SLOW_CALLS = 128
_NOT_PERMITTED = "this Redis user may not ask for it"
_INFO = (
    *("redis_version", "valkey_version", "uptime_in_seconds", "connected_clients", "maxclients"),
    *("used_memory", "used_memory_peak", "maxmemory", "maxmemory_policy"),
    *("mem_fragmentation_ratio", "aof_enabled", "aof_last_write_status", "rdb_last_save_time"),
    *("rdb_last_bgsave_status", "role", "connected_slaves", "instantaneous_ops_per_sec"),
)


def server(console: Console, query: Query) -> dict[str, Any]:
    """Return what the server says of itself, and an estimate of the memory of each topic."""
    broker = console.broker
    definitions = broker.topics()
    queues = [
        Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group)
        for topic in definitions
        for group in topic.groups
    ]
    nodes = [_node_json(broker.server, *node) for node in _nodes(broker.server)]
    return {
        "redisAddress": broker.server.address,
        "keyPrefix": broker.key_prefix,
        "nodes": nodes,
        "findings": [finding._asdict() for finding in console.findings()],
        "memory": sorted(_memory(queues), key=lambda one: -(one["bytes"] or 0)),
        "topics": len(definitions),
        "slots": sum(map(_slots_of, definitions)),
    }


def _slots_of(topic: TopicDefinition) -> int:
    return topic.slot_amount


def _nodes(of: Server) -> list[tuple[str, dict[str, Any]]]:
    """Return the name of each node that holds data, and what redis-py needs to ask it."""
    if not of.is_cluster:
        return [(of.address, {})]
    return [(node.name, {"target_nodes": node}) for node in of.client.get_primaries()]


def _node_json(of: Server, name: str, target: dict[str, Any]) -> dict[str, Any]:
    info = of.client.info(**target)
    saved = int(info.get("rdb_last_save_time", 0))
    return {
        "node": name,
        **{field: info[field] for field in _INFO if field in info},
        "lastSaved": time_json(1000 * saved) if saved else None,
        **_slow(of, target),
    }


def _slow(of: Server, target: dict[str, Any]) -> dict[str, Any]:
    """Return the slow calls that the node remembers, by script, without their arguments."""
    try:
        threshold = of.client.config_get("slowlog-log-slower-than", **target)
        calls = of.client.slowlog_get(SLOW_CALLS, **target)
    except redis.ResponseError:
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


def _memory(queues: Sequence[Queue]) -> Iterator[dict[str, Any]]:
    for queue in queues:
        topic, chosen = queue.definition, _weighed_slots(queue)
        kinds = [kind for kind in ALL_KINDS.split() if kind != QueueKind.PREPARE]
        keys = [getattr(queue.keys, kind)(slot) for slot in chosen for kind in kinds]
        try:
            sizes = _sizes(queue.server, keys)
        except redis.ResponseError:
            yield _memory_json(queue, None)
            continue
        yield _memory_json(queue, sum(sizes) * topic.slot_amount // len(chosen))


def _memory_json(queue: Queue, size: int | None) -> dict[str, Any]:
    return {
        "topic": queue.definition.name,
        "group": group_text(queue.keys.group),
        "bytes": size,
        "slotsWeighed": min(SLOTS_WEIGHED, queue.definition.slot_amount),
    }


def _weighed_slots(queue: Queue) -> list[int]:
    step = max(1, queue.definition.slot_amount // SLOTS_WEIGHED)
    return list(queue.slots)[::step][:SLOTS_WEIGHED]


def _sizes(of: Server, keys: Sequence[str]) -> list[int]:
    """Return the bytes of keys, estimated from some of their messages; 0 for a missing key."""
    pipeline = of.client.pipeline(transaction=False)
    for key in keys:
        pipeline.memory_usage(key, samples=MESSAGES_WEIGHED)
    return [size or 0 for size in pipeline.execute()]
