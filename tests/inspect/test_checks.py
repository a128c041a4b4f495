"""What doctor says of a server: what it hides, whose replica it is, and whom it answers."""

import socket

import pytest
import redis

from rmq_spark.client import connect
from rmq_spark.errors import ServerUnavailable
from rmq_spark.inspect.checks import FAIL, OK, WARN, check_server

from .. import servers
from ..rounds.proxy import Proxy
from ..security.credentials import PREFIX, SECRET, permit
from ..waiting import wait_until

FIELDS = {
    "maxmemory_policy": "Redis policy",
    "aof_enabled": "Redis on disk",
    "used_memory": "Redis memory",
    "master_replid": "Redis failover",
}


def test_what_a_server_hides_is_not_called_right(own_redis):
    """Failed before: a policy that nobody could see was ok, and a hidden memory 0 MiB."""
    proxy = Proxy(own_redis.port)
    proxy.renamed = {f"{name}:".encode(): f"{'x' * len(name)}:".encode() for name in FIELDS}
    with connect(f"redis://127.0.0.1:{proxy.port}/0") as broker:
        found = {finding.what: finding for finding in check_server(broker)}
    proxy.close()
    for field, what in FIELDS.items():
        assert found[what].state == WARN
        assert f"INFO shows no {field}" in found[what].seen
        assert found[what].remedy
    assert found["Redis user"].state == OK
    with connect(own_redis.url) as broker:
        assert "Redis failover" not in {finding.what for finding in check_server(broker)}


def test_a_replica_is_told_from_its_master(redis_executable, own_redis):
    """Failed before: all was ok, and each send failed."""
    with servers.local(redis_executable) as other, redis.Redis.from_url(other.url) as client:
        client.replicaof("127.0.0.1", own_redis.port)
        wait_until(lambda: client.info()["master_link_status"] == "up", "the replica")
        with connect(other.url, patience_s=0) as broker:
            with pytest.raises(ServerUnavailable, match="is a replica"):
                broker.create("Orders", "FixedTime", 1)
            (role,) = [one for one in check_server(broker) if one.state == FAIL]
    assert (role.what, "a replica" in role.seen) == ("Redis role", True)
    assert f"its master, 127.0.0.1:{own_redis.port};" in role.remedy
    with connect(own_redis.url) as broker:
        assert "Redis role" not in {finding.what for finding in check_server(broker)}


def address_for_others():
    """An address of this machine by which others reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("This machine has only loopback.")
        return probe.getsockname()[0]


def test_a_redis_that_answers_strangers_is_told(own_redis):
    """Failed before: all was ok while the user default was on without a password."""
    outside = address_for_others()
    permit(own_redis.url, "rmq")

    def told(host):
        login = {"username": "rmq", "password": SECRET, "key_prefix": PREFIX}
        with connect(f"redis://{host}:{own_redis.port}/0", **login) as broker:
            return [one for one in check_server(broker) if one.what == "Redis login"]

    with redis.Redis.from_url(own_redis.url) as client:
        client.execute_command("ACL", "SETUSER", "admin", "on", f">{SECRET}", "+@all")
    with redis.Redis.from_url(own_redis.url, username="admin", password=SECRET) as admin:
        admin.execute_command("ACL", "SETUSER", "default", "-@all", "+ping")
        admin.config_set("protected-mode", "no")
        admin.config_set("bind", f"127.0.0.1 {outside}")
        assert told("127.0.0.1") == []
        (found,) = told(outside)
        assert (found.state, found.seen) == (WARN, "Redis answers without user and password")
        assert "ACL SETUSER default off  # then ACL SAVE" in found.remedy
        admin.execute_command("ACL", "SETUSER", "default", "off")
        assert told(outside) == []
