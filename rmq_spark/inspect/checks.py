"""Checks of a Redis server: connection, persistence, memory, permissions, claims."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis

from rmq_spark.client import schedules
from rmq_spark.client.administration import all_queues
from rmq_spark.client.broker import Broker
from rmq_spark.client.hints import Place, command_line, queue_command
from rmq_spark.client.queue import Queue
from rmq_spark.client.repair import queues_with_strays
from rmq_spark.errors import (
    InvalidOption,
    RmqError,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    ServerUntrusted,
)
from rmq_spark.inspect.figures import FULL_PERCENT, Row, look
from rmq_spark.options import in_url
from rmq_spark.redis.failures import denied_command, is_of_keys, without_permit
from rmq_spark.redis.server import NO_EVICTION, Server
from rmq_spark.topics.keys import topics_key
from rmq_spark.topics.parsing import duration_text

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
_ADMINISTRATOR = ("--user", "ADMINISTRATOR", "--askpass")
# A comment of the shell, so that the whole remedy can be pasted.
_UNTIL_RESTART = "# then ACL SAVE, or the same in redis.conf"


class Finding(NamedTuple):
    """The result of a check. state: OK, WARN, FAIL, or SKIP for a check that did not run."""

    what: str
    state: str
    seen: str
    remedy: str = ""


def seen_of(error: RmqError) -> str:
    """Describe an error of the connection, without the remedies that follow in its text."""
    return str(error).partition(". rmq-spark tried")[0]


def check_server(broker: Broker, *, reads_only: bool = False) -> Iterator[Finding]:
    """Check a server that answers: role, persistence, memory and permissions.

    Asks few questions. reads_only: whether the user must only be permitted to look.
    """
    server, info = broker.server, broker.server.info()
    yield Finding("Redis", OK, f"{server.address}, {software_of(info)}")
    if info.get("role") == "slave":
        yield _replica(info)
    yield _policy(server, info)
    yield _persistence(server, info)
    yield _memory(server, info)
    if "master_replid" not in info:
        yield _hidden(
            *("Redis failover", "master_replid"),
            "Stop queries before the server restarts, and set redis.minReplicas. A batch in work "
            "does not notice that Redis lost writes, and may commit messages that it has not read",
        )
    yield _permissions(broker, reads_only)
    if server.answers_without_login():
        remedy = "Create the users of docs/security.md; when all programs use them: "
        remedy += f"{_redis_cli(server, 'ACL SETUSER default off')}  {_UNTIL_RESTART}"
        yield Finding("Redis login", WARN, "Redis answers without user and password", remedy)


def redis_cli(
    address: str, command: str, options: Sequence[str] = (), username: str | None = None
) -> str:
    """Return a command of redis-cli for a shell. command: one line, as Redis reads it.

    options: those of redis-cli for TLS. username: that of rmq, who may hardly give such commands.
    """
    words = [*options, *(_ADMINISTRATOR if username is not None else ()), *command.split()]
    parts = urlsplit(address)
    if parts.scheme == "unix":
        return shlex.join(["redis-cli", "-s", parts.path, *words])
    where = ("-u", address) if parts.scheme in ("redis", "rediss") else ()  # else: Sentinels
    return shlex.join(["redis-cli", *where, *words])


def _redis_cli(server: Server, command: str) -> str:
    return redis_cli(server.address, command, server.redis_cli_options, server.username)


def remedy_of(error: RmqError) -> str:
    command = denied_command(str(error)) if isinstance(error, ServerRefused) else None
    if command is not None:
        return f"Permit the user +{command} (docs/security.md)"
    return next(
        (text for kind, text in _REDIS_REMEDIES if isinstance(error, kind)), _DEFAULT_REMEDY
    )


def software_of(info: dict[str, Any]) -> str:
    """Name a server and its version, such as "Valkey 9.1.2"."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


