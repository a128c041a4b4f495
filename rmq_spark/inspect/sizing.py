"""The size of a deployment, worked out from measured costs: see docs/scaling.md."""

import math
import uuid
from dataclasses import dataclass

from rmq_spark.options import SESSION_TIMEOUT
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import DEFAULT_SLOT_AMOUNT, MOST_SLOTS

MEASURED_SERVER = "Redis 7.0"
# What Redis keeps for a message in the store beside its content: backlog.md, 147 bytes a message of
# 34 bytes, less the 40 that the allocator gives to such a content.
ENTRY_BYTES = 107
# What the allocator adds to the bytes of a content: a header, and a byte at the end.
CONTENT_HEADER_BYTES = 4
# CPU of Redis' main thread for a message of 34 bytes: claims.md, sent to a FixedTime topic; and
# claimed, read and committed.
SEND_US, RECEIVE_US = 1.7, 1.58
MEASURED_BYTES = 34
# For each further byte, to send and to receive: growth.md, from 34 to 2048 bytes. It is the time of
# Spark and Redis together, so Redis alone takes less.
SEND_BYTE_US, RECEIVE_BYTE_US = 0.0098, 0.0095
# CPU of Spark and its Python workers for a message: send.md and receive.md, two busy cores for 1.9
# and 2.55 us, less the CPU of Redis.
SPARK_SEND_US, SPARK_RECEIVE_US = 2.1, 3.5
# The driver's time for a slot in which something is due: planning_scale.md, commit and plan.
PLAN_SLOT_US = 160.0
# The connections of a query's driver to a Redis node, for its requests, leases and wake-ups; a
# worker has one.
DRIVER_CONNECTIONS, WORKER_CONNECTIONS = 3, 1


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
# Of a trial: 3/4 of a hash table of 4096 entries, the mean load of a table that doubles when it is
# full. Redis is busy with that for 2 ms, also with large contents.
TRIAL_MESSAGES, TRIAL_BYTES = 3072, 4 * 2**20
TRIAL_KEPT_MS = 60_000
# A sorted set of four small contents would be stored as a list, which a store of many is not.
FEWEST_TRIAL_MESSAGES = 4


@dataclass(frozen=True)
class DeploymentSize:
    """What a number of stored messages and a rate take.

    content_bytes: of each message; message_bytes: the memory that Redis needs for one. rate:
    messages/s that are sent, and as many that are received. masters: Redis nodes with messages;
    each should have a replica. masters_for_rate, masters_for_data: how many either of the two
    takes. queries: Spark queries that share the slots. cores: of Spark's executors and senders.
    """

    messages: int
    rate: int
    content_bytes: int
    message_bytes: float
    masters: int
    masters_for_rate: int
    masters_for_data: int
    slots: int
    cores: int
    queries: int

    @property
    def data_bytes(self) -> int:
        """The memory that Redis needs for all messages, on all masters together."""
        return math.ceil(self.messages * self.message_bytes)

    @property
    def machine_bytes(self) -> int:
        """The memory of the machine of a master, and of its replica."""
        return math.ceil(self.data_bytes / self.masters * MACHINE_SHARE)

    @property
    def plan_s(self) -> float:
        """Seconds in which a driver plans a batch of its slots and commits the one before."""
        return self.slots / self.queries * PLAN_SLOT_US / 1e6

    @property
    def connections(self) -> int:
        """Connections to each master."""
        return self.queries * DRIVER_CONNECTIONS + self.cores * WORKER_CONNECTIONS

    @property
    def zookeeper_pings(self) -> float:
        """Requests a second to ZooKeeper while all queries work; none of them writes."""
        sessions = self.queries if self.queries > 1 else 0
        return sessions * PINGS_A_TIMEOUT * 1000 / SESSION_TIMEOUT.default_value

    @property
    def zookeeper_writes(self) -> int:
        """Writes to ZooKeeper when a query comes or goes: two for each slot that moves."""
        return 2 * self.slots // self.queries if self.queries > 1 else 0


def deployment_size(
    messages: int, rate: int, content_bytes: int, message_bytes: float | None = None
) -> DeploymentSize:
    """Work out what stored messages and a rate take.

    message_bytes: the memory of a message, as measured by measure_message_bytes; None: as on the
    server of the measured costs.
    """
    if message_bytes is None:
        message_bytes = ENTRY_BYTES + allocated_bytes(content_bytes)
    more_bytes = max(0, content_bytes - MEASURED_BYTES)
    redis_us = SEND_US + RECEIVE_US + more_bytes * (SEND_BYTE_US + RECEIVE_BYTE_US)
    for_rate, for_data = (
        _nodes(rate * redis_us / 1e6 / LOAD),
        _nodes(messages * message_bytes / NODE_BYTES),
    )
    masters = max(for_rate, for_data)
    if masters > 1:
        masters = max(masters, FEWEST_MASTERS_OF_A_CLUSTER)
    slots = min(MOST_SLOTS, max(DEFAULT_SLOT_AMOUNT, _power_of_two(masters * SLOTS_A_NODE)))
    spark_us = SPARK_SEND_US + SPARK_RECEIVE_US
    return DeploymentSize(
        messages=messages,
        rate=rate,
        content_bytes=content_bytes,
        message_bytes=message_bytes,
        masters=masters,
        masters_for_rate=for_rate,
        masters_for_data=for_data,
        slots=slots,
        cores=_nodes(rate * spark_us / 1e6 / LOAD),
        queries=_nodes(slots * PLAN_SLOT_US / 1e6 / PLAN_S),
    )


def measure_message_bytes(server: Server, content_bytes: int, key_prefix: str = "") -> float:
    """Measure the memory of a message in a store, by a trial that leaves nothing behind.

    Raises an RmqError, such as ServerRefused for a user without MEMORY USAGE.
    """
    fitting = min(TRIAL_MESSAGES, TRIAL_BYTES // content_bytes)
    messages = max(FEWEST_TRIAL_MESSAGES, fitting)
    # A content of one byte has too few values for a trial; it takes the memory of one of four.
    contents = [b"%0*d" % (max(4, content_bytes), number) for number in range(messages)]
    key = f"{key_prefix}rmq_trial:{uuid.uuid4().hex}"
    entries = [word for n, content in enumerate(contents) for word in (10**12 + n, content)]
    # A user who may not run all of it would leave the key behind.
    server.commands([("UNLINK", key), ("PEXPIRE", key, 0), ("MEMORY USAGE", key)])
    # Not a transaction, which few users may run. If the connection breaks, the key expires.
    trial = [
        ("ZADD", key, *entries[:2]),
        ("PEXPIRE", key, TRIAL_KEPT_MS),
        ("ZADD", key, *entries[2:]),
        ("MEMORY USAGE", key, "SAMPLES", 0),
        ("UNLINK", key),
    ]
    taken = server.commands(trial)[3]
    return float(taken) / messages


def allocated_bytes(content_bytes: int) -> int:
    """Return what the allocator of Redis, jemalloc, gives to a content.

    It has a size for every 8 bytes up to 64, and then four sizes to each doubling.
    """
    wanted = content_bytes + CONTENT_HEADER_BYTES
    step = max(8, (1 << (wanted - 1).bit_length()) // 8)
    return -(-wanted // step) * step


def _nodes(exact: float) -> int:
    return max(1, math.ceil(exact))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
