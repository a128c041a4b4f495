"""The command rmq doctor: checks an installation and shows a remedy for each problem."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import redis
import typer

from rmq_spark.cli.arguments import Json
from rmq_spark.cli.output import print_json, print_table
from rmq_spark.cli.session import Session, session_of
from rmq_spark.client.broker import Broker
from rmq_spark.client.claim_keys import claim_keys, outdated_claims, stray_claims
from rmq_spark.client.queue import Queue
from rmq_spark.client.remedies import queue_command
from rmq_spark.errors import (
    InvalidOption,
    RmqError,
    ServerRefused,
    ServerUnavailable,
    ServerUnsuitable,
    ServerUntrusted,
)
from rmq_spark.exit_codes import FAILED
from rmq_spark.options.ensemble_options import HOSTS
from rmq_spark.ownership.ensemble import parse_ensemble
from rmq_spark.transport.server import Server

OLDEST_JAVA = 17  # what Spark 4 needs
FULL_PERCENT = 80
JAVA_TIMEOUT_S, SPARK_TIMEOUT_S, ZOOKEEPER_TIMEOUT_S = 30, 180, 5
OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"

# This program asks Spark for the columns of a queue, which needs the format but not Redis.
_FIND_FORMAT = (
    "from pyspark.sql import SparkSession; s = SparkSession.builder.master('local[1]')"
    ".config('spark.ui.enabled', 'false').getOrCreate(); s.sparkContext.setLogLevel('OFF'); "
    "s.read.format('rmq').option('topic', 'T').option('queue', 'dead').load(); print(s.version)"
)

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


def doctor(
    context: typer.Context,
    zookeeper: Annotated[
        str | None,
        typer.Option(help=f"Also check ZooKeeper. Accepted: {HOSTS.parser.accepted_plain}."),
    ] = None,
    spark: Annotated[bool, typer.Option(help="Start Spark and look for the format rmq.")] = True,
    as_json: Json = False,
) -> None:
    """Check Redis, ZooKeeper, Java, Python and Spark.

    Each check that fails or warns shows a remedy.
    """
    findings = list(_findings(session_of(context), zookeeper, spark))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        rows = [(f.state, f.what, f.seen, f.remedy) for f in findings]
        print_table(("", "", "seen", "remedy"), rows)
    if any(finding.state == FAIL for finding in findings):
        raise typer.Exit(FAILED)


def _findings(session: Session, zookeeper: str | None, spark: bool) -> Iterator[Finding]:
    yield from check_redis(session)
    yield check_zookeeper(zookeeper)
    yield check_java()
    yield check_python()
    yield check_format() if spark else Finding("Spark", SKIP, "--no-spark")


def check_redis(session: Session) -> Iterator[Finding]:
    """Check Redis: connection, persistence, memory and permissions. Yields a finding for each.

    Without a connection, the only finding is the failure to connect.
    """
    try:
        server = session.server()
    except RmqError as error:
        yield Finding("Redis", FAIL, _seen(error), _unreached_remedy(error, session))
        return
    info = _info(server)
    version = info.get("valkey_version") or info.get("redis_version")
    yield Finding("Redis", OK, f"{server.address}, version {version}")
    yield Finding("Redis policy", OK, "noeviction")  # session.server() refuses other policies
    yield _persistence(server, info)
    yield _memory(server, info)
    yield _permissions(server)
    yield _claims(session)
    server.close()


def _seen(error: RmqError) -> str:
    """Describe an error of the connection, without the remedies that follow in its text."""
    return str(error).partition(". rmq-spark retried")[0]


def _unreached_remedy(error: RmqError, session: Session) -> str:
    if not isinstance(error, ServerUnsuitable):
        return _redis_remedy(error)
    if "maxmemory-policy" in str(error):
        return redis_cli(session.address, "CONFIG SET maxmemory-policy noeviction")
    if "is part of" in str(error):
        return "Write rmq --redis-cluster before the command"
    if "is not a cluster" in str(error):
        return "Leave out --redis-cluster"
    return "Use Redis 6.2 or later, or Valkey"


def redis_cli(address: str, command: str) -> str:
    """Return a call of redis-cli that can be typed. address: without credentials."""
    parts = urlsplit(address)
    if parts.scheme == "unix":
        return f"redis-cli -s {shlex.quote(parts.path)} {command}"
    where = f"-u {address} " if parts.scheme in ("redis", "rediss") else ""  # else: Sentinels
    return f"redis-cli {where}{command}"


def _redis_remedy(error: RmqError) -> str:
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
        return Finding("Redis user", FAIL, str(error), _redis_remedy(error))
    if not denied:
        return Finding("Redis user", OK, "may run all commands of the queue")
    rights = " ".join(f"+{name.lower()}" for name in sorted(denied))
    remedy = redis_cli(server.address, f"ACL SETUSER {server.username or 'default'} {rights}")
    return Finding("Redis user", FAIL, f"may not run {', '.join(sorted(denied))}", remedy)


def _claims(session: Session) -> Finding:
    """Check that every claim in progress can be settled by this version."""
    try:
        broker = session.broker()
        queues = list(_all_queues(broker))
        outdated = [queue for queue in queues if outdated_claims(queue)]
        keys = claim_keys(broker.server, broker.key_prefix)
        stray = [queue for queue in queues if queue not in outdated and stray_claims(queue, keys)]
    except ServerRefused:
        return Finding("Claims", SKIP, "this user may not run SCAN and HGETALL")
    except RmqError as error:
        return Finding("Claims", FAIL, _seen(error), _redis_remedy(error))
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


def check_zookeeper(hosts: str | None) -> Finding:
    """Check that ZooKeeper answers. hosts: the text of --zookeeper; None skips the check."""
    if hosts is None:
        return Finding("ZooKeeper", SKIP, "not checked: --zookeeper checks it")
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError
    except ModuleNotFoundError:
        return Finding("ZooKeeper", FAIL, "kazoo is missing", "pip install 'rmq-spark[zookeeper]'")
    try:
        options = parse_ensemble({"hosts": hosts})
    except RmqError as error:
        return Finding("ZooKeeper", FAIL, str(error), "Write --zookeeper host:2181,host:2181")
    client = KazooClient(options.hosts if options else hosts)
    try:
        client.start(timeout=ZOOKEEPER_TIMEOUT_S)
        client.exists("/")
        return Finding("ZooKeeper", OK, f"{hosts} answers")
    except KazooTimeoutError:
        remedy = "Check --zookeeper, and start a majority of the servers (zkServer.sh status)"
        return Finding("ZooKeeper", FAIL, f"{hosts} does not answer", remedy)
    finally:
        client.stop()
        client.close()


def check_java() -> Finding:
    """Check that the Java of JAVA_HOME or PATH runs and is recent enough for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    remedy = (
        f"Install Java {OLDEST_JAVA} or later and export JAVA_HOME=/path/to/it; only Spark needs it"
    )
    done = _run([java, "-version"], JAVA_TIMEOUT_S) if java else None
    found = re.search(r'version "(\d+)[^"]*"', done.stderr) if done else None
    if found is None:
        return Finding("Java", FAIL, f"{java or 'java'} does not run", remedy)
    state = OK if int(found[1]) >= OLDEST_JAVA else FAIL
    return Finding("Java", state, f"{found[0]} at {java}", remedy if state == FAIL else "")