def _replica(info: dict[str, Any]) -> Finding:
    master = f"{in_url(info['master_host'])}:{info['master_port']}"
    return Finding(
        "Redis role",
        FAIL,
        "this is a replica, which takes no writes",
        f"Set redis.url or RMQ_REDIS_URL to its master, {master}; or set redis.sentinels, or "
        "redis.cluster",
    )


def _policy(server: Server, info: dict[str, Any]) -> Finding:
    """Look at the policy now: a Server refuses others than noeviction only when it connects."""
    policy = info.get("maxmemory_policy")
    if policy is None:
        return _hidden("Redis policy", "maxmemory_policy", "See that it is noeviction")
    if policy == NO_EVICTION:
        return Finding("Redis policy", OK, policy)
    remedy = _redis_cli(server, "CONFIG SET maxmemory-policy noeviction")
    return Finding("Redis policy", FAIL, f"{policy}: a full Redis evicts whole queues", remedy)


def _hidden(what: str, field: str, remedy: str) -> Finding:
    """Make the finding for a field of INFO that a managed service hides."""
    return Finding(what, WARN, f"INFO shows no {field}", remedy)


def _persistence(server: Server, info: dict[str, Any]) -> Finding:
    if "aof_enabled" not in info:
        return _hidden("Redis on disk", "aof_enabled", "See what a restart of the server loses")
    if info["aof_enabled"]:
        seen = "appendonly yes"
        if _setting_of(server, "appendfsync") == "everysec":
            seen += ", appendfsync everysec: a crash of the machine loses about a second"
        return Finding("Redis on disk", OK, seen)
    saves = _setting_of(server, "save")
    if saves is None:
        seen = "appendonly no: a crash loses messages. This user cannot read the setting save"
        return Finding("Redis on disk", WARN, seen, _grant(server, "config|get"))
    remedy = _redis_cli(server, "CONFIG SET appendonly yes")
    if saves:
        return Finding("Redis on disk", WARN, "snapshots only: a crash loses messages", remedy)
    seen = "persistence is off: a restart loses all messages"
    return Finding("Redis on disk", WARN, seen, remedy)


def _setting_of(server: Server, name: str) -> str | None:
    """Return a setting of Redis; None if it cannot be read."""
    try:
        found: str | None = server.client.config_get(name).get(name)
    except (redis.RedisError, AttributeError):  # not permitted, or a reply for each node
        return None
    return found


def _memory(server: Server, info: dict[str, Any]) -> Finding:
    if not {"used_memory", "maxmemory"} <= info.keys():
        return _hidden("Redis memory", "used_memory or maxmemory", "Watch the memory of the server")
    used, limit = int(info["used_memory"]), int(info["maxmemory"])
    if not limit:
        # With a limit below the machine's memory, a full Redis refuses senders.
        seen = f"{used / 2**20:,.0f} MiB used, no maxmemory: a full machine kills Redis"
        remedy = _redis_cli(server, "CONFIG SET maxmemory 2gb")
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


def _permissions(broker: Broker, reads_only: bool) -> Finding:
    try:
        key = topics_key(broker.key_prefix)
        denied = broker.server.find_denied(key, reads_only=reads_only)
        if not denied:
            broker.topics()  # the commands are permitted, so only the keys may be denied
    except ServerRefused as error:
        return Finding("Redis user", FAIL, denial_of(error), permission_remedy(broker, error))
    except RmqError as error:
        return Finding("Redis user", FAIL, seen_of(error), remedy_of(error))
    if not denied:
        seen = "may look at queues" if reads_only else "may run all commands of the queue"
        return Finding("Redis user", OK, seen)
    remedy = _grant(broker.server, *sorted(denied))
    return Finding("Redis user", FAIL, f"may not run {', '.join(sorted(denied))}", remedy)


def denial_of(error: ServerRefused) -> str:
    """Describe what a user is denied, without the remedies that follow in the error's text."""
    command = denied_command(str(error))
    if command is not None:
        return f"this user may not run {command.upper().replace('|', ' ')}"
    if is_of_keys(str(error)):
        return "this user may not use the keys of the queue"
    return without_permit(str(error))


