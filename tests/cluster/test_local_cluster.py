"""Forming a local Redis Cluster on a machine that has much else to do."""

import os
import signal
import threading

import pytest

from jobs.flights.redis_cluster import LocalCluster

STOPPED_S = 4  # longer than a node waits for one that it is to meet: cluster-node-timeout, 2 s


class Interrupted(LocalCluster):
    """Its first node is stopped when the first of the others is to meet it."""

    continues = None

    def _do(self, node, *words):
        if words[:2] == ("CLUSTER", "MEET") and self.continues is None:
            first = self.nodes[0].pid
            os.kill(first, signal.SIGSTOP)
            self.continues = threading.Timer(STOPPED_S, os.kill, (first, signal.SIGCONT))
            self.continues.start()
        return super()._do(node, *words)


@pytest.mark.long
def test_it_forms_though_a_node_stood_still_while_the_others_were_to_meet_it(executable):
    with Interrupted(masters=3, replicas=1, executable=executable) as cluster:
        assert cluster.continues is not None
        assert len(cluster.masters()) == 3
