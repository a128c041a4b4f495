"""Redis and ZooKeeper servers, and topics on them that no other test sees."""

import os
import sys
import uuid
from itertools import chain
from pathlib import Path

import hypothesis
import pytest
from kazoo.client import KazooClient

from rmq_spark.client import Broker
from rmq_spark.client.receiving.work_in_process import IN_PROCESS
from rmq_spark.local.zookeeper import LocalEnsemble
from rmq_spark.protocol import scripts as queue_scripts

from . import durations, kafka_broker, mariadb, missing, on_newest, postgres, servers, turns
from .certificates import Authority, speaks_tls
from .ports import iceberg_spark
from .seeding import Slot

EXECUTABLES = servers.executables()
KINDS = list(EXECUTABLES) or ["none"]
# How long an example takes depends on who else uses the machine.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser):
    parser.addoption("--lua-dir", help="take the scripts from this folder instead of lua/")
    parser.addoption("--durations-to", type=Path, help="write the seconds of what passed here")
    parser.addoption("--except", type=Path, help="leave out what passed: a file of --durations-to")
    parser.addoption("--turn", type=int, help="of N tests marked long, run the one of this commit")
    parser.addoption("--one-in", type=int, default=1, help="with --turn: one in N of all others")


def pytest_configure(config):
    folder = config.getoption("--lua-dir")
    if folder:
        queue_scripts._lua_folder = lambda: Path(folder)
        queue_scripts.scripts_for.cache_clear()


def pytest_terminal_summary(terminalreporter, config):
    """Sum up in the last lines of a run how long it took, and count the skipped tests by reason."""
    seconds = durations.by_test(chain.from_iterable(terminalreporter.stats.values()))
    if config.getoption("--durations-to"):
        passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
        durations.write(seconds, passed, config.getoption("--durations-to"))
        for line in durations.table(seconds):
            terminalreporter.write_line(line)
    skipped = terminalreporter.stats.get("skipped", [])
    for line in missing.counted(report.longrepr[2].removeprefix("Skipped: ") for report in skipped):
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(config, items):
    """Mark the tests that run on an older server than others do, and leave out who has no turn."""
    for item in items:
        kind = item.callspec.params.get("redis_executable") if hasattr(item, "callspec") else None
        if kind not in (None, KINDS[-1]):
            item.add_marker(pytest.mark.older_server)
    left_out = []
    if config.getoption("--turn") is not None:
        left_out += turns.without_a_turn(
            items, config.getoption("--turn"), config.getoption("--one-in")
        )
    if config.getoption("--except"):
        passed = durations.read(config.getoption("--except"))
        left_out += [item for item in items if item.nodeid in passed]
    if left_out:
        without = set(left_out)
        config.hook.pytest_deselected(items=list(without))
        items[:] = [item for item in items if item not in without]


@pytest.fixture(autouse=True)
def _idle_process():
    """Readers that earlier tests left with claimed messages are none of this test's business.

    Else it would wait for them, for ever, where it takes a message alone in its process.
    """
    IN_PROCESS.clear()


@pytest.fixture(scope="session")
def spark():
    """One session for all tests of a process: what is in its class path stays as it began."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    drivers = (
        *(postgres.found_driver(), mariadb.found_driver()),
        *(kafka_broker.found_connector(), iceberg_spark.found_connector()),
    )
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmq-spark tests")
        .config("spark.jars", ",".join(filter(None, drivers)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "10ms")
        # Short-lived code is not worth compiling twice, nor 2 cores many collectors.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session", params=KINDS)
def redis_executable(request):
    """The path of a redis-server; tests that use it run on each server there is."""
    if request.param == "none":
        servers.do_without()
    return EXECUTABLES[request.param]


@pytest.fixture(scope="session")
def redis_url(redis_executable):
    """The address of a server that all tests share: never flush it, never configure it."""
    yield from on_newest.url_of(redis_executable)


@pytest.fixture(scope="session")
def server(redis_url):
    """One connection for all tests on a server."""
    yield from on_newest.server_at(redis_url)


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def tls_executable(redis_executable):
    """The path of a redis-server that speaks TLS; without TLS the test is skipped."""
    if not speaks_tls(redis_executable):
        pytest.skip(f"{redis_executable} was built without TLS.")
    return redis_executable


@pytest.fixture
def own_redis(redis_executable):
    """A server that one test may configure, kill and start again."""
    own = servers.start(redis_executable)
    yield own
    own.close()


@pytest.fixture
def broker(server):
    """Topics under a prefix of this test's own."""
    return Broker(server, key_prefix=f"{uuid.uuid4().hex}:")


@pytest.fixture
def new_slot(broker):
    """Makes topics of one slot; at the end the conservation law must hold for each."""
    made = []

    def new(topic_type="FixedTime", **settings):
        made.append(Slot(broker, f"T{len(made)}", topic_type, **settings))
        return made[-1]

    yield new
    for slot in made:
        slot.check_conservation()
        slot.remove()


@pytest.fixture
def slot(new_slot):
    """A FixedTime topic of one slot: ascending, and a test may set every score."""
    return new_slot()


@pytest.fixture(scope="session")
def zookeeper():
    """One server that all share; every test has a root of its own there."""
    with LocalEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def root(request):
    return f"/{request.node.originalname}"[:80]


@pytest.fixture
def client(zookeeper):
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()
