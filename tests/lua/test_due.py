"""What a claim could take."""

import pytest

from rmq_spark.errors import ExclusiveSlot
from rmq_spark.protocol import claiming, reading

from ..seeding import FAR_MS, LONG_MS, numbered, suspect


def due(slot, consumer="a", epoch=None, **options):
    epochs = None if epoch is None else {0: epoch}
    found = slot.queue.ask(reading.due, [0], consumer, epochs=epochs, **options)[0]
    return found.due, found.held


def is_alone(slot):
    return slot.queue.ask(reading.due, [0], "a")[0].alone


def test_due_messages_and_retries_count_and_later_ones_do_not(slot):
    slot.put({b"due": 1000, b"retried": 3, b"far": FAR_MS})
    slot.put_waiting({b"over": 5_003, b"waiting": FAR_MS + 3})
    assert due(slot) == (3, 0)


def test_all_priorities_are_due(new_slot):
    slot = new_slot("Priority")
    slot.put({b"low": 17, b"high": 2**53, b"retried": 3})
    assert due(slot) == (3, 0)


def test_due_before_holds_back_what_came_due_later(slot):
    slot.put({b"early": 6_500, b"late": 6_501})
    slot.put_waiting({b"over": 6_016, b"later": 7_001})
    assert due(slot, due_before_ms=6_500) == (2, 0)


def test_messages_of_expired_claims_count_and_those_in_flight_do_not(slot):
    slot.put_due(numbered(3))
    slot.claim("a", limit=2)
    slot.claim("b", limit=1)
    assert due(slot) == (0, 0)
    slot.release("a")
    assert due(slot) == (2, 0)


def test_claims_that_hold_messages_are_named_the_expired_ones_apart(slot):
    slot.put_due(numbered(5))
    for consumer in ("a", "b", "c", "d"):
        slot.claim(consumer, limit=1)
    slot.release("a")
    slot.release("b")
    slot.claim("e", limit=1)
    slot.claim("empty")
    found = slot.queue.ask(reading.due, [0], "x")[0]
    assert set(found.expired) == {"a:1:0", "b:1:0"}
    assert set(found.live) == {"c:1:0", "d:1:0", "e:1:0"}


def test_what_was_rolled_back_of_an_expired_claim_counts_once(slot):
    slot.put_due(numbered(2))
    slot.claim("a", lease_ms=0)
    slot.rollback(numbered(1))
    assert due(slot) == (2, 0)


def test_nothing_is_written(slot):
    slot.put_due(numbered(2))
    slot.claim("a", limit=1, lease_ms=0)
    before = slot.dump()
    due(slot)
    assert slot.dump() == before


def test_with_an_epoch_messages_that_another_holds_hold_the_slot_back(new_slot):
    slot = new_slot(exclusive=True)
    slot.put_due(numbered(3))
    slot.claim("b", limit=1, epoch=1)
    assert due(slot, "a", epoch=2) == (0, 2)
    assert due(slot, "b", epoch=2) == (2, 0)
    slot.release("b")
    assert due(slot, "a", epoch=2) == (3, 0)


def test_a_lower_epoch_is_held_back(new_slot):
    slot = new_slot(exclusive=True)
    slot.claim("b", epoch=5)
    slot.put_due(numbered(3))
    assert due(slot, "a", epoch=4) == (0, 3)
    assert due(slot, "a", epoch=5) == (3, 0)


def test_others_empty_claims_hold_nothing_back(new_slot):
    slot = new_slot(exclusive=True)
    slot.claim("b", epoch=1, lease_ms=LONG_MS)
    slot.put_due([b"m"])
    assert due(slot, "a", epoch=1) == (1, 0)


def test_without_an_epoch_a_slot_that_has_one_is_refused(new_slot):
    slot = new_slot(exclusive=True)
    slot.claim("b", epoch=1)
    with pytest.raises(ExclusiveSlot):
        due(slot, "a")


def next_ms(slot):
    return slot.queue.ask(reading.due, [0], "a")[0].next_ms


def test_the_next_thing_that_time_brings_is_told(slot):
    assert next_ms(slot) is None
    for content, due in ((b"far", FAR_MS), (b"sooner", FAR_MS - LONG_MS)):
        slot.put({content: due})
        before, wait = slot.now_ms(), next_ms(slot)
        assert due - slot.now_ms() <= wait <= due - before
    slot.put_waiting({b"last": FAR_MS + 3})
    assert next_ms(slot) <= wait
    slot.put_waiting({b"waiting": FAR_MS - 2 * LONG_MS + 3})
    assert LONG_MS < next_ms(slot) < wait - LONG_MS // 2
    slot.put_due([b"m"])
    slot.claim("b", lease_ms=LONG_MS)
    assert 0 < next_ms(slot) <= LONG_MS
    slot.put_waiting({b"over": 5_003})
    assert 0 < next_ms(slot) <= LONG_MS


