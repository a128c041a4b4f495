"""Checks of a Redis server: connection, persistence, memory, permissions, claims."""

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis

from rmq_spark.client.broker import Broker
from rmq_spark.client.claim_keys import claim_keys, outdated_claims, stray_claims
from rmq_spark.client.queue import Queue
from rmq_spark.client.remedies import queue_command
from rmq_spark.errors import (
    InvalidOption,
    RmqError,
    ServerRefused,
    ServerUnavailable,
    ServerUntrusted,
)
from rmq_spark.transport.server import Server

FULL_PERCENT = 80
OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"
_REDIS_REMEDIES: tuple[tuple[type[RmqError], str], ...] = (
    (InvalidOption, "Correct --redis-url, RMQ_REDIS_URL or --option as the message says"),
    (
        ServerUnavailable,
        "Run rmq local in another terminal and paste the line that it prints; or start your Redis "
        "and set RMQ_REDIS_URL to its address",
    ),
    (
        ServerRefused,
        "Put user and password into RMQ_REDIS_URL, as in redis://user:password@host:6379; "
        "permissions: docs/security.md",
    ),
    (
        ServerUntrusted,
        "Use the host name of the certificate, and -o redis.sslCaCerts=FILE of its authority",
    ),
)
_DEFAULT_REMEDY = "Do what the message says, then run rmq doctor again"


class Finding(NamedTuple):
    """The result of one check: its subject, its state, what the check saw, and a remedy.

    state: OK, WARN, FAIL, or SKIP for a check that did not run.
    """

    what: str
    state: str
    seen: str
    remedy: str = ""


def seen_of(error: RmqError) -> str:
    """Describe an error of the connection, without the remedies that follow in its text."""
    return str(error).partition(". rmq-spark retried")[0]


def check_server(broker: Broker) -> Iterator[Finding]:
    """Check a server that answers: persistence, memory and permissions. Yields a finding for each.

    Asks few questions, however much the server holds. Raises RmqError.
    """
    server, info = broker.server, _info(broker.server)
    version = info.get("valkey_version") or info.get("redis_version")
    yield Finding("Redis", OK, f"{server.address}, version {version}")
    yield Finding("Redis policy", OK, "noeviction")  # a Server refuses other policies
    yield _persistence(server, info)
    yield _memory(server, info)
    yield _permissions(server)


def redis_cli(address: str, command: str) -> str:
    """Return a call of redis-cli that can be typed. address: without credentials."""
    parts = urlsplit(address)
    if parts.scheme == "unix":
        return f"redis-cli -s {shlex.quote(parts.path)} {command}"
    where = f"-u {address} " if parts.scheme in ("redis", "rediss") else ""  # else: Sentinels
    return f"redis-cli {where}{command}"


def remedy_of(error: RmqError) -> str:
    """Return what to do about an error of the connection."""
    return next(
        (text for kind, text in _REDIS_REMEDIES if isinstance(error, kind)), _DEFAULT_REMEDY
    )


def _info(server: Server) -> dict[str, Any]:
    if server.is_cluster:
        node = server.client.get_random_primary_node()
        return dict(server.client.info(target_nodes=node))
    return dict(server.client.info())


def _persistence(server: Server, info: dict[str, Any]) -> Finding:
    if info.get("aof_enabled"):
        return Finding("Redis on disk", OK, "appendonly yes")
    try:
        saves = bool(server.client.config_get("save").get("save"))
    except (redis.RedisError, AttributeError):  # not permitted, or a reply for each node
        return Finding(
            "Redis on disk", SKIP, "appendonly no; this user cannot read the setting save"
        )
    remedy = redis_cli(server.address, "CONFIG SET appendonly yes")
    if saves:
        return Finding("Redis on disk", WARN, "snapshots only: a crash loses messages", remedy)
    seen = "persistence is off: a restart loses all messages"
    return Finding("Redis on disk", WARN, seen, remedy)


def _memory(server: Server, info: dict[str, Any]) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        # With a limit below the machine's memory, a full Redis refuses senders.
        seen = f"{used / 2**20:,.0f} MiB used, no maxmemory: a full machine kills Redis"
        remedy = redis_cli(server.address, "CONFIG SET maxmemory 2gb")
        return Finding("Redis memory", WARN, seen, remedy)
    percent = 100 * used // limit
    seen = f"{used / 2**20:,.0f} of {limit / 2**20:,.0f} MiB ({percent} %)"
    if percent < FULL_PERCENT:
        return Finding("Redis memory", OK, seen)
    return Finding(
        "Redis memory",
        WARN,
        seen,
        "Consume faster, purge dead messages with rmq purge, or set a higher maxmemory",
    )


def _permissions(server: Server) -> Finding:
    try:
        denied = server.find_denied()
    except RmqError as error:
        return Finding("Redis user", FAIL, str(error), remedy_of(error))
    if not denied:
        return Finding("Redis user", OK, "may run all commands of the queue")
    rights = " ".join(f"+{name.lower()}" for name in sorted(denied))
    remedy = redis_cli(server.address, f"ACL SETUSER {server.username or 'default'} {rights}")
    return Finding("Redis user", FAIL, f"may not run {', '.join(sorted(denied))}", remedy)


def check_claims(broker: Broker) -> Finding:
    """Check that every claim in progress can be settled by this version.

    Looks through all keys of the database.
    """
    try:
        queues = list(_all_queues(broker))
        outdated = [queue for queue in queues if outdated_claims(queue)]
        keys = claim_keys(broker.server, broker.key_prefix)
        stray = [queue for queue in queues if queue not in outdated and stray_claims(queue, keys)]
    except ServerRefused:
        return Finding("Claims", SKIP, "this user may not run SCAN and HGETALL")
    except RmqError as error:
        return Finding("Claims", FAIL, seen_of(error), remedy_of(error))
    for command, found, seen in (
        ("upgrade", outdated, "has claims of an earlier version"),
        ("expire", stray, "has claims whose record was deleted by hand"),
    ):
        if found:
            remedy = "; ".join(queue_command(queue, command) for queue in found)
            return Finding("Claims", FAIL, f"topic {found[0].definition.name} {seen}", remedy)
    return Finding("Claims", OK, f"topics: {len({queue.keys.topic for queue in queues})}")


def _all_queues(broker: Broker) -> Iterator[Queue]:
    for topic in broker.topics():
        for group in topic.groups:
            yield Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group)
