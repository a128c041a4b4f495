"""Killed senders to a topic with limits: each message is accepted once, and never too many wait."""

import itertools
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from rmq_spark.client import connect
from rmq_spark.protocol import reading

SENDERS, MOST = 3, 3200


def taken(consumer):
    """The contents of the next batch, which is committed."""
    batch = consumer.poll(1000, wait="20ms")
    contents = [message.content for message in batch]
    batch.commit()
    return contents


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("numbers", "kills"), [(20_000, 4), pytest.param(1_000_000, 400, marks=pytest.mark.rounds)]
)
def test_each_message_is_accepted_once_and_never_more_wait_than_may(own_redis, numbers, kills):
    seeds = itertools.count()

    def start():
        arguments = own_redis.url, str(numbers), str(next(seeds))
        return subprocess.Popen([sys.executable, "-m", f"{__package__}.limited_sender", *arguments])

    counted: Counter[bytes] = Counter()
    most_waited, random_of = 0, random.Random(7)
    with connect(own_redis.url) as broker:
        broker.create("T", "FixedTime", 16, max_messages=MOST, unique_for="1d")
        queue = broker.queue("T")
        running = [start() for _ in range(SENDERS)]
        kill_s = time.monotonic() + 1
        try:
            with broker.consumer("T", "a") as consumer:
                while kills or any(sender.poll() is None for sender in running):
                    waiting = queue.ask(reading.waiting, queue.slots, "messages")
                    most_waited = max(most_waited, sum(waiting))
                    counted.update(taken(consumer))
                    if kills and time.monotonic() > kill_s:  # one that has ended begins again
                        place = random_of.randrange(SENDERS)
                        running[place].kill()
                        running[place].wait()
                        running[place], kills = start(), kills - 1
                        kill_s = time.monotonic() + random_of.uniform(0.5, 2)
                while contents := taken(consumer):
                    counted.update(contents)
        finally:
            for sender in running:
                sender.kill()
                sender.wait()
        counters = queue.figures().counters
    assert counters["accepted"] == len(counted) == numbers
    assert set(counted.values()) == {1}
    assert counters["repeated"] > numbers
    assert 0 < most_waited <= MOST
