"""Call a service at most 20 times a second, however many programs call it.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.

    $ python examples/rate_limit.py
    41 calls by two listeners
    took 2 s or longer: True
"""

import threading
import time

import rmq_spark

TOPIC = "Example.Lookups"
CALLS = 41

called = []
finished = threading.Event()


def look_up(message):
    """Call the service. If it refuses all the same, raise rmq_spark.Hold("30s")."""
    called.append(message.content)
    if len(called) == CALLS:
        finished.set()


with rmq_spark.connect() as broker:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    # The limit belongs to the topic. broker.alter or `rmq alter` changes it while programs run.
    broker.create(TOPIC, "FixedTime", slot_amount=16, rate="20/s", burst=1)
    broker.queue(TOPIC).send([f"part {number}" for number in range(CALLS)], fixed_time=0)

    began = time.monotonic()
    with broker.listen(TOPIC, "one", look_up), broker.listen(TOPIC, "two", look_up):
        finished.wait(60)
    print(f"{len(called)} calls by two listeners")
    print(f"took 2 s or longer: {time.monotonic() - began >= 2}")
