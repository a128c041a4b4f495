"""Export a customer once, after the last of several edits.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.

    $ python examples/debounce.py
    3 edits, 1 message waiting
    export ann, who lives in Oslo
"""

import rmq_spark

TOPIC = "Example.Profiles"

with rmq_spark.connect() as broker:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    broker.create(TOPIC, "FixedTime", slot_amount=16, keyed=True)
    profiles = broker.queue(TOPIC)

    # Each edit replaces the waiting message of its key, and starts the delay again.
    edits = ["Bern", "Rome", "Oslo"]
    for city in edits:
        profiles.send([rmq_spark.Message(city, key="ann")], delay="1s")
    print(f"{len(edits)} edits, {profiles.figures().store.count} message waiting")

    with broker.consumer(TOPIC, "exporter") as exporter:
        batch = exporter.poll(wait="10s")
        for message in batch:
            print(f"export {message.key.decode()}, who lives in {message.content.decode()}")
        batch.commit()
