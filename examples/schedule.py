"""Send a message every night and one every second, each once however many schedulers run.

Redis is at RMQ_REDIS_URL, by default on this machine, where `rmq local` starts one.
The cron expression needs `pip install '.[schedules]'`.

    $ python examples/schedule.py
    schedules: example-beat, example-nightly
    2 beats, from 2 occurrences
"""

import rmq_spark

TOPIC = "Example.Reports"

with rmq_spark.connect() as broker:
    if broker.find(TOPIC):  # left by an earlier run
        broker.delete(TOPIC)  # and its schedules
    broker.create(TOPIC, "FixedTime", slot_amount=4)

    # A service can do this at each start: the same arguments change nothing.
    zurich = "Europe/Zurich"
    broker.schedule("example-nightly", TOPIC, "sales report", cron="0 3 * * *", timezone=zurich)
    broker.schedule("example-beat", TOPIC, "beat", every="1s")

    names = [schedule.name for schedule in broker.schedules() if schedule.topic == TOPIC]
    print(f"schedules: {', '.join(names)}")

    occurrences = []
    # In production, run `rmq scheduler`; two of them, so that one is left when the other dies.
    with broker.scheduler(), broker.scheduler(), broker.consumer(TOPIC, "reporter") as reporter:
        while len(occurrences) < 2:
            batch = reporter.poll(wait="10s")
            occurrences += [dict(message.headers)["rmq-scheduled-time"] for message in batch]
            batch.commit()
    broker.delete(TOPIC)  # else the schedules would go on
    print(f"{len(occurrences)} beats, from {len(set(occurrences))} occurrences")
