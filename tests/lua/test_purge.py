"""Deleting messages of one queue for good."""

from rmq_spark.protocol import sending
from rmq_spark.protocol.pages import QueueKind

from ..seeding import FAR_MS, numbered


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


def test_of_the_store_only_what_has_the_score_that_was_seen(slot):
    slot.put({b"same": 5, b"sent again": FAR_MS, b"kept": 7})
    slot.put_waiting({b"same": 5_004})
    pairs = {0: [5.0, b"same", 6.0, b"sent again", 7.0, b"gone"]}
    assert slot.queue.ask(sending.purge, pairs, QueueKind.STORE) == 1
    assert set(slot.store) == {b"sent again", b"kept"}
    assert set(slot.retry) == {b"same"}
    assert slot.counters["cancelled"] == 1


def test_of_the_retry_queue_nothing_of_the_store(slot):
    slot.put_due([b"m"])
    slot.put_waiting({b"n": 5_004})
    assert slot.queue.purge({0: [b"m", b"n"]}, QueueKind.RETRY) == 1
    assert (set(slot.store), slot.retry) == ({b"m"}, {})


def test_prepared_scores_and_large_ones_are_compared_exactly(slot):
    slot.put({b"m": 2**53, b"n": 2**53 - 1})
    assert slot.queue.ask(sending.purge, {0: [2.0**53, b"m", 2.0**53, b"n"]}, QueueKind.STORE) == 1
    assert set(slot.store) == {b"n"}
