"""How many messages of a queue stand up to a place, in delivery order."""

import pytest

from rmq_spark.protocol import reading, sending
from rmq_spark.protocol.pages import QueueKind

from ..seeding import numbered


def test_times_are_counted_from_the_earliest(slot):
    slot.put({b"a": 1000, b"b": 2000, b"c": 2000, b"d": 3000})
    assert slot.queue.ask(reading.counts, [0], [999, 1000, 2000, 2999, 5000]) == [[0, 1, 3, 3, 4]]


def test_priorities_are_counted_from_the_highest(new_slot):
    slot = new_slot("Priority")
    slot.put({b"a": 17, b"b": 2**53, b"c": 500})
    assert slot.queue.ask(reading.counts, [0], [2**53, 501, 500, 17]) == [[1, 1, 2, 3]]


def test_every_slot_is_counted_for_itself(broker):
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    queue.ask(sending.send, {1: [1000, b"m"], 3: [1000, b"m", 1001, b"n"]})
    assert queue.ask(reading.counts, [0, 3, 1], [1000]) == [[0], [1], [1]]


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_waits_for_a_retry_are_counted_from_the_earliest(new_slot, topic_type):
    slot = new_slot(topic_type)
    client, keys = slot.queue.server.client, slot.queue.keys
    client.zadd(keys.retry(0), {"a": 5_016, "b": 7_001})
    client.hset(keys.stats(0), "accepted", 2)
    counted = slot.queue.ask(reading.counts, [0], [4_999, 5_999, 7_999], QueueKind.RETRY)
    assert counted == [[0, 1, 2]]


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_nothing_is_written(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put(dict.fromkeys(numbered(3), 500))
    before = slot.dump()
    slot.queue.ask(reading.counts, [0], [500])
    assert slot.dump() == before
