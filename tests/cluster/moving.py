"""Moves hash slots from one master of a Redis Cluster to another while it is in use."""

from redis.crc import key_slot

from jobs.flights.redis_cluster import LocalCluster
from rmq_spark.local.redis import LocalRedis

KEYS_A_MOVE = 10


def hash_slots(keys) -> list[int]:
    return sorted({key_slot(key.encode()) for key in keys})


def begin(cluster: LocalCluster, hash_slot: int, source: LocalRedis, target: LocalRedis) -> None:
    """From here on source answers ASK for keys it has no more, and TRYAGAIN where some are left."""
    with cluster.client(source) as from_, cluster.client(target) as to:
        to.execute_command("CLUSTER", "SETSLOT", hash_slot, "IMPORTING", _id(from_))
        from_.execute_command("CLUSTER", "SETSLOT", hash_slot, "MIGRATING", _id(to))


def move_keys(cluster: LocalCluster, hash_slot: int, source: LocalRedis, target: LocalRedis) -> int:
    """Moves what the slot holds now; returns how many keys."""
    moved = 0
    with cluster.client(source) as from_:
        while keys := from_.execute_command("CLUSTER", "GETKEYSINSLOT", hash_slot, KEYS_A_MOVE):
            address = ("127.0.0.1", target.port, "", 0, 5000)
            from_.execute_command("MIGRATE", *address, "KEYS", *keys)
            moved += len(keys)
    return moved


def finish(cluster: LocalCluster, hash_slot: int, source: LocalRedis, target: LocalRedis) -> None:
    """From here on source answers MOVED."""
    with cluster.client(target) as to:
        owner = _id(to)
    others = [node for node in cluster.masters() if node not in (source, target)]
    for node in (target, source, *others):
        with cluster.client(node) as client:
            client.execute_command("CLUSTER", "SETSLOT", hash_slot, "NODE", owner)


def owner_of(cluster: LocalCluster, hash_slot: int) -> LocalRedis:
    for node in cluster.masters():
        with cluster.client(node) as client:
            own = _id(client)
            for first, last, (_, _, owner, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= hash_slot <= last and owner == own:
                    return node
    raise AssertionError(f"nobody has the hash slot {hash_slot}")


def _id(client) -> str:
    return client.execute_command("CLUSTER", "MYID")
