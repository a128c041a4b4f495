"""rmq doctor: is what a queue needs there, and what is to be done if it is not."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import redis
import typer

from rmq_spark.cli.arguments import Json
from rmq_spark.cli.output import print_json, print_table
from rmq_spark.cli.session import Session, session_of
from rmq_spark.errors import RmqError
from rmq_spark.ownership.ensemble import parse_ensemble
from rmq_spark.transport.server import Server

OLDEST_JAVA = 17
FULL_PERCENT = 80
JAVA_TIMEOUT_S, SPARK_TIMEOUT_S, ZOOKEEPER_TIMEOUT_S = 30, 180, 5
OK, WARN, FAIL, SKIP = "ok", "warn", "FAIL", "skip"

# Asks Spark for the columns of a queue: that needs the format, and no Redis.
_FIND_FORMAT = (
    "from pyspark.sql import SparkSession; s = SparkSession.builder.master('local[1]')"
    ".config('spark.ui.enabled', 'false').getOrCreate(); s.sparkContext.setLogLevel('OFF'); "
    "s.read.format('rmq').option('topic', 'T').option('queue', 'dead').load(); print(s.version)"
)


class Finding(NamedTuple):
    """One line: what was looked at, how it is, what was seen, what to do."""

    what: str
    state: str
    seen: str
    remedy: str = ""


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(doctor)


def doctor(
    context: typer.Context,
    zookeeper: Annotated[
        str | None, typer.Option(help="host:port by commas: look at ZooKeeper, too.")
    ] = None,
    spark: Annotated[bool, typer.Option(help="Start Spark and look for the format.")] = True,
    as_json: Json = False,
) -> None:
    """Look at Redis, ZooKeeper, Java, Python and Spark, and say what to mend."""
    findings = list(_findings(session_of(context), zookeeper, spark))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        rows = [(f.state, f.what, f.seen, f.remedy) for f in findings]
        print_table(("", "", "seen", "remedy"), rows)
    if any(finding.state == FAIL for finding in findings):
        raise typer.Exit(1)


def _findings(session: Session, zookeeper: str | None, spark: bool) -> Iterator[Finding]:
    yield from of_redis(session)
    yield of_zookeeper(zookeeper)
    yield of_java()
    yield of_python()
    yield of_format() if spark else Finding("Spark", SKIP, "not asked for")


def of_redis(session: Session) -> Iterator[Finding]:
    """Whether the server can be used, keeps what it is given, and has room."""
    try:
        server = session.server()
    except RmqError as error:
        yield Finding("Redis", FAIL, str(error), "see what it says")
        return
    info = _info(server)
    version = info.get("valkey_version") or info.get("redis_version")
    yield Finding("Redis", OK, f"{server.address}, version {version}")
    yield Finding("Redis policy", OK, "noeviction")  # a server with another one is refused
    yield _persistence(server, info)
    yield _memory(info)
    yield _permissions(server)
    server.close()


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
    except (redis.RedisError, AttributeError):  # not permitted, or several nodes that answer
        return Finding("Redis on disk", SKIP, "appendonly no; this user may not ask for more")
    if saves:
        remedy = "Set appendonly yes: a crash loses what came since the last snapshot"
        return Finding("Redis on disk", WARN, "snapshots only", remedy)
    remedy = "Set appendonly yes: all messages are lost when it ends"
    return Finding("Redis on disk", WARN, "nothing is kept", remedy)


def _memory(info: dict[str, Any]) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        remedy = (
            "Set maxmemory below what the machine has: senders are refused, not the server killed"
        )
        return Finding("Redis memory", WARN, f"{used / 2**20:,.0f} MiB used, no maxmemory", remedy)
    percent = 100 * used // limit
    seen = f"{used / 2**20:,.0f} of {limit / 2**20:,.0f} MiB ({percent} %)"
    if percent < FULL_PERCENT:
        return Finding("Redis memory", OK, seen)
    return Finding("Redis memory", WARN, seen, "Consume, purge, or raise maxmemory")


def _permissions(server: Server) -> Finding:
    try:
        denied = server.denied()
    except RmqError as error:
        return Finding("Redis user", FAIL, str(error), "see docs/security.md")
    if not denied:
        return Finding("Redis user", OK, "may run all commands of the queue")
    remedy = "ACL SETUSER ... " + " ".join(f"+{name.lower()}" for name in sorted(denied))
    return Finding("Redis user", FAIL, f"may not run {', '.join(sorted(denied))}", remedy)


def of_zookeeper(hosts: str | None) -> Finding:
    """Whether it answers."""
    if hosts is None:
        return Finding("ZooKeeper", SKIP, "not asked for", "--zookeeper host:port")
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError
    except ModuleNotFoundError:
        return Finding("ZooKeeper", FAIL, "kazoo is missing", "pip install 'rmq-spark[zookeeper]'")
    try:
        options = parse_ensemble({"hosts": hosts})
    except RmqError as error:
        return Finding("ZooKeeper", FAIL, str(error), "see what it says")
    client = KazooClient(options.hosts if options else hosts)
    try:
        client.start(timeout=ZOOKEEPER_TIMEOUT_S)
        client.exists("/")
        return Finding("ZooKeeper", OK, f"{hosts} answers")
    except KazooTimeoutError:
        remedy = "Check the address, and that a majority of the servers runs"
        return Finding("ZooKeeper", FAIL, f"{hosts} does not answer", remedy)
    finally:
        client.stop()
        client.close()


def of_java() -> Finding:
    """Whether there is one that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    remedy = f"Install Java {OLDEST_JAVA} or later, or set JAVA_HOME; only Spark needs it"
    told = _run([java, "-version"], JAVA_TIMEOUT_S) if java else None
    found = re.search(r'version "(\d+)[^"]*"', told.stderr) if told else None
    if found is None:
        return Finding("Java", FAIL, f"{java or 'java'} does not run", remedy)
    state = OK if int(found[1]) >= OLDEST_JAVA else FAIL
    return Finding("Java", state, f"{found[0]} at {java}", remedy if state == FAIL else "")


def of_python() -> Finding:
    """Whether Spark's workers would run this Python, in which rmq-spark is installed."""
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


def of_format() -> Finding:
    """Whether Spark finds the format."""
    if importlib.util.find_spec("pyspark") is None:
        return Finding("Spark", FAIL, "pyspark is missing", "pip install 'rmq-spark[spark]'")
    done = _run([sys.executable, "-c", _FIND_FORMAT], SPARK_TIMEOUT_S)
    if done is not None and done.returncode == 0:
        return Finding("Spark", OK, f"{done.stdout.split()[-1]} finds the format rmq")
    last = (done.stderr.strip().split("\n")[-1] if done else "it did not start")[:200]
    remedy = "rmq_spark.register(spark), or install rmq-spark where Spark runs"
    return Finding("Spark", FAIL, last, remedy)


def _run(command: list[str], timeout_s: float) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(  # noqa: S603 - java, or the Python that Spark would run
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
