"""How much waits in a slot, in messages and in bytes, as limits count it."""

import pytest

from rmq_spark.client.messages import Message
from rmq_spark.protocol import reading

from ..seeding import numbered


def waiting(slot, unit):
    [of_slot] = slot.queue.ask(reading.waiting, [0], unit)
    return of_slot


def test_an_empty_slot_has_nothing(slot):
    assert (waiting(slot, "messages"), waiting(slot, "bytes")) == (0, 0)


def test_messages_of_store_and_retry_queue_count_and_no_others(slot):
    slot.put_due(numbered(5))
    slot.claim(limit=2)
    slot.put_waiting({b"again": 9_000_000_005_003})
    slot.bury(b"dead")
    assert waiting(slot, "messages") == 4
    assert waiting(slot, "bytes") == 4 * 107 + 3 * len(numbered(5)[0]) + len(b"again")


def test_payloads_and_headers_count(new_slot):
    slot = new_slot(keyed=True)
    slot.queue.send([Message("x" * 1000, key="key", headers={"a": "b" * 500})], fixed_time=1000)
    body = slot.redis.hget(slot.keys.bodies(0), "key")
    assert waiting(slot, "bytes") == 107 + 3 + 50 + 3 + len(body)


@pytest.mark.parametrize(("first", "others"), [(10, 4000), (4000, 10)])
def test_the_first_messages_do_not_stand_for_all(new_slot, first, others):
    """Failed before: with MEMORY USAGE, which looks at the lowest scores, by a factor of 50."""
    slot = new_slot(max_bytes="1gb")
    slot.put_due([b"%d" % number + b"x" * first for number in range(5)], 1000)
    slot.put_due([b"%d" % number + b"x" * others for number in range(100, 1100)], 2000)
    real = slot.redis.memory_usage(slot.keys.store(0), samples=0)
    assert 0.6 < waiting(slot, "bytes") / real < 6


def test_of_large_messages_few_are_looked_at(new_slot):
    slot = new_slot(max_bytes="1gb")
    slot.put_due([b"%d" % number + b"x" * 2**20 for number in range(8)])
    assert 8 * 2**20 < waiting(slot, "bytes") < 8.1 * 2**20
