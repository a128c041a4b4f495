"""What is wrong with one master of a cluster, or with the one that Sentinels name: found and named.

Failed before: of a cluster, each check looked at a master that it chose by chance.
"""

from contextlib import suppress

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest

import rmq_spark
from jobs.flights.redis_cluster import LocalCluster
from rmq_spark.cli.doctor import check_redis
from rmq_spark.cli.session import Session
from rmq_spark.console.auth import ConsoleSettings
from rmq_spark.console.pages import server as server_page
from rmq_spark.console.state import Console
from rmq_spark.errors import NotReplicated, ServerRefused, ServerUnavailable, ServerUnsuitable
from rmq_spark.inspect.checks import FAIL, OK, WARN, check_server
from rmq_spark.inspect.prometheus import QueueCollector
from rmq_spark.redis import server as server_module
from rmq_spark.topics.keys import topics_key

from .. import servers
from ..inspect.test_checks import address_for_others
from ..seeding import numbered
from .sentinels import Sentinels

USER = {"username": "rmq", "password": "s3cret-of-rmq"}
SLOTS = 32
AS_ADMINISTRATOR = "--user ADMINISTRATOR --askpass"


@pytest.fixture(scope="module")
def masters(executable):
    """Three masters whose settings each test changes and sets right again, with the user rmq."""
    with LocalCluster(3, 0, executable, servers.SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(masters):
    permit(masters, "+@all")
    yield masters
    for node in masters.nodes:
        with masters.client(node) as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 0)
            client.config_set("appendonly", "no")
            client.config_set("save", "")
    permit(masters, "+@all")


@pytest.fixture
def broker(cluster):
    with rmq_spark.connect(cluster.url, cluster="true", **USER) as broker:
        yield broker


def permit(cluster, *rules, at=None):
    for node in cluster.nodes if at is None else [at]:
        with cluster.client(node) as client:
            secret = f">{USER['password']}"
            client.execute_command("ACL", "SETUSER", "rmq", "on", secret, "~*", "&*", *rules)


def setting(cluster, node, **values):
    with cluster.client(node) as client:
        for name, value in values.items():
            client.config_set(name.replace("_", "-"), value)


def found_by(broker):
    return {finding.what: finding for finding in check_server(broker)}


def name_of(node):
    return f"127.0.0.1:{node.port}"


KEPT = "  # then CONFIG REWRITE, or the same in redis.conf, for its next start"


def as_administrator(node, command):
    return f"redis-cli -u redis://{name_of(node)}/0 {AS_ADMINISTRATOR} {command}"


@pytest.mark.parametrize("at", range(3))
def test_connect_refuses_a_cluster_of_which_one_master_evicts(cluster, at):
    setting(cluster, cluster.nodes[at], maxmemory_policy="allkeys-lru")
    name = name_of(cluster.nodes[at])
    with pytest.raises(ServerUnsuitable, match=f"Redis at {name} has maxmemory-policy allkeys-lru"):
        rmq_spark.connect(cluster.url, cluster="true", patience_s=0)
    options = {f"redis.{name}": text for name, text in USER.items()}
    session = Session({"redis.url": cluster.url, "redis.cluster": "true", **options})
    (found,) = check_redis(session)
    assert (found.what, found.state, name in found.seen) == ("Redis", FAIL, True)
    command = f"CONFIG SET maxmemory-policy noeviction{KEPT}"
    assert found.remedy == as_administrator(cluster.nodes[at], command)


@pytest.mark.parametrize("at", range(3))
def test_a_master_that_evicts_since_is_told(cluster, broker, monkeypatch, caplog, at):
    monkeypatch.setattr(server_module, "POLICY_EVERY_S", 0)
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    assert b"rmq_redis_evicts 0.0" in generate_latest(registry)
    assert found_by(broker)["Redis policy"][1:] == (OK, "noeviction", "")
    node = cluster.nodes[at]
    setting(cluster, node, maxmemory_policy="allkeys-lru")
    assert b"rmq_redis_evicts 1.0" in generate_latest(registry)
    assert caplog.text.count(f"Redis at {name_of(node)} now has maxmemory-policy") == 1
    found = found_by(broker)["Redis policy"]
    assert found.state == FAIL
    assert found.seen == f"{name_of(node)}: allkeys-lru: a full Redis evicts whole queues"
    assert found.remedy == as_administrator(node, f"CONFIG SET maxmemory-policy noeviction{KEPT}")
    setting(cluster, cluster.nodes[at - 1], maxmemory_policy="allkeys-lru")
    assert found_by(broker)["Redis policy"].seen.endswith("queues (1 more master: FAIL)")


