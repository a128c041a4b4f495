"""Checks of a Redis server: connection, persistence, memory, permissions, claims."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rmq_spark.client import schedules
from rmq_spark.client.administration import all_queues
from rmq_spark.client.broker import Broker
from rmq_spark.client.hints import Place, command_line, queue_command
from rmq_spark.client.repair import queues_with_strays
from rmq_spark.errors import (
    InvalidOption,
    RmqError,
    ServerRefused,
    ServerUnavailable,
    ServerUntrusted,
)
from rmq_spark.inspect.figures import FULL_PERCENT, Row, look
from rmq_spark.options import in_url
from rmq_spark.redis.connection import ConnectionOptions
from rmq_spark.redis.failures import denied_command, is_of_keys, without_permit
from rmq_spark.redis.permissions import Role
from rmq_spark.redis.server import NO_EVICTION, Server
from rmq_spark.topics.keys import topics_key
from rmq_spark.topics.parsing import duration_text

OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"
_STATES = OK, WARN, FAIL
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


class Finding(NamedTuple):
    """The result of a check. state: OK, WARN, FAIL, or SKIP for a check that did not run."""

    what: str
    state: str
    seen: str
    remedy: str = ""


_MAY = {
    Role.ALL: "may run all commands of the queue",
    Role.SENDER: "may send",
    Role.READER: "may look at queues",
}
_Check = Callable[[Server, str | None, dict[str, Any]], Finding | None]


def seen_of(error: RmqError) -> str:
    """Describe an error of the connection, without the remedies that follow in its text."""
    return str(error).partition(". rmq-spark tried")[0]


def check_server(broker: Broker, role: Role = Role.ALL) -> Iterator[Finding]:
    """Check a server that answers: role, persistence, memory and permissions.

    Asks few questions. role: what its user must be permitted to do.
    """
    server = broker.server
    try:
        infos, settings = server.infos(), _settings(server)
    except RmqError as error:
        yield Finding("Redis", FAIL, seen_of(error), remedy_of(error))
        return
    yield Finding("Redis", OK, f"{server.address}, {software_of(*infos.values())}")
    infos = {node: info | settings.get(node, {}) for node, info in infos.items()}
    for check, rank in _CHECKS:
        ranked = sorted(infos.items(), key=lambda item: rank(item[1]), reverse=True)
        yield from _worst({node: check(server, node, info) for node, info in ranked})
    yield from _permissions(broker, role)
    yield from _worst({node: _login(server, node) for node in server.answer_without_login()})


def _worst(found: Mapping[str | None, Finding | None]) -> Iterator[Finding]:
    """Of the findings about each master, yield the first of the worst. In a cluster, name it."""
    findings = {node: finding for node, finding in found.items() if finding is not None}
    if not findings:
        return
    node = max(findings, key=lambda node: _STATES.index(findings[node].state))
    worst = findings[node]
    if node is None or (set(findings.values()) == {worst} and worst.state == OK):
        yield worst
        return
    as_bad = sum(one.state == worst.state for one in findings.values()) - 1
    more = ""
    if as_bad and worst.state != OK:
        more = f" ({as_bad} more master{'s' if as_bad > 1 else ''}: {worst.state})"
    yield worst._replace(seen=f"{node}: {worst.seen}{more}")


def redis_cli(options: ConnectionOptions, command: str, node: str | None) -> str:
    """Return a command of redis-cli for a shell. command: one line, as Redis reads it.

    node: host and port of the node of a cluster, or of the Sentinels' master; None: none of them.
    """
    # The user of rmq may hardly give such commands.
    login = _ADMINISTRATOR if options.user is not None else ()
    address = options.at(node).address
    parts = urlsplit(address)
    where: tuple[str, ...] = ()  # of Sentinels
    if parts.scheme == "unix":
        where = ("-s", parts.path)
    elif parts.scheme in ("redis", "rediss"):
        where = ("-u", address)
    words = ["redis-cli", *where, *options.redis_cli_options, *login, *command.split()]
    keep = "ACL SAVE" if command.startswith("ACL") else "CONFIG REWRITE"
    # A comment of the shell, so that the whole remedy can be pasted.
    return f"{shlex.join(words)}  # then {keep}, or the same in redis.conf, for its next start"


def _redis_cli(server: Server, node: str | None, command: str) -> str:
    return redis_cli(server.options, command, node or server.master_of_sentinels())


def remedy_of(error: RmqError) -> str:
    command = denied_command(str(error)) if isinstance(error, ServerRefused) else None
    if command is not None:
        return f"Permit the user +{command} (docs/security.md)"
    if isinstance(error, ServerRefused) and error.node is not None:
        return (
            f"Create this user on {error.node}, with the same password: each node of a cluster has "
            "users of its own (docs/security.md)"
        )
    if isinstance(error, ServerUnavailable) and error.node is not None:
        return f"Start {error.node}, a node of the cluster; its log says what is wrong"
    return next(
        (text for kind, text in _REDIS_REMEDIES if isinstance(error, kind)), _DEFAULT_REMEDY
    )


def software_of(*infos: dict[str, Any]) -> str:
    """Name a server and its version, such as "Valkey 9.1.2"; of a cluster, all there are."""
    return ", ".join(
        sorted(
            {
                f"Valkey {info['valkey_version']}"
                if "valkey_version" in info
                else f"Redis {info['redis_version']}"
                for info in infos
            }
        )
    )


def _replica(server: Server, node: str | None, info: dict[str, Any]) -> Finding | None:
    if info.get("role") != "slave":
        return None
    master = f"{in_url(info['master_host'])}:{info['master_port']}"
    return Finding(
        "Redis role",
        FAIL,
        "this is a replica, which takes no writes",
        "Wait until the failover of this node is over"
        if server.is_cluster
        else f"Set redis.url or RMQ_REDIS_URL to its master, {master}; or set redis.sentinels, or "
        "redis.cluster",
    )


def _replicas(server: Server, node: str | None, info: dict[str, Any]) -> Finding | None:
    """Look whether replicas can confirm writes, as redis.minReplicas wants."""
    found, wanted = info.get("connected_slaves"), server.options.min_replicas
    if not wanted or info.get("role") == "slave":
        return None
    if found is None:
        return _hidden("Redis replicas", "connected_slaves", "See that enough are connected")
    seen = f"{found} of the {wanted} that redis.minReplicas asks for"
    if found >= wanted:
        return Finding("Redis replicas", OK, seen)
    return Finding("Redis replicas", FAIL, seen, "Start the replicas; until then, sends fail")


def _policy(server: Server, node: str | None, info: dict[str, Any]) -> Finding:
    """Look at the policy now: a Server refuses others than noeviction only when it connects."""
    policy = info.get("maxmemory_policy")
    if policy is None:
        return _hidden("Redis policy", "maxmemory_policy", "See that it is noeviction")
    if policy == NO_EVICTION:
        return Finding("Redis policy", OK, policy)
    remedy = _redis_cli(server, node, "CONFIG SET maxmemory-policy noeviction")
    return Finding("Redis policy", FAIL, f"{policy}: a full Redis evicts whole queues", remedy)


def _hidden(what: str, field: str, remedy: str) -> Finding:
    """Make the finding for a field of INFO that a managed service hides."""
    return Finding(what, WARN, f"INFO shows no {field}", remedy)


def _persistence(server: Server, node: str | None, info: dict[str, Any]) -> Finding:
    if "aof_enabled" not in info:
        return _hidden("Redis on disk", "aof_enabled", "See what a restart of the server loses")
    if info["aof_enabled"]:
        seen = "appendonly yes"
        if info.get("appendfsync") == "everysec":
            seen += ", appendfsync everysec: a crash of the machine loses about a second"
        elif "appendfsync" not in info:
            seen += "; this user cannot read appendfsync: see that it is always, not everysec"
        return Finding("Redis on disk", OK, seen)
    saves = info.get("save")
    if saves is None:
        seen = "appendonly no: a crash loses messages. This user cannot read the setting save"
        return Finding("Redis on disk", WARN, seen, _grant(server, node, "config|get"))
    remedy = _redis_cli(server, node, "CONFIG SET appendonly yes")
    if saves:
        return Finding("Redis on disk", WARN, "snapshots only: a crash loses messages", remedy)
    seen = "persistence is off: a restart loses all messages"
    return Finding("Redis on disk", WARN, seen, remedy)


def _settings(server: Server) -> dict[str | None, dict[str, Any]]:
    """Return what INFO does not show of each master: nothing, where it cannot be read."""
    asked = server.on_masters(("CONFIG GET", "appendfsync"), ("CONFIG GET", "save"))
    return {
        node: {
            name: setting
            for found in replies
            if not isinstance(found, Exception)
            for name, setting in found.items()
        }
        for node, replies in asked.items()
    }


def _loss(info: dict[str, Any]) -> int:
    """Rank what a crash of a master loses: the more, the higher."""
    if info.get("aof_enabled"):
        return int(info.get("appendfsync") == "everysec")
    return 2 if info.get("save") else 3


def _fullness(info: dict[str, Any]) -> float:
    limit = int(info.get("maxmemory", 0))
    return int(info.get("used_memory", 0)) / limit if limit else 0


def _memory(server: Server, node: str | None, info: dict[str, Any]) -> Finding:
    if not {"used_memory", "maxmemory"} <= info.keys():
        return _hidden("Redis memory", "used_memory or maxmemory", "Watch the memory of the server")
    used, limit = int(info["used_memory"]), int(info["maxmemory"])
    if not limit:
        # With a limit below the machine's memory, a full Redis refuses senders.
        seen = f"{used / 2**20:,.0f} MiB used, no maxmemory: a full machine kills Redis"
        remedy = _redis_cli(server, node, "CONFIG SET maxmemory 2gb")
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


def _failover(server: Server, node: str | None, info: dict[str, Any]) -> Finding | None:
    if "master_replid" in info:
        return None
    return _hidden(
        *("Redis failover", "master_replid"),
        "Stop queries before the server restarts, and set redis.minReplicas. A batch in progress "
        "does not notice that Redis lost writes, and may commit messages that it has not read",
    )


# The checks of a master. Of findings as bad as each other, that with the highest rank is shown.
_CHECKS: tuple[tuple[_Check, Callable[[dict[str, Any]], float]], ...] = (
    (_replica, lambda info: 0),
    (_replicas, lambda info: 0),
    (_policy, lambda info: 0),
    (_persistence, _loss),
    (_memory, _fullness),
    (_failover, lambda info: 0),
)


def _login(server: Server, node: str | None) -> Finding:
    remedy = "Create the users of docs/security.md; when all programs use them: "
    remedy += _redis_cli(server, node, "ACL SETUSER default off")
    return Finding("Redis login", WARN, "Redis answers without user and password", remedy)


def _permissions(broker: Broker, role: Role) -> Iterator[Finding]:
    try:
        denied = broker.server.find_denied(topics_key(broker.key_prefix), role)
        if not any(denied.values()):
            broker.find("any")  # the commands are permitted, so only the keys may be denied
    except ServerRefused as error:
        yield Finding("Redis user", FAIL, denial_of(error), permission_remedy(broker, error))
        return
    except RmqError as error:
        yield Finding("Redis user", FAIL, seen_of(error), remedy_of(error))
        return
    yield from _worst(
        {
            node: _rights(broker.server, node, sorted(lacks), _MAY[role])
            for node, lacks in denied.items()
        }
    )


def _rights(server: Server, node: str | None, lacks: list[str], may: str) -> Finding:
    if not lacks:
        return Finding("Redis user", OK, may)
    remedy = _grant(server, node, *lacks)
    return Finding("Redis user", FAIL, f"may not run {', '.join(lacks)}", remedy)


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
        return _grant(place.server, error.node, command)
    if is_of_keys(str(error)):
        own = f" instead of {place.key_prefix}" if place.key_prefix else ""
        return (
            f"Give the prefix of its keys{own} before the command, as in rmq --key-prefix shop: "
            "topics; or grant it these keys with ~prefix*. A user with selectors may also lack the "
            "command"
        )
    return remedy_of(error)


def _grant(server: Server, node: str | None, *commands: str) -> str:
    rights = " ".join(f"+{name.lower()}" for name in commands)
    return _redis_cli(server, node, f"ACL SETUSER {server.options.user or 'default'} {rights}")


def check_topics(broker: Broker) -> Iterator[Finding]:
    """Check that this version can settle every claim, and that topics have room for messages.

    Looks through all keys of the database, if the user may.
    """
    failures: list[RmqError] = []
    try:
        rows = look(broker, failed=lambda topic, group, error: failures.append(error))
    except ServerRefused as error:
        yield _skipped("Claims", broker, error)
        yield _skipped("Room", broker, error)
        return
    except RmqError as error:
        yield Finding("Claims", FAIL, seen_of(error), remedy_of(error))
        return
    yield _claims(broker, rows, failures)
    for row in rows:
        for unit, seen in row.full_to(FULL_PERCENT).items():
            remedy = "Consume faster, remove groups that nobody reads, or raise the limit: "
            remedy += command_line(broker, "alter", row.topic, f"--max-{unit}", "...")
            yield Finding("Room", WARN, f"topic {row.topic}, group {row.group}: {seen}", remedy)


def _claims(broker: Broker, rows: list[Row], failures: list[RmqError]) -> Finding:
    if failures:
        return Finding("Claims", FAIL, seen_of(failures[0]), remedy_of(failures[0]))
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
    failures: list[RmqError] = []
    try:
        found = schedules.seen(broker, lambda name, error: failures.append(error))
    except ServerRefused as error:
        yield _skipped("Schedules", broker, error)
        return
    except RmqError as error:
        yield Finding("Schedules", FAIL, seen_of(error), remedy_of(error))
        return
    for failure in failures:
        # Another machine may have what this one lacks, and run it.
        state = WARN if isinstance(failure, InvalidOption) else FAIL
        yield Finding("Schedules", state, seen_of(failure), _DEFAULT_REMEDY)
    late = max(found, key=lambda one: one.late_ms, default=None)
    if late is not None and late.late_ms > schedules.MISSED_AFTER_MS:
        seen = f"{late.schedule.name} is late by {duration_text(late.late_ms // 1000 * 1000)}"
        remedy = f"Keep this running: {command_line(broker, 'scheduler')}. Its log says what fails"
        yield Finding("Schedules", WARN, seen, remedy)
    elif found:
        yield Finding("Schedules", OK, f"schedules: {len(found)}")
