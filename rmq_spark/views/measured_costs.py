"""Measured costs of messages and slots, from which the size of a deployment is worked out.

Each is a median of bench/results, from a machine of two virtual cores with Redis 7.0. A
file such as claims.md says when and how. Measure again after a change that makes a message cheaper.
"""

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
