"""Whether anything is due in some stores."""

import pytest

from rmq_spark.protocol import reading, sending

from ..seeding import FAR_MS, numbered


def test_nothing_is_due_in_empty_stores_and_before_the_time(slot):
    assert not slot.queue.ask(reading.any_due, range(1), one_node=True)
    slot.put({b"far": FAR_MS})
    assert not slot.queue.ask(reading.any_due, range(1), one_node=True)


def test_a_due_message_and_one_rolled_back_are_due(slot):
    slot.put({b"far": FAR_MS, b"due": 1000})
    assert slot.queue.ask(reading.any_due, range(1), one_node=True)
    slot.claim()
    assert not slot.queue.ask(reading.any_due, range(1), one_node=True)
    slot.rollback([b"due"])
    assert slot.queue.ask(reading.any_due, range(1), one_node=True)


def test_every_priority_is_due(new_slot):
    slot = new_slot("Priority")
    slot.put({b"high": 2**53})
    assert slot.queue.ask(reading.any_due, range(1), one_node=True)


@pytest.mark.parametrize("slots", [1, 64, 8192])
def test_the_last_of_many_stores_is_looked_at(broker, slots):
    broker.create("T", "FixedTime", slots)
    queue = broker.queue("T")
    assert not queue.ask(reading.any_due, queue.slots, one_node=True)
    queue.ask(sending.send, {slots - 1: [1000, b"m"]})
    assert queue.ask(reading.any_due, queue.slots, one_node=True)
    assert not queue.ask(reading.any_due, range(slots - 1), one_node=True)


def test_nothing_is_written(slot):
    slot.put_due(numbered(2))
    before = slot.dump()
    slot.queue.ask(reading.any_due, range(1), one_node=True)
    assert slot.dump() == before