def test_the_master_that_loses_most_is_told(cluster, broker):
    first, second, third = cluster.nodes
    for node in cluster.nodes:
        setting(cluster, node, appendonly="yes", appendfsync="always")
    assert found_by(broker)["Redis on disk"][1:] == (OK, "appendonly yes", "")
    setting(cluster, third, appendfsync="everysec")
    everysec = found_by(broker)["Redis on disk"]
    assert everysec.state == OK
    assert everysec.seen.startswith(f"{name_of(third)}: appendonly yes, appendfsync everysec")
    setting(cluster, second, appendonly="no", save="3600 1")
    found = found_by(broker)["Redis on disk"]
    assert (found.state, found.seen.split(" (")[0]) == (
        WARN,
        f"{name_of(second)}: snapshots only: a crash loses messages",
    )
    setting(cluster, first, appendonly="no")
    found = found_by(broker)["Redis on disk"]
    assert found.seen == (
        f"{name_of(first)}: persistence is off: a restart loses all messages (1 more master: warn)"
    )
    assert found.remedy == as_administrator(first, f"CONFIG SET appendonly yes{KEPT}")


def test_the_fullest_master_is_told(cluster, broker):
    for node, limit in zip(cluster.nodes, ("1gb", "3mb", "2gb"), strict=True):
        setting(cluster, node, maxmemory=limit)
    found = found_by(broker)["Redis memory"]
    assert found.seen.startswith(f"{name_of(cluster.nodes[1])}: ")
    assert "of 3 MiB" in found.seen
    setting(cluster, cluster.nodes[2], maxmemory="0")
    setting(cluster, cluster.nodes[1], maxmemory="1gb")
    found = found_by(broker)["Redis memory"]
    assert (found.state, found.seen.startswith(name_of(cluster.nodes[2]))) == (WARN, True)
    assert found.remedy == as_administrator(cluster.nodes[2], f"CONFIG SET maxmemory 2gb{KEPT}")


def test_a_master_without_the_user_is_named(cluster, broker):
    """Failed before: doctor ended in a traceback, and the error named the node of the address."""
    lacks = cluster.nodes[2]
    with cluster.client(lacks) as client:
        client.execute_command("ACL", "DELUSER", "rmq")
    with pytest.raises(ServerRefused, match=f"Redis at {name_of(lacks)} refused the user"):
        rmq_spark.connect(cluster.url, cluster="true", **USER, patience_s=0)
    (found,) = check_server(broker)
    assert (found.what, found.state, name_of(lacks) in found.seen) == ("Redis", FAIL, True)
    assert found.remedy.startswith(f"Create this user on {name_of(lacks)}, ")


def test_the_console_shows_each_master_and_names_the_one_that_refuses(cluster, broker):
    console = Console(ConsoleSettings(), lambda: broker)
    setting(cluster, cluster.nodes[2], appendonly="yes")
    shown = {one["node"]: one["onDisk"] for one in server_page(console, {})["nodes"]}
    names = map(name_of, cluster.nodes)
    assert shown == dict(zip(names, ("nothing", "nothing", "append only"), strict=True))
    with cluster.client(cluster.nodes[1]) as client:
        client.execute_command("ACL", "DELUSER", "rmq")
    with pytest.raises(ServerRefused, match=f"Redis at {name_of(cluster.nodes[1])} refused"):
        server_page(console, {})


def test_connect_warns_of_a_master_that_keeps_nothing(cluster, caplog, monkeypatch):
    """Failed before: nothing was said of a cluster."""
    monkeypatch.setattr(server_module, "_warned", set())
    for node in cluster.nodes[:2]:
        setting(cluster, node, appendonly="yes")
    rmq_spark.connect(cluster.url, cluster="true").close()
    assert f"Redis at {name_of(cluster.nodes[2])} stores nothing on disk" in caplog.text


def test_the_oldest_master_decides_what_all_can_do(executable):
    """Failed before: the version was that of a master chosen by chance."""
    oldest = servers.oldest_redis_server()
    if oldest in (None, executable):
        pytest.skip("There are no servers of two versions.")
    cluster = LocalCluster(3, 0, executable, servers.SETTINGS)
    cluster.nodes[1].executable = oldest
    with cluster, rmq_spark.connect(cluster.url, cluster="true") as broker:
        assert broker.server.version == server_module.OLDEST_VERSION
        broker.create("T", "FixedTime", SLOTS)
        assert broker.queue("T").send(["m"] * SLOTS, fixed_time=1).new == 1
        _, *software = found_by(broker)["Redis"].seen.split(", ")
        assert len(software) == 2


def test_connect_does_without_a_master_that_is_down_and_doctor_names_it(executable):
    with LocalCluster(3, 0, executable, servers.SETTINGS) as cluster:
        down = cluster.nodes[1]
        down.kill()
        with rmq_spark.connect(cluster.url, cluster="true", patience_s=0) as broker:
            (found,) = check_server(broker)
    assert found.state == FAIL
    assert f"Redis at {name_of(down)} cannot be reached" in found.seen
    assert found.remedy.startswith(f"Start {name_of(down)}, ")


