"""The permits of a rate limit: how many there are, for whom, and when there are more."""

import time

import pytest

from rmq_spark.protocol import claiming

from ..waiting import wait_until

# Far more than a test takes, so that no permit comes meanwhile; the burst of a bucket is 10.
SLOW, BURST = "1/h", 10


@pytest.fixture
def slot(new_slot):
    return new_slot(rate=SLOW, burst=BURST)


def ask(slot, wanted, **how):
    return slot.queue.ask(claiming.grant, wanted, **how)


def full_in_ms(slot):
    return slot.redis.pttl(slot.keys.rate())


def test_a_new_bucket_grants_its_burst_and_then_nothing(slot):
    assert ask(slot, 4) == (4, 0)
    assert ask(slot, 100) == (6, 0)
    granted, wait_ms = ask(slot, 100)
    assert granted == 0
    assert 3_500_000 < wait_ms <= 3_600_000


def test_asking_takes_nothing(slot):
    assert ask(slot, 4, take=False) == (4, 0)
    assert ask(slot, 100, take=False) == (10, 0)
    assert not slot.redis.exists(slot.keys.rate())
    ask(slot, 10)
    before = slot.redis.hgetall(slot.keys.rate())
    assert ask(slot, 1, take=False)[0] == 0
    assert slot.redis.hgetall(slot.keys.rate()) == before


def test_permits_that_come_back_can_be_taken_again(slot):
    ask(slot, 10)
    ask(slot, -3)
    assert ask(slot, 100) == (3, 0)


def test_no_more_come_back_than_a_bucket_holds(slot):
    ask(slot, 1)
    ask(slot, -100)
    assert ask(slot, 100) == (10, 0)


def test_each_interval_brings_one(new_slot):
    slot = new_slot(rate="1000/s", burst=1)
    assert ask(slot, 1) == (1, 0)
    wait_until(lambda: ask(slot, 1)[0], "the next permit")


def test_few_permits_are_kept_until_there_are_enough_for_a_claim(slot):
    """So that readers do not make a claim for each message. Who wants no more gets them."""
    hour_ms, worthwhile = 3_600_000, 5

    def call(wanted):
        arguments = [wanted, hour_ms, BURST, 1, worthwhile]
        return slot.queue.server.call("grant", [slot.keys.rate()], arguments)

    assert call(7) == [7, 0]
    granted, wait_ms = call(100)
    assert granted == 0
    assert hour_ms < wait_ms <= 2 * hour_ms, "until 5 are there"
    assert call(4)[0] == 0
    assert call(2) == [2, 0]
    assert call(1) == [1, 0]


def test_a_bucket_ends_when_it_is_full_again(slot):
    ask(slot, 2)
    assert 7_100_000 < full_in_ms(slot) <= 7_200_000
    ask(slot, -1)
    assert 3_500_000 < full_in_ms(slot) <= 3_600_000
    ask(slot, -1)
    assert not slot.redis.exists(slot.keys.rate()) or full_in_ms(slot) <= 1


def test_another_limit_holds_at_once_whatever_was_taken_before(slot):
    ask(slot, 10)
    slot.broker.alter(slot.queue.definition.name, rate="1000/s")
    slot.queue = slot.broker.queue(slot.queue.definition.name)
    wait_until(lambda: ask(slot, 10)[0], "permits of the new limit", within_s=60)


def test_each_group_has_a_bucket_of_its_own(new_slot):
    slot = new_slot(rate=SLOW, burst=BURST, groups="default,audit")
    ask(slot, 10)
    assert slot.queue.of_group("audit").ask(claiming.grant, 10) == (10, 0)


def test_time_that_passes_fills_it_up_to_the_burst_only(new_slot):
    slot = new_slot(rate="1000/s", burst=3)
    ask(slot, 3)
    time.sleep(0.02)
    assert ask(slot, 100) == (3, 0)


def test_a_deleted_topic_leaves_no_bucket(broker):
    broker.create("Gone", "FixedTime", 1, rate=SLOW)
    queue = broker.queue("Gone")
    queue.ask(claiming.grant, 1)
    broker.delete("Gone")
    assert not broker.server.client.exists(queue.keys.rate())
