"""A server that has reached maxmemory: nobody sends, everybody drains."""

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import ServerFull, ServerUnsuitable
from rmq_spark.protocol import claiming, reading, returning, sending
from rmq_spark.protocol.bodies import Body
from rmq_spark.topics.types import TOPIC_TYPES

from ..seeding import LONG_MS, Slot, note_committed, numbered, open_run, requeue, suspect
from .staged import NAME, Stages

VALUES = {"time_range": 1, "priority": 50, "fixed_time": 50}


@pytest.fixture
def server_of_test(own_redis):
    """A server of this test, and how to fill it."""
    broker = connect(own_redis.url, patience_s=2)

    def fill():
        # Any amount is used by now, so every command that may store is refused.
        broker.server.client.config_set("maxmemory", 1)

    yield broker, fill
    broker.close()


@pytest.fixture
def slot(server_of_test):
    made = Slot(server_of_test[0], "T", "FixedTime")
    yield made
    made.check_conservation()


@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
def test_senders_are_refused_and_change_nothing(server_of_test, topic_type):
    broker, fill = server_of_test
    slot = Slot(broker, "T", topic_type)
    slot.put_waiting({b"waiting": 5_004})
    fill()
    before = slot.dump()
    for contents in ([b"new"], [b"waiting"], numbered(5000)):
        with pytest.raises(ServerFull, match="maxmemory"):
            slot.queue.send(contents, **slot.value_of(VALUES))
    assert slot.dump() == before


@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
def test_senders_of_some_bodies_are_refused_and_change_nothing(server_of_test, topic_type):
    broker, fill = server_of_test
    slot = Slot(broker, "T", topic_type)
    slot.queue.send([b"waits"], headers={"h": "1"}, **slot.value_of(VALUES))
    fill()
    before = slot.dump()
    body = Body(headers=[("h", b"2")]).pack()
    for bodies in ([b"waits", b""], [b"waits", b"", b"new", body]):
        pairs = [value for content in bodies[::2] for value in (500, content)]
        with pytest.raises(ServerFull, match="maxmemory"):
            slot.queue.ask(sending.send, {0: pairs}, {0: bodies})
    assert slot.dump() == before


def bodies_by_key(keys):
    return [value for key in keys for value in (key, Body(payload=key).pack())]


def send_with_bodies(slot, keys, score):
    pairs = [value for key in keys for value in (score, key)]
    return slot.queue.ask(sending.send, {0: pairs}, {0: bodies_by_key(keys)})


@pytest.mark.parametrize("payload", ["last", "first"])
@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
def test_senders_of_bodies_are_refused_and_change_nothing(server_of_test, topic_type, payload):
    broker, fill = server_of_test
    slot = Slot(broker, "T", topic_type, keyed=True, payload=payload)
    send_with_bodies(slot, [b"waits"], 500)
    fill()
    before = slot.dump()
    for keys in ([b"new"], [b"waits"], numbered(5000)):
        with pytest.raises(ServerFull, match="maxmemory"):
            send_with_bodies(slot, keys, 500)
        with pytest.raises(ServerFull, match="maxmemory"):
            Stages(slot).stage_with_bodies(keys)
    assert slot.dump() == before


@pytest.mark.parametrize("on_expiry", ["drop", "dead"])
def test_messages_with_bodies_are_claimed_rolled_back_buried_and_committed(
    server_of_test, on_expiry
):
    broker, fill = server_of_test
    slot = Slot(broker, "T", "FixedTime", keyed=True, max_retries=1, on_expiry=on_expiry)
    keys = numbered(2000)
    send_with_bodies(slot, keys, 500)
    over = [b"over", Body(payload=b"p", expires_at_ms=600).pack()]
    slot.queue.ask(sending.send, {0: [500, b"over"]}, {0: over})
    fill()
    claim = slot.claim()
    assert (claim.expired, claim.bodies[0]) == (1, Body(payload=keys[0]).pack())
    assert slot.rollback(keys[:3]) == (3, 0)
    assert slot.rollback(keys[3:6], delay_ms=LONG_MS) == (3, 0)
    assert slot.claim(seq=2).contents == keys[:3]
    assert slot.rollback(keys[:1], "a:2:0:1") == (1, 0)
    assert slot.queue.requeue({0: keys[:1]}) == 1
    assert slot.queue.cancel({0: keys[3:4]}) == 1
    slot.check_conservation()
    assert slot.commit(seq=2).committed == 1996
    assert list(slot.claim(seq=3).bodies) == [Body(payload=keys[0]).pack()]
    slot.release()
    assert slot.give_back_expired("b") == 1
    slot.check_conservation()


