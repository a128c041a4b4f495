"""Of equal priorities, the message that was accepted first is delivered first."""

import pytest

from rmq_spark.client import Message

from ..seeding import numbered, requeue
from .staged import NAME, Stages

# Up to here, all messages of a slot can be told apart; and up to here, any.
EXACT, HIGHEST = 2**21 - 1, 2**53


@pytest.fixture
def slot(new_slot):
    return new_slot("Priority")


@pytest.mark.parametrize("priority", [17, 100, 2**20, EXACT])
def test_equals_come_as_they_were_sent(slot, priority):
    contents = [b"b", b"c", b"a"]
    for content in contents:
        slot.queue.send([content], priority=priority)
    slot.queue.send(numbered(3), priority=priority)
    slot.queue.send([b"more"], priority=priority + 1)
    slot.queue.send([b"less"], priority=priority - 1 if priority > 17 else 17)
    contents = [b"more", *contents, *numbered(3), b"less"]
    assert slot.claim().contents == contents


def test_later_ones_do_not_keep_an_earlier_one_waiting(slot):
    """It once waited behind all that came later and had a greater content."""
    slot.queue.send([b"a"], priority=100)
    slot.queue.send(numbered(5000, "z"), priority=100)
    assert slot.claim(limit=1).contents == [b"a"]


@pytest.mark.parametrize("priority", [2**21, 1_700_000_000_000, 2**52 - 1, 2**52, HIGHEST])
def test_above_the_exact_ones_the_priority_still_decides(slot, priority):
    messages = [Message(b"%d" % k, priority=priority - k) for k in range(3)]
    slot.queue.send([messages[1], messages[2], messages[0]])
    assert slot.claim().contents == [b"0", b"1", b"2"]
    assert slot.store == {}
    slot.queue.send([b"seen"], priority=priority)
    [page] = slot.queue.pages("store", 0)
    assert page.priorities() == [priority]


@pytest.mark.parametrize("priority", [2**21, 2**24])
def test_somewhat_above_them_messages_that_are_not_neighbours_keep_their_order(slot, priority):
    slot.queue.send([b"a"], priority=priority)
    slot.redis.hincrby(slot.keys.stats(0), "accepted", 1000)
    slot.queue.send([b"b"], priority=priority)
    slot.redis.hincrby(slot.keys.stats(0), "accepted", -1000)
    assert slot.claim().contents == [b"a", b"b"]


def test_what_a_stage_publishes_comes_in_its_order(slot):
    stages = Stages(slot)
    held = stages.put([b"c", b"a"], score=50)
    stages.put([b"b"], score=50, held=held)
    stages.publish({NAME: 3})
    slot.queue.send([b"z"], priority=50)
    assert slot.claim().contents == [b"c", b"a", b"b", b"z"]


def test_who_is_sent_again_goes_behind_its_equals(slot):
    slot.queue.send([b"a", b"b", b"c"], priority=50)
    slot.queue.send([b"a"], priority=50)
    assert slot.claim().contents == [b"b", b"c", b"a"]


def test_what_is_requeued_or_moved_goes_behind_its_equals(slot):
    slot.bury(b"dead", b"a")
    slot.queue.send([b"x", b"z"], priority=50)
    slot.queue.send([b"e", b"d", b"f"], priority=20)
    requeue(slot.queue, 0, [b"dead", b"a"], 50)
    slot.queue.move([b"e", b"d"], priority=50)
    slot.queue.move([b"f"], priority=50)
    slot.queue.send([b"zlast"], priority=50)
    assert slot.claim().contents == [b"x", b"z", b"dead", b"a", b"e", b"d", b"f", b"zlast"]


def test_after_2_to_the_32_messages_of_a_slot_the_numbers_begin_again(slot):
    """Those behind that overtake their equals once; no priority changes."""
    slot.redis.hset(slot.keys.stats(0), "accepted", 2**32 - 2)
    slot.queue.send([b"a", b"b", b"c"], priority=18)
    assert slot.store == {b"a": 18, b"b": 18, b"c": 18}
    assert slot.claim().contents == [b"c", b"a", b"b"]
    slot.redis.hset(slot.keys.stats(0), "accepted", 3)
