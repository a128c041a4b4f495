"""A Redis Cluster that all tests share, and clusters that one test may break."""

import uuid

import pytest

import rmq_spark
from jobs.flights.redis_cluster import SETTINGS, LocalCluster

from .. import servers


@pytest.fixture(scope="session")
def executable():
    return servers.newest()


@pytest.fixture(scope="session")
def shared_cluster(executable):
    """Three masters: never break it."""
    with LocalCluster(3, 0, executable, servers.SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(executable):
    """Three masters with a replica each, to break."""
    with LocalCluster(3, 1, executable, servers.SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def growing_cluster(executable):
    """A master of all hash slots, and one that has joined and has none yet."""
    with LocalCluster(1, 0, executable, servers.SETTINGS) as cluster:
        cluster.nodes.append(servers.start(executable, **SETTINGS))
        cluster._until(cluster._have_met)
        cluster.wait_until_whole()
        yield cluster


@pytest.fixture
def cluster_broker(shared_cluster):
    """Topics under a prefix of this test's own."""
    broker = rmq_spark.connect(
        shared_cluster.url, cluster="true", key_prefix=f"{uuid.uuid4().hex}:"
    )
    yield broker
    broker.close()
