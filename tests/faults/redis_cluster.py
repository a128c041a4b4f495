"""Cells on a Redis Cluster of three masters with a replica each, and the faults that only it has.

Each node announces a port of the proxy as its own, so every call of the queries passes the proxy,
wherever the cluster sends it. The replicas' connections to their masters do as well.
"""

import os
import signal
import time
from contextlib import ExitStack
from typing import Any

import redis
from redis.crc import key_slot

import rmq_spark
from jobs.flights.redis_cluster import LocalCluster
from rmq_spark.local.redis import LocalRedis

from ..cluster import moving
from ..processes import send
from ..rounds.moments import Call, Moment
from ..rounds.proxy import Proxy
from ..waiting import wait_until
from .cell import SLOTS, Cell
from .fault import CLUSTER, Fault, of_consumer, of_producer

MASTERS = 3
# Cluster nodes talk to each other on their port + 10 000.
BUS = 10_000
# A busy machine must not let a replica take over where no fault does; where one is to, soon.
NODE_TIMEOUT_MS = {True: "3000", False: "30000"}
# What is answered survives its master. A call waits so long for the replica, longer for the answer.
CONFIRMED = {"redis.minReplicas": "1", "redis.replicaTimeout": "3s", "redis.socketTimeout": "5s"}
TAKES_OVER_S = 120.0
LONGEST_CUT_S = 4.0


class ClusterCell(Cell):
    """A cell whose Redis is a cluster."""

    def _new_redis(self) -> LocalCluster:
        timeout = {"cluster-node-timeout": NODE_TIMEOUT_MS[self.fault.fails_over]}
        return LocalCluster(MASTERS, 1, settings={**self.settings, **timeout})

    @property
    def address(self) -> dict[str, str]:
        """The first node that is known to be there; the queries find the others."""
        return {"redis.url": self.url, "redis.cluster": "true"}

    @property
    def url(self) -> str:
        """A node that runs, through the proxy."""
        port = next(
            p for node, p in zip(self.redis.nodes, self.proxy.ports, strict=True) if node.runs
        )
        return f"redis://127.0.0.1:{port}/0"

    def clients(self) -> list[redis.Redis]:
        """Clients of all nodes."""
        return [self.redis.client(node) for node in self.redis.nodes if node.runs]

    def _open_redis(self, stack: ExitStack) -> None:
        self.lane.servers = {"redis": self.redis}
        nodes = self.redis.nodes
        self.proxy = Proxy(*(node.port for node in nodes))
        stack.callback(self.proxy.close)
        for node, port in zip(nodes, self.proxy.ports, strict=True):
            bus = {"cluster-announce-bus-port": str(node.port + BUS)}
            node.settings |= {"cluster-announce-port": str(port), **bus}
        stack.enter_context(self.redis)
        self._open_topic(stack, rmq_spark.connect(self.url, cluster="true"))

    def hash_slot(self) -> int:
        """One of the hash slots in which the topic's slots lie."""
        return key_slot(self.queue.keys.store(self.dice.randrange(SLOTS)).encode())

    def master_of(self, moment: Moment) -> LocalRedis:
        """The node whose call is held if it is a master, else that of some slot of the topic."""
        if isinstance(moment, Call) and moment.trap.ends[1] in self.proxy.ports:
            node = self.redis.nodes[self.proxy.ports.index(moment.trap.ends[1])]
            if self.redis.role(node) == "master":
                return node
        return moving.owner_of(self.redis, self.hash_slot())

    def until_replaced(self, victim: LocalRedis) -> None:
        """Waits until another node leads in a master's place."""

        def led() -> bool:
            others = (node for node in self.redis.nodes if node.runs and node is not victim)
            return sum(self.redis.role(node) == "master" for node in others) == MASTERS

        wait_until(led, "a replica to take over", TAKES_OVER_S)

    def until_it_follows(self, victim: LocalRedis) -> None:
        """Waits until a master that was replaced is a replica, and the cluster is whole."""
        follows = "the old master to follow"
        wait_until(lambda: self.redis.role(victim) == "slave", follows, TAKES_OVER_S)
        self.redis.wait_until_whole()


# -- injections


def kill_master(cell: Any, moment: Moment) -> bool:
    """kill -9 of a master; a replica takes its place, and it comes back as a replica."""
    victim = cell.master_of(moment)
    hit = send(victim.pid, signal.SIGKILL)
    victim.kill()
    moment.release()
    cell.until_replaced(victim)
    victim.start()
    cell.until_it_follows(victim)
    return hit


def stop_master(cell: Any, moment: Moment) -> bool:
    """A master stands still until a replica has taken its place; then it wakes."""
    victim = cell.master_of(moment)
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        moment.release()
        cell.until_replaced(victim)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    cell.until_it_follows(victim)
    return True


def move_slot(cell: Any, moment: Moment) -> bool:
    """A hash slot of the topic moves to another master, before and behind the held call."""
    hash_slot = cell.hash_slot()
    source = moving.owner_of(cell.redis, hash_slot)
    target = cell.dice.choice([node for node in cell.redis.masters() if node is not source])
    way = (cell.redis, hash_slot, source, target)
    moving.begin(*way)
    moved = moving.move_keys(*way)
    moment.release()
    time.sleep(cell.dice.uniform(0, 0.5))  # for calls that find some keys here and others there
    moved += moving.move_keys(*way)
    moving.finish(*way)
    return moved > 0


def cut_off(cell: Any, moment: Moment) -> bool:
    """No client reaches a master for a while."""
    node = cell.master_of(moment)
    port = cell.proxy.ports[cell.redis.nodes.index(node)]
    ended = cell.proxy.cut(port)
    try:
        moment.release()
        time.sleep(cell.dice.uniform(0.5, LONGEST_CUT_S))
    finally:
        cell.proxy.mend(port)
    return ended > 0


CLUSTER_FAULTS = (
    Fault(
        "master-kill",
        "Cluster: a master is killed (-9), its replica takes over",
        kill_master,
        of_consumer,
        client=CONFIRMED,
        servers=(CLUSTER,),
        fails_over=True,
    ),
    Fault(
        "master-stop",
        "Cluster: a master is stopped, its replica takes over, it goes on",
        stop_master,
        of_consumer,
        client=CONFIRMED,
        servers=(CLUSTER,),
        fails_over=True,
    ),
    Fault(
        "producer-master-kill",
        "Cluster: a master is killed (-9) under the producer",
        kill_master,
        of_producer,
        client=CONFIRMED,
        servers=(CLUSTER,),
        fails_over=True,
    ),
    Fault(
        "slot-moves",
        "Cluster: a hash slot moves to another master",
        move_slot,
        of_consumer,
        servers=(CLUSTER,),
    ),
    Fault(
        "node-cut",
        "Cluster: clients are cut off from a master for 0.5 to 4 s",
        cut_off,
        of_consumer,
        servers=(CLUSTER,),
    ),
)
