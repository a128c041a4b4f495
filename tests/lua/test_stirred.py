"""What slots hold, for a reader that waits."""

import pytest

from rmq_spark.protocol import reading, sending
from rmq_spark.protocol.reading import Stir

from ..seeding import FAR_MS, numbered


def stir_of(slot):
    return slot.queue.ask(reading.stirred, [0], one_node=True)[0]


def test_nothing_and_what_is_due_later(slot):
    assert stir_of(slot) is Stir.NOTHING
    slot.put({b"far": FAR_MS})
    assert stir_of(slot) is Stir.NOTHING


def test_a_due_message_goes_before_claims(slot):
    slot.put_due([b"m"])
    assert stir_of(slot) is Stir.DUE
    slot.claim()
    assert stir_of(slot) is Stir.LATER
    slot.put_due([b"n"])
    assert stir_of(slot) is Stir.DUE


def test_a_message_that_waits_for_a_retry(slot):
    slot.put_waiting({b"waiting": FAR_MS + 3})
    assert stir_of(slot) is Stir.LATER


def test_every_priority_is_due(new_slot):
    slot = new_slot("Priority")
    slot.put({b"high": 2**53})
    assert stir_of(slot) is Stir.DUE


@pytest.mark.parametrize("one_node", [True, False])
def test_many_slots_are_told_apart(broker, one_node):
    broker.create("T", "FixedTime", 8192)
    queue = broker.queue("T")
    queue.ask(sending.send, {slot: [1000, b"m"] for slot in (3, 8191)})
    asked = range(2, 8192)
    found = queue.ask(reading.stirred, asked, one_node=one_node)
    assert list(found) == list(asked)
    assert {slot for slot, stir in found.items() if stir is Stir.DUE} == {3, 8191}


def test_nothing_is_written(slot):
    slot.put_due(numbered(2))
    before = slot.dump()
    stir_of(slot)
    assert slot.dump() == before