def test_there_is_nothing_to_wait_for_where_a_message_is_due(new_slot):
    slot = new_slot("FixedTime")
    slot.put_due([b"m"])
    assert next_ms(slot) is None
    slot = new_slot("Priority")
    slot.put({b"m": FAR_MS})
    assert next_ms(slot) is None


def test_an_expired_claim_is_due_and_nothing_to_wait_for(slot):
    slot.put_due([b"m"])
    slot.claim("b", lease_ms=0)
    assert next_ms(slot) is None


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_a_claim_takes_exactly_what_is_due(new_slot, topic_type):
    slot = new_slot(topic_type)
    slot.put({b"first": 1000, b"retried": 3, b"far": FAR_MS})
    slot.put_waiting({b"over": 5_003, b"waiting": FAR_MS + 3})
    slot.put_due([b"expired"], first_score=500)
    slot.claim("b", limit=1, lease_ms=0)
    count = due(slot)[0]
    slot.give_back_expired("a")
    assert due(slot)[0] == count
    suspects, others = slot.claimed("a"), slot.claimed("a", seq=2)
    assert (len(suspects), len(others)) == (1, count - 1)


def top(slot):
    return slot.queue.ask(reading.due, [0], "a")[0].top


def test_the_highest_priority_is_told(new_slot):
    slot = new_slot("Priority")
    assert top(slot) == 0
    slot.put({b"low": 17, b"high": 2**53, b"retried": 3})
    slot.put_waiting({b"over": 5_003})
    assert top(slot) == 2**53
    slot.claim("b", limit=1)
    assert top(slot) == 17


def test_without_priorities_there_is_no_highest(slot):
    slot.put_due([b"m"])
    assert top(slot) == 0


def test_a_message_to_be_alone_with_is_named(slot):
    slot.put({b"suspect": suspect(3, 17), b"due": 1000})
    assert not is_alone(slot)
    slot.put({b"alone": suspect(4, 17)})
    assert due(slot)[0] == 3
    assert is_alone(slot)


def test_a_message_to_be_alone_with_is_named_in_a_priority_topic(new_slot):
    slot = new_slot("Priority")
    slot.put({b"due": 1000})
    assert not is_alone(slot)
    slot.put({b"alone": suspect(4, 17)})
    assert is_alone(slot)


def test_a_message_to_be_alone_with_is_named_when_its_wait_is_over(slot):
    slot.put_waiting({b"m": FAR_MS - suspect(4, 17)})
    assert not is_alone(slot)
    slot.put_waiting({b"n": 5_016})
    assert not is_alone(slot)
    slot.put_waiting({b"m": 5_000 - suspect(4, 17), b"n": 6_016})
    slot.count("accepted", -2)  # these two are the same messages
    assert is_alone(slot)


def test_no_message_to_be_alone_with_is_named_in_a_paused_slot(slot):
    slot.put({b"alone": suspect(4, 17)})
    slot.queue.ask(claiming.pause, None)
    assert not is_alone(slot)


def expired(slot, consumer="a", **options):
    return sorted(slot.queue.ask(reading.due, [0], consumer, **options)[0].expired)


def test_expired_claims_that_hold_messages_are_named(slot):
    slot.put_due(numbered(4))
    slot.claim("a", limit=1, lease_ms=0)
    slot.claim("b", seq=7, ordinal=3, limit=1, lease_ms=0)
    slot.claim("c", limit=1)
    slot.claim("d", due_before_ms=17, lease_ms=0)
    assert expired(slot) == expired(slot, "x") == ["a:1:0", "b:7:3"]
    slot.rollback(numbered(1))
    assert expired(slot) == ["b:7:3"]
    slot.give_back_expired()
    assert expired(slot) == []


def test_expired_claims_are_named_in_a_slot_that_is_held_back_too(new_slot):
    slot = new_slot(exclusive=True)
    slot.put_due(numbered(2))
    slot.claim("b", epoch=5, limit=1, lease_ms=0)
    assert due(slot, "a", epoch=4) == (0, 2)
    assert expired(slot, "a", epochs={0: 4}) == ["b:1:0"]
    slot.queue.ask(claiming.pause, None)
    assert expired(slot, "a", epochs={0: 5}) == ["b:1:0"]


def test_very_many_expired_claims_are_named(slot):
    names = slot.put_claims(9000, deadline=1)
    assert expired(slot) == sorted(names)
