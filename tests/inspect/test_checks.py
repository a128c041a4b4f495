"""What doctor says of a server that hides something, as managed ones may."""

from rmq_spark.client import connect
from rmq_spark.inspect.checks import OK, WARN, check_server

from ..rounds.proxy import Proxy

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
