"""Dead messages deleted once they have been dead for longer than the topic keeps them."""

import pytest

from rmq_spark.protocol import returning
from rmq_spark.topics.keys import topics_key

from ..seeding import LONG_MS, Slot, numbered, requeue, suspect


@pytest.fixture
def kept(new_slot):
    """A slot whose topic keeps dead messages for an hour."""
    return new_slot(max_retries=0, dead_retention="1h")


def call(slot, kept_ms=LONG_MS):
    """One call of the script, without those that follow from its answer."""
    keys = slot.queue.queues.keys_of(0, "dead deaths stats")
    return slot.queue.server.call("forget", keys, [kept_ms])


def died_ago(slot, ms, *contents):
    """Puts contents into the dead queue as if they had died so long ago."""
    slot.bury(*contents)
    slot.redis.zadd(slot.keys.dead(0), dict.fromkeys(contents, slot.now_ms() - ms))


def test_what_died_longer_ago_is_deleted_with_why_it_died(kept):
    died_ago(kept, LONG_MS + 1, b"old", b"old too")
    died_ago(kept, LONG_MS - 60_000, b"young")
    assert call(kept) == [0, 2]
    assert set(kept.dead) == set(kept.deaths) == {b"young"}
    assert kept.counters == {"accepted": 3, "dead": 3, "forgotten": 2}


def test_where_nothing_has_ended_nothing_changes(kept):
    died_ago(kept, LONG_MS - 60_000, b"young")
    before = kept.dump()
    assert call(kept) == [0, 0]
    assert kept.dump() == before


def test_the_longest_retention_ends_nothing(kept):
    died_ago(kept, LONG_MS, b"m")
    assert call(kept, 2**52) == [0, 0]
    assert set(kept.dead) == {b"m"}


def test_only_the_dead_copy_of_a_message_is_deleted(kept):
    died_ago(kept, LONG_MS + 1, b"stored", b"waiting", b"held")
    kept.put_due([b"held"])
    kept.claim()
    kept.put_due([b"stored"])
    kept.put_waiting({b"waiting": 5_004})
    assert call(kept) == [0, 3]
    assert kept.dead == {}
    assert (set(kept.store), set(kept.retry)) == ({b"stored"}, {b"waiting"})
    assert set(kept.prepare) == {b"held"}


def test_a_message_that_died_again_is_kept_from_its_last_death_on(kept):
    died_ago(kept, LONG_MS + 1, b"m")
    kept.put_due([b"m"])
    kept.claim()
    kept.rollback([b"m"], reasons=["Broken: again"])
    assert call(kept) == [0, 0]
    assert kept.deaths == {b"m": b"a Broken: again"}


def test_what_is_requeued_before_stays_and_what_is_deleted_cannot_be_requeued(kept):
    died_ago(kept, LONG_MS + 1, b"back", b"gone")
    assert requeue(kept.queue, 0, [b"back"], 1000) == 1
    assert call(kept) == [0, 1]
    assert requeue(kept.queue, 0, [b"gone"], 1000) == 0
    assert (set(kept.store), kept.dead) == ({b"back"}, {})


def test_a_call_deletes_at_most_2048_and_the_request_all(kept):
    died_ago(kept, LONG_MS + 1, *numbered(4 * 2048 + 5))
    assert call(kept) == [1, 2048]
    assert kept.queue.ask(returning.forget, [0]) == 3 * 2048 + 5
    assert kept.dead == kept.deaths == {}
    assert kept.counters["forgotten"] == 4 * 2048 + 5


def test_a_full_call_that_leaves_nothing_is_the_last_one(kept):
    died_ago(kept, LONG_MS + 1, *numbered(2048))
    assert call(kept) == [0, 2048]


def test_a_call_reads_few_large_contents(kept):
    large = [bytes([n]) * 1024 * 1024 for n in range(24)]
    died_ago(kept, LONG_MS + 1, *large)
    assert call(kept) == [1, 8]
    assert kept.queue.ask(returning.forget, [0]) == 16


def test_expire_deletes_them_and_still_gives_back(kept):
    died_ago(kept, LONG_MS + 1, b"old")
    kept.put({b"m": suspect(4, 1)})
    kept.claim(alone=True, lease_ms=0)
    assert kept.queue.expire() == 1
    assert set(kept.dead) == {b"m"}
    assert kept.counters["forgotten"] == 1


def test_without_a_retention_nothing_is_deleted(slot):
    died_ago(slot, 10 * 365 * 24 * LONG_MS, b"m")
    assert slot.queue.expire() == 0
    assert set(slot.dead) == {b"m"}


def test_each_group_has_its_own_dead(broker):
    one = Slot(broker, "T", groups=["one", "two"], group="one", dead_retention="1h")
    two = Slot(broker, "T", group="two")
    for slot in (one, two):
        died_ago(slot, LONG_MS + 1, b"m")
    one.queue.expire()
    assert (set(one.dead), set(two.dead)) == (set(), {b"m"})


def test_a_queue_of_long_ago_goes_by_the_retention_of_now(kept, monkeypatch):
    monkeypatch.setattr("rmq_spark.client.queue.DEFINITION_AGE_S", 0)
    topic = kept.queue.definition.name
    died_ago(kept, LONG_MS + 1, b"m")
    kept.broker.alter(topic, dead_retention="none")
    kept.queue.expire()
    assert set(kept.dead) == {b"m"}
    kept.broker.alter(topic, dead_retention="30m")
    kept.queue.expire()
    assert kept.dead == {}
    died_ago(kept, LONG_MS + 1, b"of another topic of this name")
    kept.redis.hdel(topics_key(kept.broker.key_prefix), topic)
    assert kept.queue.expire() == 0
    assert set(kept.dead) == {b"of another topic of this name"}
