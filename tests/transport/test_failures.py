"""Errors of Redis that pass, and what an error says when they did not pass in time."""

import threading

import pytest
import redis

from rmq_spark.client import connect
from rmq_spark.dev_servers.redis_server import free_port
from rmq_spark.errors import ServerUnavailable


@pytest.fixture
def replica(own_redis):
    """A server that is a replica of a master that is away. It answers reads."""
    admin = redis.Redis.from_url(own_redis.url)
    admin.execute_command("REPLICAOF", "127.0.0.1", free_port())
    yield admin
    admin.execute_command("REPLICAOF", "NO", "ONE")
    admin.close()


def test_a_replica_that_takes_no_writes_is_named_with_what_to_check(own_redis, replica):
    broker = connect(own_redis.url, patience_s=0.2)
    with pytest.raises(ServerUnavailable, match="is a replica and takes no writes") as raised:
        broker.create("T", "FixedTime", 1)
    text = str(raised.value)
    assert "rmq-spark retried for 0.2 s. Check that url names the master, or set" in text


def test_a_replica_that_becomes_the_master_in_time_takes_the_write(own_redis, replica):
    broker = connect(own_redis.url, patience_s=20)
    promotion = threading.Timer(0.3, replica.execute_command, ("REPLICAOF", "NO", "ONE"))
    promotion.start()
    assert broker.create("T", "FixedTime", 1).name == "T"
    promotion.join()
    assert broker.queue("T").send(["a"], fixed_time=0).new == 1
