"""The other process of the bench services: waits for messages as a service does.

``service_side.py consumer|blpop|idle URL``. A message is the time at which it was sent, of
time.monotonic, which all processes share. Prints, at SIGTERM, the seconds from then until each
message was there, as JSON.
"""

import json
import signal
import sys
import time
from collections.abc import Iterator

import redis

import rmq_spark

TOPIC, LIST = "Bench", "bench:list"


def by_consumer(url: str) -> Iterator[bytes]:
    """Messages of a consumer that waits; each is committed when the next one is asked for."""
    with rmq_spark.connect(url) as broker, broker.consumer(TOPIC, "bench") as consumer:
        print("ready", flush=True)
        for batch in consumer.batches(1):
            for message in batch:
                yield message.content or b""
            batch.commit()


def by_blpop(url: str) -> Iterator[bytes]:
    """Messages of a list."""
    client = redis.Redis.from_url(url, protocol=2)
    print("ready", flush=True)
    while True:
        yield client.blpop([LIST])[1]


def main(way: str, url: str) -> None:
    """Wait until SIGTERM."""
    late: list[float] = []

    def end(*_: object) -> None:
        print(json.dumps(late), flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    for content in by_blpop(url) if way == "blpop" else by_consumer(url):
        late.append(time.monotonic() - float(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