def check_python() -> Finding:
    """Check that Spark's workers will use this version of Python, and find rmq-spark in it."""
    named = os.environ.get("PYSPARK_PYTHON") or "python3"
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    code = (
        "import sys, rmq_spark; print(f'{sys.version_info.major}.{sys.version_info.minor}', "
        "rmq_spark.__version__)"
    )
    done = _run([named, "-c", code], JAVA_TIMEOUT_S)
    remedy = f"export PYSPARK_PYTHON={sys.executable}"
    if done is None or done.returncode:
        return Finding("PYSPARK_PYTHON", FAIL, f"{named} does not run or has no rmq-spark", remedy)
    version = done.stdout.split()[0]
    if version != mine:
        return Finding("PYSPARK_PYTHON", FAIL, f"{named} is {version}, this is {mine}", remedy)
    return Finding(
        "PYSPARK_PYTHON", OK, f"{named}: Python {version}, rmq-spark {done.stdout.split()[1]}"
    )


def check_format() -> Finding:
    """Start Spark in a new process, and check that it finds the format ``rmq``."""
    if importlib.util.find_spec("pyspark") is None:
        return Finding("Spark", FAIL, "pyspark is missing", "pip install 'rmq-spark[spark]'")
    done = _run([sys.executable, "-c", _FIND_FORMAT], SPARK_TIMEOUT_S)
    if done is not None and done.returncode == 0:
        return Finding("Spark", OK, f"{done.stdout.split()[-1]} finds the format rmq")
    last = (done.stderr.strip().split("\n")[-1] if done else "it did not start")[:200]
    remedy = "pip install rmq-spark where Spark runs, or call rmq_spark.register(spark)"
    return Finding("Spark", FAIL, last, remedy)


def _run(command: list[str], timeout_s: float) -> "subprocess.CompletedProcess[str] | None":
    """Run a program. Returns its result, or None if it does not start or takes too long."""
    try:
        return subprocess.run(  # noqa: S603 - java, or the Python that Spark would run
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
