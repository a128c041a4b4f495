"""The command rmq doctor: checks an installation and shows a remedy for each problem."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import Json
from rmq_spark.cli.output import print_json, print_table
from rmq_spark.cli.session import Session, session_of
from rmq_spark.errors import OwnershipUnavailable, RmqError, ServerUnavailable, ServerUnsuitable
from rmq_spark.inspect.checks import (
    FAIL,
    OK,
    SKIP,
    Finding,
    check_schedules,
    check_server,
    check_topics,
    redis_cli,
    remedy_of,
    seen_of,
)
from rmq_spark.options import ZOOKEEPER_HOSTS
from rmq_spark.ownership.zookeeper import parse_ensemble
from rmq_spark.process import FAILED
from rmq_spark.redis.permissions import Role

OLDEST_JAVA = 17  # what Spark 4 needs
JAVA_TIMEOUT_S, SPARK_TIMEOUT_S = 30, 180
# This program asks Spark for the columns of a queue, which needs the format but not Redis.
_FIND_FORMAT = (
    "from pyspark.sql import SparkSession; s = SparkSession.builder.master('local[1]')"
    ".config('spark.ui.enabled', 'false').getOrCreate(); s.sparkContext.setLogLevel('OFF'); "
    "s.read.format('rmq').option('topic', 'T').option('queue', 'dead').load(); print(s.version)"
)


def doctor(
    context: typer.Context,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            help=f"Also check ZooKeeper. Accepted: {ZOOKEEPER_HOSTS.parser.accepted_plain}."
        ),
    ] = None,
    spark: Annotated[bool, typer.Option(help="Also check Java, and start Spark.")] = True,
    role: Annotated[
        Role, typer.Option(help="What the user of Redis is for. A sender only sends.")
    ] = Role.ALL,
    as_json: Json = False,
) -> None:
    """Check Redis, ZooKeeper, Java, Python and Spark.

    Each check that fails or warns shows a remedy.
    """
    findings = list(_findings(session_of(context), role, zookeeper, spark))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        rows = [(f.state, f.what, f.seen, f.remedy) for f in findings]
        print_table(("", "", "seen", "remedy"), rows)
    if any(finding.state == FAIL for finding in findings):
        raise typer.Exit(FAILED)


def _findings(
    session: Session, role: Role, zookeeper: str | None, spark: bool
) -> Iterator[Finding]:
    yield from check_redis(session, role)
    yield check_zookeeper({**session.zookeeper, **({"hosts": zookeeper} if zookeeper else {})})
    if not spark:
        yield Finding("Spark", SKIP, "not checked, nor its Java and Python: --no-spark")
        return
    yield check_java()
    yield check_python()
    yield check_format()


def check_redis(session: Session, role: Role = Role.ALL) -> Iterator[Finding]:
    try:
        broker = session.broker()
    except RmqError as error:
        yield Finding("Redis", FAIL, seen_of(error), _unreached_remedy(error, session))
        return
    with broker:
        yield from check_server(broker, role)
        if role is not Role.SENDER:
            yield from check_topics(broker)
            yield from check_schedules(broker)


def _unreached_remedy(error: RmqError, session: Session) -> str:
    if isinstance(error, ServerUnavailable) and session.connection.sentinels is not None:
        return "Start the master and the Sentinels, or correct redis.sentinels and sentinelMaster"
    if not isinstance(error, ServerUnsuitable):
        return remedy_of(error)
    if "maxmemory-policy" in str(error):
        command = "CONFIG SET maxmemory-policy noeviction"
        return redis_cli(session.connection, command, error.node)
    if "is part of" in str(error):
        return "Write rmq --redis-cluster before the command"
    if "is not a cluster" in str(error):
        return "Leave out --redis-cluster"
    return "Use Redis 6.2 or later, or Valkey"


def check_zookeeper(asked: Mapping[str, Any]) -> Finding:
    """Check an ensemble. asked: its options, empty for none."""
    try:
        options = parse_ensemble(asked)
        if options is None:
            return Finding("ZooKeeper", SKIP, "not checked: --zookeeper HOST:PORT checks it")
        from rmq_spark.ownership.nodes import new_client

        client = new_client(options)
    except ModuleNotFoundError:
        return Finding("ZooKeeper", FAIL, "kazoo is missing", "pip install 'rmq-spark[zookeeper]'")
    except OwnershipUnavailable as error:
        remedy = "Check --zookeeper, and start a majority of the servers (zkServer.sh status)"
        return Finding("ZooKeeper", FAIL, str(error), remedy)
    except RmqError as error:
        remedy = "Correct --zookeeper, or zookeeper.* of --option"
        return Finding("ZooKeeper", FAIL, str(error), remedy)
    client.stop()  # it had a session, which a majority of the servers opened
    client.close()
    return Finding("ZooKeeper", OK, f"{options.hosts} answers")


def check_java() -> Finding:
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
    named = os.environ.get("PYSPARK_PYTHON") or "python3"
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    code = (
        "import sys, rmq_spark; print(f'{sys.version_info.major}.{sys.version_info.minor}', "
        "rmq_spark.__version__)"
    )
    done = _run([named, "-c", code], JAVA_TIMEOUT_S)
    remedy = f"export PYSPARK_PYTHON={sys.executable}"
    words = done.stdout.split() if done and not done.returncode else []
    if len(words) != 2:
        return Finding("PYSPARK_PYTHON", FAIL, f"{named} does not run or has no rmq-spark", remedy)
    version, own = words
    if version != mine:
        return Finding("PYSPARK_PYTHON", FAIL, f"{named} is {version}, this is {mine}", remedy)
    return Finding("PYSPARK_PYTHON", OK, f"{named}: Python {version}, rmq-spark {own}")


def check_format() -> Finding:
    if importlib.util.find_spec("pyspark") is None:
        return Finding("Spark", FAIL, "pyspark is missing", "pip install 'rmq-spark[spark]'")
    done = _run([sys.executable, "-c", _FIND_FORMAT], SPARK_TIMEOUT_S)
    if done is not None and done.returncode == 0:
        return Finding("Spark", OK, f"{done.stdout.split()[-1]} finds the format rmq")
    said = done.stderr.splitlines() if done else []
    # The rest is the stack trace of the JVM.
    errors = [line for line in said if line and not line.startswith((" ", "\t", "Caused by: "))]
    seen = errors[-1].lstrip(": ")[:200] if errors else "it did not start"
    remedy = "pip install rmq-spark where Spark runs, or call rmq_spark.register(spark)"
    return Finding("Spark", FAIL, seen, remedy)


def _run(command: list[str], timeout_s: float) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(  # noqa: S603 - java, or the Python that Spark would run
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