def test_what_is_staged_with_bodies_is_published(server_of_test):
    broker, fill = server_of_test
    slot = Slot(broker, "T", "FixedTime", keyed=True)
    stages, keys = Stages(slot), numbered(3000)
    stages.stage_with_bodies(keys)
    fill()
    assert stages.publish({NAME: 3000}).new == 3000
    assert list(slot.claim().bodies) == [Body(payload=key).pack() for key in keys]
    slot.check_conservation()


def test_a_full_server_is_drained_by_claim_and_commit(server_of_test, slot):
    slot.put_due(numbered(9000))
    server_of_test[1]()
    assert slot.claimed(seq=1) == numbered(8192)
    assert slot.claimed(seq=1) == numbered(8192)
    assert slot.claimed(seq=2) == numbered(9000)[8192:]
    assert slot.commit(seq=2).committed == 9000


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_retries_and_first_deliveries_are_one_claim_past_what_others_hold(
    server_of_test, topic_type
):
    broker, fill = server_of_test
    slot = Slot(broker, "T", topic_type)
    slot.put_due(numbered(40, "first"))
    slot.claim("a", limit=10)
    again = dict.fromkeys(slot.held("a:1:0"), 1500)
    slot.put(again | dict.fromkeys(numbered(40, "retry"), 4))
    slot.put_waiting({b"waited": 5_004})
    fill()
    claim = slot.claim("b", limit=16)
    assert sorted(content[:5] for content in claim.contents).count(b"first") in (2, 14)
    assert slot.commit("b").committed == 16
    assert {content: slot.store[content] for content in again} == again
    slot.check_conservation()


def test_a_claim_that_is_empty_or_names_no_others_changes_as_little(server_of_test, slot):
    slot.put_due(numbered(1))
    slot.claim("a", limit=1)
    slot.put_due(numbered(2)[1:])
    server_of_test[1]()
    before = slot.dump()
    assert slot.claim_reply("b")[0] == -1
    assert slot.dump() == before
    assert slot.claimed("b", due_before_ms=17) == []
    assert slot.claimed("b", seq=2) == numbered(2)[1:]


def test_a_new_consumer_opens_replays_and_reads_an_earlier_runs_claims(server_of_test, slot):
    slot.put_due(numbered(3))
    slot.claim()
    server_of_test[1]()
    run = open_run(slot.queue, "a", 1)
    assert len(slot.queue.ask(claiming.replay, "a", run, 0, 1, LONG_MS)) == 1
    assert slot.claim(run=run, replay_only=True).retries_left == [15, 15, 15]
    note_committed(slot.queue, "a", 1)
    assert slot.commit(run=run).committed == 3


def test_batches_are_planned(server_of_test, slot):
    slot.put_due(numbered(3))
    server_of_test[1]()
    slot.queue.ask(claiming.plan, [0], "a", 1, "mark")
    assert slot.claimed(mark="mark") == numbered(3)


def test_empty_claims_and_commits_work(server_of_test, slot):
    server_of_test[1]()
    assert slot.claimed() == []
    assert slot.commit().committed == 0
    assert slot.commit(seq=2).committed == 0  # nothing to free: no claim was made for it
    assert slot.header().settled == 2


