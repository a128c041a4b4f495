"""Whether anything is due in some stores."""

import pytest
from seeding import FAR_MS, numbered


def test_nothing_is_due_in_empty_stores_and_before_the_time(slot):
    assert not slot.queue.any_due(range(1))
    slot.put({b"far": FAR_MS})
    assert not slot.queue.any_due(range(1))


def test_a_due_message_and_one_rolled_back_are_due(slot):
    slot.put({b"far": FAR_MS, b"due": 1000})
    assert slot.queue.any_due(range(1))
    slot.claim()
    assert not slot.queue.any_due(range(1))
    slot.rollback([b"due"])
    assert slot.queue.any_due(range(1))


def test_every_priority_is_due(new_slot):
    slot = new_slot("Priority")
    slot.put({b"high": 2**53})
    assert slot.queue.any_due(range(1))


@pytest.mark.parametrize("slots", [1, 64, 8192])
def test_the_last_of_many_stores_is_looked_at(broker, slots):
    broker.create("T", "FixedTime", slots)
    queue = broker.queue("T")
    assert not queue.any_due(queue.slots)
    queue.send_pairs({slots - 1: [1000, b"m"]})
    assert queue.any_due(queue.slots)
    assert not queue.any_due(range(slots - 1))


def test_nothing_is_written(slot):
    slot.put_due(numbered(2))
    before = slot.dump()
    slot.queue.any_due(range(1))
    assert slot.dump() == before
