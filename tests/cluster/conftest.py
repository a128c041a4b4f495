"""A Redis Cluster that all tests share, and clusters that one test may break."""

import uuid

import pytest
import servers

import rmq_spark
from rmq_spark.local_cluster import LocalCluster


def new_cluster(executable, masters=3, replicas=1):
    return LocalCluster(masters, replicas, executable, dict(servers.SETTINGS))


@pytest.fixture(scope="session")
def shared_cluster(redis_executable):
    """Three masters: never break it."""
    with new_cluster(redis_executable, replicas=0) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(redis_executable):
    """Three masters with a replica each, to break."""
    with new_cluster(redis_executable) as cluster:
        yield cluster


@pytest.fixture
def cluster_broker(shared_cluster):
    """Topics under a prefix of this test's own."""
    broker = rmq_spark.connect(
        shared_cluster.url, cluster="true", key_prefix=f"{uuid.uuid4().hex}:"
    )
    yield broker
    broker.close()