def test_leases_are_renewed_and_ended(server_of_test, slot):
    slot.put_due(numbered(3))
    slot.claim("a")
    server_of_test[1]()
    assert slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS) == {0: 1}
    assert slot.queue.ask(claiming.unread, [0], "a", 1, 1) == 1
    assert slot.release("a") == 1
    assert slot.give_back_expired("b") == 3
    assert slot.claimed("b") == numbered(3)


def test_a_consumer_gives_its_messages_back(server_of_test, slot):
    slot.put_due(numbered(3))
    slot.claim("a")
    server_of_test[1]()
    assert slot.queue.ask(returning.give_back, [0], "a", 1) == 3
    assert slot.queue.ask(returning.give_back, [0], "new", 1) == 0  # nothing to free
    assert slot.claimed("b") == numbered(3)


def test_a_claim_without_messages_is_given_back_and_a_consumer_leaves(server_of_test, slot):
    slot.claim("a", lease_ms=0)
    server_of_test[1]()
    call = returning.give_back_call(slot.queue.queues, 0, "a:1:0")
    assert slot.queue.server.pipeline([call, call]) == [[0, b""]] * 2
    keys = slot.queue.queues.keys_of(0, "claims consumers stats")
    assert slot.queue.server.call("abandon", keys, ["a", 2, 1]) == []  # nothing to free
    assert slot.header().run == 2


@pytest.mark.parametrize("delay_ms", [None, LONG_MS])
def test_messages_are_rolled_back(server_of_test, slot, delay_ms):
    slot.put_due(numbered(3))
    slot.claim()
    server_of_test[1]()
    assert slot.rollback(numbered(2), delay_ms=delay_ms) == (2, 0)
    assert len(slot.retry if delay_ms else slot.store) == 2


def test_claims_expire_and_the_dead_are_buried_cancelled_and_requeued(server_of_test, slot):
    slot.put({b"last": suspect(4, 1), b"more": 9})
    slot.put_due(numbered(2))
    slot.claim(alone=True, lease_ms=0)
    slot.claim(seq=2, lease_ms=0)
    server_of_test[1]()
    assert slot.queue.expire() == 4
    assert set(slot.dead) == {b"last"}
    assert slot.queue.expire() == 0
    assert slot.queue.cancel({0: numbered(1)}) == 1
    assert requeue(slot.queue, 0, [b"last"], 500) == 1
    again = {b"more": suspect(3, 9), numbered(2)[1]: suspect(3, 17)}
    assert slot.store == {b"last": 500} | again


def test_dead_messages_are_forgotten(server_of_test, slot):
    slot.broker.alter("T", dead_retention="1h")
    queue = slot.broker.queue("T")
    slot.bury(*numbered(3000))
    server_of_test[1]()
    assert queue.expire() == 0
    assert slot.dead == {}
    assert queue.expire() == 0  # nothing to free


def test_a_topic_is_altered_looked_at_and_deleted(server_of_test, slot):
    slot.put_due(numbered(2))
    server_of_test[1]()
    assert slot.broker.alter("T", paused=True).paused
    assert slot.queue.ask(reading.due, [0], "a")[0].held == 2
    assert slot.claimed() == []
    assert slot.queue.figures().store.count == 2
    slot.broker.alter("T", paused=False)
    assert slot.queue.ask(reading.due, [0], "a")[0].due == 2
    slot.broker.delete("T")
    assert slot.broker.find("T") is None


def test_once_drained_it_takes_messages_again(server_of_test, slot):
    slot.put_due(numbered(3))
    server_of_test[1]()
    with pytest.raises(ServerFull):
        slot.queue.send([b"m"], fixed_time=500)
    slot.redis.config_set("maxmemory", 0)
    assert slot.queue.send([b"m"], fixed_time=500).new == 1


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_a_server_that_evicts_is_refused(own_redis, server_of_test, policy):
    server_of_test[0].server.client.config_set("maxmemory-policy", policy)
    with pytest.raises(ServerUnsuitable, match=f"maxmemory-policy {policy}.*noeviction"):
        connect(own_redis.url, patience_s=2)
