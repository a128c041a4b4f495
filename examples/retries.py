"""Decide what follows a failed call: try it again later, give it up, or hold all calls for a while.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.

    $ python examples/retries.py
    invoice 1: answered 503, 503, 200
    invoice 2: answered 404
    invoice 3: answered 429, 200
    dead: invoice 2, Bury: no such customer (retries.py:33)
"""

import threading
from collections import defaultdict

import rmq_spark

TOPIC = "Example.Invoices"
# What the service will answer to each call. In your program: an HTTP request.
ANSWERS = {"invoice 1": [503, 503, 200], "invoice 2": [404], "invoice 3": [429, 200]}

answered = defaultdict(list)
finished = threading.Event()


def post(message):
    """Post an invoice. What this raises decides what happens to its message."""
    invoice = message.content.decode()
    status = ANSWERS[invoice].pop(0)
    answered[invoice].append(status)
    if not any(ANSWERS.values()):
        finished.set()
    if status == 404:
        raise rmq_spark.Bury("no such customer")  # no retry can help: to the dead queue
    if status == 429:
        raise rmq_spark.Hold("1s")  # nobody gets a message for 1 s; this one costs no retry
    if status != 200:
        raise OSError(f"status {status}")  # any other exception: again after the backoff


with rmq_spark.connect() as broker:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    # The first retry comes after 1 s, all others after 2 s. The fourth failure is the last.
    broker.create(TOPIC, "FixedTime", slot_amount=16, max_retries=3, retry_backoff="1s, 2s")
    invoices = broker.queue(TOPIC)
    invoices.send(list(ANSWERS), fixed_time=0)

    with broker.listen(TOPIC, "poster", post, workers=4, timeout="30s"):
        finished.wait(60)

    for invoice in sorted(answered):
        print(f"{invoice}: answered {', '.join(map(str, answered[invoice]))}")
    # After a repair, `invoices.requeue(["invoice 2"])` or `rmq requeue` sends it again.
    for entry in invoices.find(["invoice 2"]):
        print(f"{entry.queue}: {entry.content.decode()}, {entry.reason}")
