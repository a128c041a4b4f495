"""RMQ as its paper describes it: one message per script call, one call per round trip.

`one_by_one.py send` and `one_by_one.py receive`, with the scripts of this queue. Several receivers
share the slots.
"""

import sys
from collections import deque

from contents import PART, PARTS, URL, own_contents, tell_done

import rmq_spark
from rmq_spark.client.queue import Queue
from rmq_spark.protocol import claiming, sending
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.topics.keys import consumer_key

TOPIC, SLOTS = "Bench", 64
DUE_MS = 1_700_000_000_000
LEASE_MS = 60_000


def send(queue: Queue) -> None:
    """One call of the send script for each message."""
    for content in [content.encode() for content in own_contents()]:
        queue.ask(sending.send, {queue.definition.slot_of(content): [DUE_MS, content]})


def receive(queue: Queue) -> None:
    """One call to claim and one to commit each message, slot by slot in turns."""
    consumer, seq = f"c{PART}", 0
    key = consumer_key(consumer, queue.key_prefix)
    run = queue.server.ask(claiming.open_run(key, queue.definition.name, 0))
    left = deque(range(PART, SLOTS, PARTS))
    done = 0
    while left:
        slot, seq = left.popleft(), seq + 1
        request = ClaimRequest(slot, 0, limit=1)
        (claim,) = queue.ask(
            claiming.claim,
            [request],
            claiming.Claiming(consumer=consumer, run=run, seq=seq, lease_ms=LEASE_MS),
        )
        queue.ask(claiming.commit, [slot], consumer, run, seq)
        if claim.contents:
            done += 1
            left.append(slot)
    tell_done(done)


if __name__ == "__main__":
    broker = rmq_spark.connect(URL)
    broker.create(TOPIC, "FixedTime", SLOTS)
    {"send": send, "receive": receive}[sys.argv[1]](broker.queue(TOPIC))
