"""Deleting dead messages for good."""

from seeding import numbered


def test_named_messages_leave_the_dead_queue(slot):
    slot.bury(b"bad", b"worse", b"kept")
    assert slot.queue.purge({0: [b"bad", b"worse", b"unknown"]}) == 2
    assert set(slot.dead) == {b"kept"}


def test_a_copy_that_was_sent_again_is_not_touched(slot):
    slot.bury(b"m")
    slot.put_due([b"m"])
    slot.put_waiting({b"n": 5_004})
    assert slot.queue.purge({0: [b"m", b"n"]}) == 1
    assert (set(slot.store), set(slot.retry)) == ({b"m"}, {b"n"})


def test_what_a_topic_has_counted_stays(slot):
    slot.bury(b"m")
    slot.queue.purge({0: [b"m"]})
    assert slot.counters["dead"] == 1


def test_more_than_one_call_takes_go_in_several(slot):
    slot.bury(*numbered(9000))
    assert slot.queue.purge({0: numbered(9000)}) == 9000
    assert slot.dead == {}
