"""Expired claims given back and lost consumers forgotten, by people and jobs."""

from rmq_spark.protocol.returning import FORGET_CONSUMERS_MS

from ..seeding import LONG_MS, numbered, suspect


def seen_long_ago(slot, consumer, ms_ago=FORGET_CONSUMERS_MS + 1000):
    """Rewrites a header as if the consumer had not been seen since."""
    header = slot.header(consumer)
    seen_ms = slot.now_ms() - ms_ago
    values = (header.run, header.settled, header.last_seq, header.last_ordinal, seen_ms)
    slot.redis.hset(slot.keys.consumers(0), consumer, " ".join(map(str, values)))


def call(slot):
    """One call of the script, without what follows from its answer."""
    keys = slot.queue.queues.keys_of(0, "claims consumers")
    more, *names = slot.queue.server.call("expire", keys, [FORGET_CONSUMERS_MS])
    return [more, *sorted(names)]


def test_the_script_names_what_has_expired_and_leaves_it(slot):
    slot.put_due(numbered(4))
    slot.claim("b", limit=1)
    slot.claim("a", limit=1, lease_ms=0)
    slot.claim("c", seq=7, limit=1, lease_ms=0)
    slot.claim("d", due_before_ms=17, lease_ms=0)
    before = slot.dump()
    assert call(slot) == [0, b"a:1:0", b"c:7:0"]
    assert slot.dump() == before


def test_expired_claims_are_given_back_and_others_kept(slot):
    slot.put_due(numbered(3))
    slot.claim("b", limit=2)
    slot.claim("a", lease_ms=0)
    assert slot.queue.expire() == 1
    assert slot.store == {numbered(3)[2]: suspect(3, 17)}
    assert list(slot.records) == ["b:1:0"]


def test_all_batches_of_a_consumer_are_given_back(slot):
    slot.put_due(numbered(3))
    for ordinal in range(3):
        slot.claim("a", ordinal=ordinal, limit=1)
    slot.release("a")
    assert slot.queue.expire() == 3
    assert slot.records == {}


def test_full_claims_are_given_back_all(slot):
    slot.put_due(numbered(3 * 8192))
    for ordinal in range(3):
        slot.claim(ordinal=ordinal, lease_ms=0)
    assert slot.queue.expire() == 3 * 8192
    assert len(slot.store) == 3 * 8192


def test_expiring_twice_changes_nothing(slot):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    slot.queue.expire()
    before = slot.dump()
    assert slot.queue.expire() == 0
    assert slot.dump() == before


def test_empty_records_of_consumers_in_use_stay_sealed(slot):
    slot.claim("a", lease_ms=0)
    slot.queue.expire()
    slot.put_due([b"m"])
    assert slot.claimed("a") == []


def test_a_consumer_not_seen_for_thirty_days_is_forgotten_with_its_empty_records(slot):
    slot.claim("gone", seq=1)
    slot.claim("gone", seq=2)
    slot.claim("here")
    seen_long_ago(slot, "gone")
    assert call(slot) == [0]
    assert list(slot.records) == ["here:1:0"]
    assert slot.redis.hkeys(slot.keys.consumers(0)) == [b"here"]


def test_a_consumer_seen_within_thirty_days_is_not_forgotten(slot):
    slot.claim("a")
    seen_long_ago(slot, "a", FORGET_CONSUMERS_MS - 60_000)
    assert call(slot) == [0]
    assert slot.header("a").last_seq == 1


def test_a_consumer_that_holds_messages_is_not_forgotten(slot):
    slot.put_due([b"m"])
    slot.claim("a", seq=1)
    slot.claim("a", seq=2, lease_ms=LONG_MS)
    seen_long_ago(slot, "a")
    assert call(slot) == [0]
    assert sorted(slot.records) == ["a:1:0", "a:2:0"]
    assert slot.claimed("a") == [b"m"]


def test_what_a_forgotten_consumer_held_is_given_back_before(slot):
    slot.put_due([b"m"])
    slot.claim("gone", lease_ms=0)
    slot.claim("gone", seq=2, lease_ms=0)
    seen_long_ago(slot, "gone")
    assert call(slot) == [0, b"gone:1:0"]
    assert slot.header("gone").run == 1
    assert slot.queue.expire() == 1
    assert slot.store == {b"m": suspect(3, 17)}
    assert slot.records == {}
    assert slot.redis.hkeys(slot.keys.consumers(0)) == []


def test_the_epoch_is_no_consumer(new_slot):
    slot = new_slot(exclusive=True)
    slot.claim("a", epoch=5)
    seen_long_ago(slot, "a")
    assert call(slot) == [0]
    assert slot.redis.hkeys(slot.keys.consumers(0)) == [b"@epoch"]


def test_a_call_forgets_at_most_1000_consumers_and_the_queue_all(slot):
    names = [f"c{n}" for n in range(1003)]
    slot.redis.hset(slot.keys.consumers(0), mapping=dict.fromkeys(names, "1 0 0 0 1"))
    assert call(slot) == [1]
    assert slot.redis.hlen(slot.keys.consumers(0)) == 3
    assert slot.queue.expire() == 0
    assert slot.redis.hlen(slot.keys.consumers(0)) == 0


def test_very_many_claims_are_named(slot):
    names = slot.put_claims(9000, deadline=1)
    assert call(slot) == [0, *sorted(name.encode() for name in names)]
