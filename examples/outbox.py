"""Send a message if, and only if, the database transaction that ordered it commits.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.
It also needs `pip install '.[postgresql]'`, and the PostgreSQL that PGHOST, PGPORT, PGDATABASE,
PGUSER and PGPASSWORD name.

    $ python examples/outbox.py
    order 2 failed: out of stock
    bill order 1
    bill order 3
    no other message: True
"""

import psycopg

import rmq_spark
from rmq_spark import Message, Outbox

TOPIC = "Example.Orders"


def order(number):
    """Store an order and its message in one transaction."""
    with database.transaction():
        database.execute("INSERT INTO example_orders VALUES (%s)", [number])
        outbox.send(database, [Message(f"order {number}", fixed_time=0)])
        if number == 2:
            raise ValueError("out of stock")


with rmq_spark.connect() as broker, psycopg.connect() as database:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    broker.create(TOPIC, "FixedTime", slot_amount=1)  # one slot: in order
    database.execute("CREATE TABLE IF NOT EXISTS example_orders (id INT)")
    database.commit()
    outbox = Outbox("postgresql://", table="example_outbox")
    outbox.create_tables()

    # The relay sends what was committed. It can also run in a process of its own.
    relay = outbox.relay(broker, topic=TOPIC)
    with relay, broker.consumer(TOPIC, "billing") as billing:
        for number in (1, 2, 3):
            try:
                order(number)
            except ValueError as error:
                print(f"order {number} failed: {error}")

        billed = 0
        while billed < 2 and relay.is_running:
            batch = billing.poll(wait="30s")
            for message in batch:
                print(f"bill {message.content.decode()}")
            billed += batch.commit()
    print(f"no other message: {broker.queue(TOPIC).figures().messages == 0}")