def test_a_master_that_permits_less_is_named(cluster, broker):
    """Failed before: only the node of the first key was asked for the user's permissions."""
    broker.create("T", "FixedTime", SLOTS)
    lacks = cluster.nodes[1]
    permit(cluster, "-zadd", "-zrank", at=lacks)
    found = found_by(broker)["Redis user"]
    assert (found.state, found.seen) == (FAIL, f"{name_of(lacks)}: may not run ZADD, ZRANK")
    granted = as_administrator(lacks, "ACL SETUSER rmq +zadd +zrank")
    assert found.remedy.startswith(granted)
    with rmq_spark.connect(cluster.url, cluster="true", **USER) as another:
        queue = another.queue("T")
        with pytest.raises(ServerRefused, match=f"Redis at {name_of(lacks)} does not") as refused:
            queue.send(["m"] * SLOTS, fixed_time=1)
    assert refused.value.node == name_of(lacks)
    assert queue.figures().store.count == 0


def test_each_master_that_answers_strangers_is_seen(executable):
    outside = address_for_others()
    open_to_all = {"bind": f"127.0.0.1 {outside}", "protected-mode": "no"}
    settings = {**servers.SETTINGS, **open_to_all, "cluster-announce-ip": outside}
    with LocalCluster(3, 0, executable, settings) as cluster:
        permit(cluster, "+@all")
        for node in cluster.nodes[:2]:
            with cluster.client(node) as client:
                client.execute_command("ACL", "SETUSER", "default", "off")
        url = f"redis://{outside}:{cluster.nodes[0].port}"
        with rmq_spark.connect(url, cluster="true", **USER) as broker:
            found = found_by(broker)["Redis login"]
        open_one = f"{outside}:{cluster.nodes[2].port}"
        assert found.seen == f"{open_one}: Redis answers without user and password"
        assert f"-u redis://{open_one} {AS_ADMINISTRATOR} ACL SETUSER default off" in found.remedy
        with cluster.client(cluster.nodes[2]) as client:
            client.execute_command("ACL", "SETUSER", "default", "off")


def test_remedies_name_the_master_of_the_sentinels(executable):
    """Failed before: redis-cli without host and port asked the server at 127.0.0.1:6379."""
    with Sentinels(executable) as sentinels:
        with rmq_spark.connect(**sentinels.options) as broker:
            remedy = found_by(broker)["Redis on disk"].remedy
        at_master = f"redis-cli -u redis://{name_of(sentinels.master)}/0"
        assert remedy == f"{at_master} CONFIG SET appendonly yes{KEPT}"
        with redis.Redis(port=sentinels.master.port) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        session = Session({f"redis.{name}": text for name, text in sentinels.options.items()})
        (found,) = check_redis(session)
    assert found.remedy == f"{at_master} CONFIG SET maxmemory-policy noeviction{KEPT}"


def test_a_master_that_is_down_keeps_nobody_from_sending_to_another(executable):
    """Failed before: the first script was loaded, and its permissions asked for, at each master."""
    settings = {**servers.SETTINGS, "cluster-require-full-coverage": "no"}
    with LocalCluster(3, 0, executable, settings) as cluster:
        permit(cluster, "+@all", "-wait")
        with rmq_spark.connect(cluster.url, cluster="true", **USER) as broker:
            broker.create("T", "FixedTime", SLOTS)
            defines = broker.server.client.get_node_from_key(topics_key("")).port
        down = next(node for node in cluster.nodes[1:] if node.port != defines)  # [0]: the URL's
        down.kill()
        sent = 0
        with rmq_spark.connect(cluster.url, cluster="true", patience_s=0, **USER) as broker:
            queue = broker.queue("T")
            for number in numbered(SLOTS):
                with suppress(ServerUnavailable):
                    sent += queue.send([number], fixed_time=1).new
        assert 0 < sent < SLOTS


def test_without_wait_the_error_names_that_permission(own_cluster):
    """Failed before: the remedy was to grant "the commands in docs/security.md"."""
    permit(own_cluster, "+@all", "-wait")
    with rmq_spark.connect(own_cluster.url, cluster="true") as broker:
        broker.create("T", "FixedTime", 1)
    with rmq_spark.connect(own_cluster.url, cluster="true", minReplicas="1", **USER) as broker:
        found = found_by(broker)["Redis user"]
        assert (found.state, "may not run WAIT" in found.seen) == (FAIL, True)
        assert "ACL SETUSER rmq +wait" in found.remedy
        queue = broker.queue("T")
        with pytest.raises(NotReplicated, match=r"Grant it \+wait \(docs/security.md\)\.$"):
            queue.send(["m"], fixed_time=1)
