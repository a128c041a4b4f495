"""When a reader that waits looks into each slot again: by a clock of the test's own."""

import pytest

from rmq_spark.client.receiving.waits import HELD_AGAIN_S, NEAR_S, SlotWaits
from rmq_spark.protocol.claims import SlotDue


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def waits(clock):
    """Three slots, in all of which a look has found nothing."""
    made = SlotWaits(range(3), clock)
    made.looked([SlotDue(slot, 0, 0) for slot in range(3)])
    return made


def test_at_first_all_slots_are_ripe(clock):
    assert SlotWaits(range(3), clock).ripe() == [0, 1, 2]


def test_a_slot_in_which_nothing_was_found_is_not(waits):
    assert waits.ripe() == []
    assert waits.next_s() is None


def test_a_slot_in_which_something_was_found_stays_ripe(waits):
    waits.ripen([1])
    waits.looked([SlotDue(1, 5, 0, next_ms=70_000)])
    assert waits.ripe() == [1]


def test_a_slot_becomes_ripe_when_its_next_message_falls_due(waits, clock):
    waits.ripen([0, 1])
    waits.looked([SlotDue(0, 0, 0, next_ms=2500), SlotDue(1, 0, 0, next_ms=1500)])
    assert waits.next_s() == clock.now + 1.5
    clock.now += 1.5
    assert waits.ripe() == [1]
    clock.now += 1
    assert waits.ripe() == [0, 1]


def test_a_wake_up_may_come_before_the_time_that_is_known(waits, clock):
    waits.wake(2, clock.now + 10)
    waits.wake(2, clock.now + 5)
    waits.wake(2, clock.now + 20)
    assert waits.next_s() == clock.now + 5
    clock.now += 5
    assert waits.ripe() == [2]
    waits.looked([SlotDue(2, 0, 0)])
    clock.now += 100
    assert waits.ripe() == []


def test_a_wake_up_changes_nothing_for_a_ripe_slot(waits, clock):
    waits.ripen([1])
    waits.wake(1, clock.now + 5)
    assert waits.next_s() == clock.now
    assert waits.ripe() == [1]


def test_a_slot_that_others_hold_is_looked_into_again(waits, clock):
    waits.ripen([1])
    waits.looked([SlotDue(1, 0, 3, next_ms=70_000)])
    assert not waits.expects_nothing(1)
    assert waits.next_s() == clock.now + HELD_AGAIN_S
    clock.now += HELD_AGAIN_S
    waits.looked([SlotDue(slot, 0, 0) for slot in waits.ripe()])
    assert waits.expects_nothing(1)


def test_a_slot_in_work_is_not_ripe_until_it_ends(waits, clock):
    waits.ripen([0, 1])
    waits.begin(0)
    waits.begin(1)
    waits.wake(0, clock.now)
    waits.ripen([0])
    assert waits.ripe() == []
    assert not waits.expects_nothing(0)
    waits.end(0)
    waits.end(1, after_s=0.5)
    assert waits.ripe() == [0]
    clock.now += 0.5
    assert waits.ripe() == [0, 1]


def test_times_that_no_longer_hold_pile_up_behind_no_other(waits, clock):
    """Failed before: each look at a slot left one behind, until a day later, in every reader."""
    waits.wake(0, clock.now + 3600)
    for _ in range(1000):
        clock.now += 1
        waits.ripen([1])
        waits.looked([SlotDue(1, 0, 0, next_ms=86_400_000)])
    assert len(waits._order) < 200
    assert waits.next_s() == clock.now - 1000 + 3600
    clock.now += 86_400
    assert waits.ripe() == [0, 1]


def test_what_is_expected(waits, clock):
    assert waits.expects_nothing(0)
    assert not waits.is_ripe_soon(0)
    waits.wake(0, clock.now + NEAR_S + 1)
    assert waits.expects_nothing(0)
    assert not waits.is_ripe_soon(0)
    clock.now += 1
    assert not waits.expects_nothing(0)
    assert waits.is_ripe_soon(0)
    waits.ripen([1])
    assert not waits.expects_nothing(1)
    assert waits.is_ripe_soon(1)