def permission_remedy(place: Place, error: ServerRefused) -> str:
    """Return what permits the user what it was denied."""
    command = denied_command(str(error))
    if command is not None:
        return _grant(place.server, command)
    if is_of_keys(str(error)):
        own = f" instead of {place.key_prefix}" if place.key_prefix else ""
        return (
            f"Give the prefix of its keys{own} before the command, as in rmq --key-prefix shop: "
            "topics; or grant it these keys with ~prefix*"
        )
    return remedy_of(error)


def _grant(server: Server, *commands: str) -> str:
    rights = " ".join(f"+{name.lower()}" for name in commands)
    command = _redis_cli(server, f"ACL SETUSER {server.username or 'default'} {rights}")
    return f"{command}  {_UNTIL_RESTART}"


def check_topics(broker: Broker) -> Iterator[Finding]:
    """Check that this version can settle every claim, and that topics have room for messages.

    Looks through all keys of the database, if the user may.
    """
    failures: list[tuple[Queue, ServerError]] = []
    try:
        rows = look(broker, failed=lambda *failure: failures.append(failure))
    except ServerRefused as error:
        yield _skipped("Claims", broker, error)
        yield _skipped("Room", broker, error)
        return
    except RmqError as error:
        yield Finding("Claims", FAIL, seen_of(error), remedy_of(error))
        return
    yield _claims(broker, rows, failures)
    for row in rows:
        for seen in row.full_to(FULL_PERCENT):
            remedy = "Consume faster, remove groups that nobody reads, or raise the limit: "
            remedy += command_line(broker, "alter", row.topic, "--max-messages", "...")
            yield Finding("Room", WARN, f"topic {row.topic}, group {row.group}: {seen}", remedy)


def _claims(broker: Broker, rows: list[Row], failures: list[tuple[Queue, ServerError]]) -> Finding:
    if failures:
        return Finding("Claims", FAIL, seen_of(failures[0][1]), remedy_of(failures[0][1]))
    try:
        stray = queues_with_strays(broker.server, broker.key_prefix, all_queues(broker))
    except ServerRefused as error:
        what = "not looked for claims whose record was deleted by hand"
        return _skipped("Claims", broker, error, what)
    except RmqError as error:
        return Finding("Claims", FAIL, seen_of(error), remedy_of(error))
    if stray:
        remedy = "; ".join(queue_command(queue, "expire") for queue in stray)
        seen = f"topic {stray[0].definition.name} has claims whose record was deleted by hand"
        return Finding("Claims", FAIL, seen, remedy)
    return Finding("Claims", OK, f"topics: {len({row.topic for row in rows})}")


def _skipped(
    what: str, broker: Broker, error: ServerRefused, left_out: str = "not checked"
) -> Finding:
    """Make the finding for a check that the user's permissions do not allow."""
    seen = f"{left_out}: {denial_of(error)}"
    return Finding(what, SKIP, seen, permission_remedy(broker, error))


def check_schedules(broker: Broker) -> Iterator[Finding]:
    """Check that somebody runs the schedules, if there are any."""
    try:
        found = schedules.seen(broker)
    except ServerRefused as error:
        yield _skipped("Schedules", broker, error)
        return
    except RmqError as error:
        yield Finding("Schedules", FAIL, seen_of(error), remedy_of(error))
        return
    late = max(found, key=lambda one: one.late_ms, default=None)
    if late is not None and late.late_ms > schedules.MISSED_AFTER_MS:
        seen = f"{late.schedule.name} is late by {duration_text(late.late_ms // 1000 * 1000)}"
        remedy = f"Keep this running: {command_line(broker, 'scheduler')}. Its log says what fails"
        yield Finding("Schedules", WARN, seen, remedy)
    elif found:
        yield Finding("Schedules", OK, f"schedules: {len(found)}")
