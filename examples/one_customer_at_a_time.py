"""Work on the changes of a customer in order, one at a time, and on several customers at once.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.

    $ python examples/one_customer_at_a_time.py
    ann: 10 changes, in order
    bob: 10 changes, in order
    cleo: 10 changes, in order
    two changes of one customer at the same time: 0
"""

import threading
import time
from collections import defaultdict

import rmq_spark

TOPIC = "Example.Accounts"
CUSTOMERS, CHANGES = ["ann", "bob", "cleo"], 10

booked = defaultdict(list)
locks = defaultdict(threading.Lock)
overlaps = []
finished = threading.Event()


def book(message):
    """Book a change, and note whether another one of its customer is in progress."""
    customer, number = message.content.decode().split()
    if not locks[customer].acquire(blocking=False):
        overlaps.append(customer)
        return
    time.sleep(0.02)  # the work
    booked[customer].append(int(number))
    locks[customer].release()
    if sum(map(len, booked.values())) == len(CUSTOMERS) * CHANGES:
        finished.set()


with rmq_spark.connect() as broker:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    broker.create(TOPIC, "FixedTime", slot_amount=64)
    # The slot basis keeps a customer in one slot, whose order is that of times, then of contents.
    began_ms = 1000 * int(time.time())
    changes = [
        rmq_spark.Message(f"{customer} {number}", slot_basis=customer, fixed_time=began_ms + number)
        for number in range(CHANGES)
        for customer in CUSTOMERS
    ]
    broker.queue(TOPIC).send(changes)

    # For several services, add zookeeper="host:2181": then each slot belongs to one of them.
    with broker.listen(TOPIC, "bookkeeper", book, workers=8):
        finished.wait(60)

    for customer, numbers in sorted(booked.items()):
        order = "in order" if numbers == sorted(numbers) else "out of order"
        print(f"{customer}: {len(numbers)} changes, {order}")
    print(f"two changes of one customer at the same time: {len(overlaps)}")
