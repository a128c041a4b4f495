"""Store at most one reading of a sensor each second: the last one.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.

    $ python examples/throttle.py
    100 readings sent, stored: sensor-7 = 99
    100 readings sent, stored: sensor-7 = 199
"""

import rmq_spark

TOPIC = "Example.Readings"

with rmq_spark.connect() as broker:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)
    broker.create(TOPIC, "RangeMerge", slot_amount=16, keyed=True)
    readings = broker.queue(TOPIC)

    with broker.consumer(TOPIC, "recorder") as recorder:
        for values in (range(100), range(100, 200)):
            # The first reading sets when the message comes; the others only replace its payload.
            for value in values:
                readings.send([rmq_spark.Message(str(value), key="sensor-7")], time_range="1s")

            batch = recorder.poll(wait="10s")
            for message in batch:
                stored = f"{message.key.decode()} = {message.content.decode()}"
                print(f"{len(values)} readings sent, stored: {stored}")
            batch.commit()
