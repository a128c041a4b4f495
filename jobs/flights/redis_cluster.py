"""A local Redis Cluster for demos and tests: masters and replicas on the loopback interface."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import redis

from rmq_spark.errors import ServerUnavailable
from rmq_spark.local.redis import LocalRedis

HASH_SLOTS = 16384
# On a machine that has much else to do, nodes take each other for failed until they catch up.
AGREED_WITHIN_S = 180.0
# Redis' own default of 15 s suits networks; on one machine, failovers can be quicker.
SETTINGS = {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}


class LocalCluster:
    """A Redis Cluster on free loopback ports. A context manager.

    masters: the number of masters. replicas: the number of replicas of each master. executable,
    settings: those of LocalRedis, for every cluster node. The attribute nodes lists the servers;
    those that start as masters come first.
    """

    def __init__(
        self,
        masters: int = 3,
        replicas: int = 1,
        executable: str | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        count = masters * (1 + replicas)
        self._masters = masters
        self._password = (settings or {}).get("requirepass")
        self.nodes = [
            LocalRedis(executable, {**SETTINGS, **(settings or {})}) for _ in range(count)
        ]

    @property
    def url(self) -> str:
        """The address of one cluster node, from which clients find the others."""
        return self.nodes[0].url

    def start(self) -> "LocalCluster":
        """Start all cluster nodes and form the cluster. Raises ServerUnavailable."""
        with ExitStack() as undo:
            undo.callback(self.close)
            for node in self.nodes:
                node.start()
            self._form()
            undo.pop_all()
        return self

    def close(self) -> None:
        """Stop all cluster nodes and delete their data."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> "LocalCluster":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def masters(self) -> list[LocalRedis]:
        """List the cluster nodes that run and are masters now."""
        return [node for node in self.nodes if node.runs and self.role(node) == "master"]

    def replica_of(self, master: LocalRedis) -> LocalRedis:
        """Find a running replica of a master. Raises ServerUnavailable if there is none."""
        for node in self.nodes:
            follows = self._replication(node) if node.runs else {}
            if follows.get("master_port") == master.port:
                return node
        raise ServerUnavailable(
            f"No replica of the master on port {master.port} is running. Start one first."
        )

    def role(self, node: LocalRedis) -> str:
        """Ask a running cluster node for its role: master or slave."""
        return str(self._replication(node)["role"])

    def wait_until_whole(self) -> None:
        """Wait until all running nodes agree on the cluster and all replicas follow a master."""
        self._until(lambda: all(self._is_whole(node) for node in self.nodes if node.runs))

    def client(self, node: LocalRedis) -> "redis.Redis":
        """Connect a client to one cluster node alone."""
        return redis.Redis(port=node.port, password=self._password, decode_responses=True)

    # -- forming the cluster

    def _form(self) -> None:
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for number, node in enumerate(masters):
            first, last = (HASH_SLOTS * at // self._masters for at in (number, number + 1))
            self._do(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self._do(node, "CLUSTER", "ADDSLOTS", *range(first, last))
        self._until(self._have_met)
        for number, node in enumerate(replicas):
            master = self._do(masters[number % self._masters], "CLUSTER", "MYID")
            self._do(node, "CLUSTER", "REPLICATE", master)
        self.wait_until_whole()

    def _have_met(self) -> bool:
        """Introduce all to the first, again until all know all. Redis forgets a slow one."""
        if all(self._knows_all(node) for node in self.nodes):
            return True
        for node in self.nodes[1:]:
            self._do(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        return False

    def _knows_all(self, node: LocalRedis) -> bool:
        lines = str(self._do(node, "CLUSTER", "NODES")).splitlines()
        return sum("handshake" not in line for line in lines) == len(self.nodes)

    def _is_whole(self, node: LocalRedis) -> bool:
        is_ok = "cluster_state:ok" in str(self._do(node, "CLUSTER", "INFO"))
        return is_ok and self._replication(node).get("master_link_status", "up") == "up"

    def _replication(self, node: LocalRedis) -> dict[str, Any]:
        replication: dict[str, Any] = self._do(node, "INFO", "replication")
        return replication

    def _do(self, node: LocalRedis, *words: Any) -> Any:
        with self.client(node) as client:
            return client.execute_command(*words)

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + AGREED_WITHIN_S
        while time.monotonic() < end:
            if holds():
                return
            time.sleep(0.05)
        raise ServerUnavailable(
            f"The nodes of the local Redis Cluster did not agree within {AGREED_WITHIN_S:g} s. The "
            "machine may be overloaded: start the cluster again."
        )
