"""The size of a deployment, worked out from measured costs: see docs/scaling.md."""

import math
from dataclasses import dataclass

from rmq_spark.options.ensemble_options import SESSION_TIMEOUT
from rmq_spark.topics.definition import DEFAULT_SLOT_AMOUNT, MOST_SLOTS
from rmq_spark.views import measured_costs as cost

# How busy a core may be, so that a slow minute or a lost node does not show.
LOAD = 0.5
# A choice, not a measured limit: with more data, a node takes longer to write its files and to
# load them. bench/hundred_million.py measures how long.
NODE_BYTES = 16 * 10**9
# The memory of a machine, of its data: writes meanwhile are there twice while Redis writes files.
MACHINE_SHARE = 1.3
SLOTS_A_NODE = 64
# A driver should plan a batch and commit the one before within this time.
PLAN_S = 0.5
# kazoo asks for a sign of life three times within the timeout of a session.
PINGS_A_TIMEOUT = 3
FEWEST_MASTERS_OF_A_CLUSTER = 3


@dataclass(frozen=True)
class DeploymentSize:
    """What a number of stored messages and a rate take.

    rate: messages/s that are sent, and as many that are received. masters: Redis nodes with
    messages; each should have a replica. masters_for_rate, masters_for_data: how many either of the
    two takes. queries: Spark queries that share the slots. cores: of Spark's executors and senders.
    """

    messages: int
    rate: int
    message_bytes: int
    data_bytes: int
    masters: int
    masters_for_rate: int
    masters_for_data: int
    slots: int
    cores: int
    queries: int

    @property
    def machine_bytes(self) -> int:
        """The memory of the machine of a master, and of its replica."""
        return math.ceil(self.data_bytes / self.masters * MACHINE_SHARE)

    @property
    def plan_s(self) -> float:
        """Seconds in which a driver plans a batch of its slots and commits the one before."""
        return self.slots / self.queries * cost.PLAN_SLOT_US / 1e6

    @property
    def connections(self) -> int:
        """Connections to each master."""
        return self.queries * cost.DRIVER_CONNECTIONS + self.cores * cost.WORKER_CONNECTIONS

    @property
    def zookeeper_pings(self) -> float:
        """Requests a second to ZooKeeper while all queries work; none of them writes."""
        sessions = self.queries if self.queries > 1 else 0
        return sessions * PINGS_A_TIMEOUT * 1000 / SESSION_TIMEOUT.default_value

    @property
    def zookeeper_writes(self) -> int:
        """Writes to ZooKeeper when a query comes or goes: two for each slot that moves."""
        return 2 * self.slots // self.queries if self.queries > 1 else 0


def deployment_size(messages: int, rate: int, message_bytes: int) -> DeploymentSize:
    """Work out what stored messages and a rate take. message_bytes: of a content."""
    data_bytes = messages * (cost.ENTRY_BYTES + allocated_bytes(message_bytes))
    more_bytes = max(0, message_bytes - cost.MEASURED_BYTES)
    redis_us = (
        cost.SEND_US + cost.RECEIVE_US + more_bytes * (cost.SEND_BYTE_US + cost.RECEIVE_BYTE_US)
    )
    for_rate, for_data = _nodes(rate * redis_us / 1e6 / LOAD), _nodes(data_bytes / NODE_BYTES)
    masters = max(for_rate, for_data)
    if masters > 1:
        masters = max(masters, FEWEST_MASTERS_OF_A_CLUSTER)
    slots = min(MOST_SLOTS, max(DEFAULT_SLOT_AMOUNT, _power_of_two(masters * SLOTS_A_NODE)))
    spark_us = cost.SPARK_SEND_US + cost.SPARK_RECEIVE_US
    return DeploymentSize(
        messages=messages,
        rate=rate,
        message_bytes=message_bytes,
        data_bytes=data_bytes,
        masters=masters,
        masters_for_rate=for_rate,
        masters_for_data=for_data,
        slots=slots,
        cores=_nodes(rate * spark_us / 1e6 / LOAD),
        queries=_nodes(slots * cost.PLAN_SLOT_US / 1e6 / PLAN_S),
    )


def allocated_bytes(content_bytes: int) -> int:
    """Return what the allocator of Redis, jemalloc, gives to a content.

    It has a size for every 8 bytes up to 64, and then four sizes to each doubling.
    """
    wanted = content_bytes + cost.CONTENT_HEADER_BYTES
    step = max(8, (1 << (wanted - 1).bit_length()) // 8)
    return -(-wanted // step) * step


def _nodes(exact: float) -> int:
    return max(1, math.ceil(exact))


def _power_of_two(number: int) -> int:
    """Return the first power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
