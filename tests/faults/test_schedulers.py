"""Schedulers that are killed: each occurrence of each schedule is sent once, none is left out."""

import random
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime

import pytest

from rmq_spark.client import Message, connect
from rmq_spark.topics.parsing import ms_since_1970

from ..waiting import wait_until

RUNNERS = 3


@pytest.fixture
def broker(own_redis):
    with connect(own_redis.url) as connected:
        yield connected


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("schedules", "every_ms", "lasts_s"),
    [
        (40, 1000, 10),
        pytest.param(1000, 20_000, 600, marks=pytest.mark.rounds),
    ],
)
def test_each_occurrence_is_sent_once(own_redis, broker, schedules, every_ms, lasts_s):
    broker.create("T", "Priority", 16)
    begins_ms = broker.server.now_ms() + 1000
    ends_ms = begins_ms + 1000 * lasts_s
    names = [f"s{number}" for number in range(schedules)]
    for number, name in enumerate(names):
        first_ms = begins_ms + every_ms * number // schedules
        broker.schedule(
            name,
            "T",
            Message(name, priority=100),
            every=every_ms,
            first=first_ms,
            last=ends_ms,
            catch_up="all",
        )
    command = [sys.executable, "-m", "rmq_spark.cli", "--redis-url", own_redis.url, "scheduler"]

    def start():
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    counted: Counter[tuple[str, int]] = Counter()

    def drain(consumer):
        batch = consumer.poll(wait="100ms")
        for message in batch:
            headers = dict(message.headers)
            at = datetime.fromisoformat(headers["rmq-scheduled-time"].decode())
            counted[headers["rmq-schedule"].decode(), ms_since_1970(at)] += 1
        batch.commit()

    running, kills, random_of = [start() for _ in range(RUNNERS)], 0, random.Random(7)
    expected = {
        (name, at_ms)
        for number, name in enumerate(names)
        for at_ms in range(begins_ms + every_ms * number // schedules, ends_ms + 1, every_ms)
    }
    try:
        with broker.consumer("T", "a") as consumer:
            killed_s = time.monotonic()
            while broker.server.now_ms() < ends_ms:
                drain(consumer)
                if time.monotonic() > killed_s + random_of.uniform(0.5, 3):
                    place = random_of.randrange(RUNNERS)
                    running[place].kill()
                    running[place].wait()
                    running[place], killed_s, kills = start(), time.monotonic(), kills + 1

            def is_all_there():
                drain(consumer)
                # Equal messages merge while they wait: what is accepted is what was sent.
                return broker.queue("T").figures().counters["accepted"] >= len(expected)

            wait_until(is_all_there, "all occurrences")
            drain(consumer)
    finally:
        for process in running:
            process.kill()
            process.wait()
    counters = broker.queue("T").figures().counters
    assert counters["accepted"] == len(expected)
    assert counted.keys() <= expected
    assert set(counted.values()) == {1}
    assert counted.total() + counters["merged"] == len(expected)
    assert kills > 1
