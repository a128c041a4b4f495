"""Send a thousand orders, for the pipeline to read."""

import rmq_spark

with rmq_spark.connect() as broker:
    for topic in ("Example.Orders", "Example.Reminders"):  # left by an earlier run
        if broker.find(topic):
            broker.delete(topic)
    broker.create("Example.Orders", "FixedTime", slot_amount=16)
    orders = [f"order {number}" for number in range(1000)]
    print(broker.queue("Example.Orders").send(orders, fixed_time=0))
