"""A Redis Cluster of one's own, for demos and tests: masters and their replicas on loopback."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import redis

from rmq_spark.dev_servers.redis_server import START_TIMEOUT_S, LocalRedis
from rmq_spark.errors import ServerUnavailable

HASH_SLOTS = 16384
# Redis' own default of 15 s is for networks; here nobody wants to wait for a failover so long.
SETTINGS = {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}


class LocalCluster:
    """So many masters, each with so many replicas. A context manager.

    executable and settings are those of LocalRedis, for every node. nodes: the servers; those that
    begin as masters come first.
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
        """The address of one node; a client finds the others."""
        return self.nodes[0].url

    def start(self) -> "LocalCluster":
        """Starts all nodes and makes them a cluster. Raises ServerUnavailable."""
        with ExitStack() as undo:
            undo.callback(self.close)
            for node in self.nodes:
                node.start()
            self._form()
            undo.pop_all()
        return self

    def close(self) -> None:
        """Ends all nodes and removes their data."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> "LocalCluster":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def masters(self) -> list[LocalRedis]:
        """The nodes that run and are masters now."""
        return [node for node in self.nodes if node.runs and self.role(node) == "master"]

    def replica_of(self, master: LocalRedis) -> LocalRedis:
        """A running replica of that master. Raises ServerUnavailable where it has none."""
        for node in self.nodes:
            follows = self._replication(node) if node.runs else {}
            if follows.get("master_port") == master.port:
                return node
        raise ServerUnavailable(f"No replica of the master on port {master.port} runs.")

    def role(self, node: LocalRedis) -> str:
        """master or slave, as the node itself says; it must run."""
        return str(self._replication(node)["role"])

    def wait_until_whole(self) -> None:
        """Waits until all nodes that run agree on the cluster and all replicas follow."""
        self._until(lambda: all(self._is_whole(node) for node in self.nodes if node.runs))

    def client(self, node: LocalRedis) -> "redis.Redis":
        """A client of that node alone."""
        return redis.Redis(port=node.port, password=self._password, decode_responses=True)

    # -- below: how it is formed

    def _form(self) -> None:
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for number, node in enumerate(masters):
            first, last = (HASH_SLOTS * at // self._masters for at in (number, number + 1))
            self._do(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self._do(node, "CLUSTER", "ADDSLOTS", *range(first, last))
        for node in self.nodes[1:]:
            self._do(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        self._until(lambda: all(self._knows_all(node) for node in self.nodes))
        for number, node in enumerate(replicas):
            master = self._do(masters[number % self._masters], "CLUSTER", "MYID")
            self._do(node, "CLUSTER", "REPLICATE", master)
        self._until(lambda: all(self.role(node) == "slave" for node in replicas))
        self.wait_until_whole()

    def _knows_all(self, node: LocalRedis) -> bool:
        lines = str(self._do(node, "CLUSTER", "NODES")).splitlines()
        return sum("handshake" not in line for line in lines) == len(self.nodes)

    def _is_whole(self, node: LocalRedis) -> bool:
        is_ok = "cluster_state:ok" in str(self._do(node, "CLUSTER", "INFO"))
        return is_ok and self._replication(node).get("master_link_status", "up") == "up"

    def _replication(self, node: LocalRedis) -> dict[str, Any]:
        found: dict[str, Any] = self._do(node, "INFO", "replication")
        return found

    def _do(self, node: LocalRedis, *words: Any) -> Any:
        with self.client(node) as client:
            return client.execute_command(*words)

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if holds():
                return
            time.sleep(0.05)
        raise ServerUnavailable("The nodes of the local Redis Cluster do not agree with another.")
