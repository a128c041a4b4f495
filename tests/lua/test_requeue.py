"""From the dead queue back to the store."""

import pytest

from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol import sending

from ..seeding import numbered, requeue


def test_a_dead_message_comes_back_as_a_first_delivery(slot):
    slot.bury(b"m", b"other")
    assert requeue(slot.queue, 0, [b"m"], 500) == 1
    assert slot.store == {b"m": 500}
    assert set(slot.dead) == {b"other"}
    claim = slot.claim()
    assert (claim.scores, claim.retries_left) == ([500], [16])
    assert slot.counters["accepted"] == 3


def test_each_message_may_have_a_score_of_its_own(slot):
    slot.bury(b"m", b"n")
    assert slot.queue.ask(sending.requeue, {0: [500, b"m", 600, b"n"]}) == 2
    assert slot.store == {b"m": 500, b"n": 600}


def test_what_is_not_dead_is_left_alone(slot):
    slot.put_due([b"stored"])
    assert requeue(slot.queue, 0, [b"stored", b"unknown"], 500) == 0
    assert slot.store == {b"stored": 1000}
    assert slot.counters == {"accepted": 1}


def test_a_content_named_twice_comes_back_once(slot):
    slot.bury(b"m")
    assert requeue(slot.queue, 0, [b"m", b"m"], 500) == 1
    assert requeue(slot.queue, 0, [b"m"], 500) == 0


def test_a_copy_in_the_store_wins(slot):
    slot.bury(b"m")
    slot.put_due([b"m"])
    assert requeue(slot.queue, 0, [b"m"], 500) == 1
    assert slot.store == {b"m": 1000}
    assert slot.dead == {}
    assert slot.counters["merged"] == 1


def test_a_copy_in_the_retry_queue_gives_way(slot):
    slot.bury(b"m")
    slot.put_waiting({b"m": 5_004, b"other": 5_004})
    assert requeue(slot.queue, 0, [b"m"], 500) == 1
    assert slot.store == {b"m": 500}
    assert slot.retry == {b"other": 5_004}
    assert slot.counters["merged"] == 1


def test_a_content_in_flight_may_be_requeued_beside(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.bury(b"m")
    assert requeue(slot.queue, 0, [b"m"], 500) == 1
    assert set(slot.store) == set(slot.prepare) == {b"m"}
    slot.commit()
    assert slot.claimed(seq=2) == [b"m"]


@pytest.mark.parametrize("score", [16, 1, 0, -5, 2**53 + 2, 10**400, "soon", "nan", "inf"])
def test_a_score_that_is_none_is_refused_and_nothing_leaves_the_dead_queue(slot, score):
    """10**400 is a number to Lua and none to ZADD: found after the copy had been removed."""
    slot.bury(b"m", b"good")
    before = slot.dump()
    with pytest.raises(ScriptFailed, match="above 16"):
        slot.queue.ask(sending.requeue, {0: [500, b"good", score, b"m"]})
    assert slot.dump() == before


def test_a_score_with_a_space_is_a_number_and_loses_nothing(slot):
    slot.bury(b"m")
    assert slot.queue.ask(sending.requeue, {0: [" 500", b"m"]}) == 1
    assert slot.store == {b"m": 500}


def test_many_come_back(slot):
    slot.bury(*numbered(5000))
    assert requeue(slot.queue, 0, numbered(5000), 17) == 5000
    assert len(slot.store) == 5000
