"""Recalling what nobody has claimed."""

from ..seeding import numbered


def test_cancel_removes_from_store_and_retry_queue(slot):
    slot.put_due([b"stored", b"kept"])
    slot.put_waiting({b"waiting": 5_004, b"kept too": 5_004})
    assert slot.queue.cancel({0: [b"stored", b"waiting", b"unknown"]}) == 2
    assert set(slot.store) == {b"kept"}
    assert set(slot.retry) == {b"kept too"}
    assert slot.counters["cancelled"] == 2


def test_a_claimed_message_is_not_touched(slot):
    slot.put_due([b"m"])
    slot.claim()
    assert slot.queue.cancel({0: [b"m"]}) == 0
    assert slot.claimed() == [b"m"]


def test_of_a_message_sent_again_in_flight_only_the_stored_copy_goes(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.put_due([b"m"])
    assert slot.queue.cancel({0: [b"m"]}) == 1
    assert (slot.store, set(slot.prepare)) == ({}, {b"m"})


def test_a_dead_message_is_not_touched(slot):
    slot.bury(b"m")
    assert slot.queue.cancel({0: [b"m"]}) == 0
    assert slot.dead == {b"m": 1}


def test_one_call_takes_more_than_lua_can_unpack(slot):
    contents = numbered(9000)
    slot.put_due(contents)
    slot.put_waiting({b"waiting": 5_004})
    keys = slot.queue.queues.keys_of(0, "store retry stats bodies")
    assert slot.queue.server.call("cancel", keys, [*contents, b"waiting"]) == 9001
    assert slot.counters["cancelled"] == 9001


def test_nothing_is_written_where_nothing_was_found(slot):
    before = slot.dump()
    assert slot.queue.cancel({0: [b"m"]}) == 0
    assert slot.dump() == before
