"""The mark of a batch's plan: a claim that Redis may have forgotten is not made anew."""

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import AlreadyCommitted, Fenced, LeaseLost
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.claims import ClaimRequest

from ..seeding import LONG_MS, numbered


def plan(slot, mark, consumer="a", run=1):
    slot.queue.ask(claiming.plan, [0], consumer, run, mark)


def to_another_server(slot, consumer="a"):
    """What the header of a consumer says where a replica has taken over, or Redis was restarted."""
    text = slot.redis.hget(slot.keys.consumers(0), consumer)
    elsewhere = b" ".join([*text.split()[:-1], b"another"])
    slot.redis.hset(slot.keys.consumers(0), consumer, elsewhere)


def test_a_planned_claim_is_made_and_read_again(slot):
    slot.put_due(numbered(3))
    plan(slot, "m1")
    first = slot.claim(mark="m1", limit=2)
    assert (first.contents, first.forgotten) == (numbered(2), False)
    again = slot.claim(mark="m1", limit=2)
    assert (again.contents, again.forgotten) == (numbered(2), False)


@pytest.mark.parametrize("place", ["store", "retry"])
def test_a_slot_in_which_somebody_has_stored_messages_by_hand_gets_it_too(slot, place):
    slot.forget_use()
    slot.redis.zadd(getattr(slot.keys, place)(0), {b"m": 5016})
    plan(slot, "m1")
    assert slot.redis.hexists(slot.keys.consumers(0), "a")
    slot.count("accepted", 1)


@pytest.mark.parametrize("planned", ["", "another batch's"])
def test_a_claim_whose_plan_is_not_known_is_not_made(slot, planned):
    slot.put_due(numbered(3))
    if planned:
        plan(slot, planned.replace(" ", "-"))
    before = slot.dump()
    for _ in range(2):
        claim = slot.claim(mark="m1")
        assert (claim.contents, claim.forgotten) == ([], True)
    assert slot.dump() == before


def test_a_claim_planned_on_another_server_is_not_made(slot):
    slot.put_due(numbered(3))
    plan(slot, "m1")
    to_another_server(slot)
    before = slot.dump()
    assert slot.claim(mark="m1").forgotten
    assert slot.dump() == before


def test_a_claim_that_another_server_knows_is_read_there(slot):
    slot.put_due(numbered(3))
    plan(slot, "m1")
    slot.claim(mark="m1", limit=2)
    to_another_server(slot)
    claim = slot.claim(mark="m1", limit=2)
    assert (claim.contents, claim.forgotten) == (numbered(2), False)
    assert slot.claim(mark="m1", ordinal=1).forgotten


def test_the_next_plan_claims_on_the_other_server(slot):
    slot.put_due(numbered(3))
    plan(slot, "m1")
    to_another_server(slot)
    plan(slot, "m2")
    assert slot.claimed(seq=2, mark="m2") == numbered(3)


def test_a_server_that_takes_a_new_replication_id_makes_no_claim_of_an_earlier_plan(
    own_redis,
):
    """What every restart and every failover brings, here without losing anything."""
    broker = connect(own_redis.url)
    broker.create("T", "FixedTime", 1)
    queue = broker.queue("T")
    queue.send([b"m"], fixed_time=1000)
    queue.ask(claiming.plan, [0], "a", 1, "m1")
    broker.server.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    broker.server.client.execute_command("REPLICAOF", "NO", "ONE")
    terms = claiming.Claiming("a", 1, 1, LONG_MS, mark="m1")
    [claim] = queue.ask(claiming.claim, [ClaimRequest(0, 0)], terms)
    assert (claim.contents, claim.forgotten) == ([], True)
    broker.close()


def test_claims_commits_and_renewals_keep_the_mark(slot):
    slot.put_due(numbered(4))
    plan(slot, "m1")
    slot.claim(mark="m1", limit=1)
    slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS)
    assert slot.claimed(mark="m1", ordinal=1, limit=1) == numbered(4)[1:2]
    slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)
    assert slot.claimed(mark="m1", run=2, ordinal=2, limit=1) == numbered(4)[2:3]


def test_each_consumer_has_a_plan_of_its_own(slot):
    slot.put_due(numbered(4))
    plan(slot, "m1")
    plan(slot, "m2", consumer="b")
    assert slot.claimed(mark="m1", limit=2) == numbered(2)
    assert slot.claim("b", mark="m1").forgotten
    assert slot.claimed("b", mark="m2") == numbered(4)[2:]


def test_a_claim_without_a_mark_is_made_whatever_the_plan(slot):
    """A plain consumer asks for a claim once, and plans nothing."""
    slot.put_due(numbered(2))
    plan(slot, "m1")
    to_another_server(slot)
    assert slot.claimed() == numbered(2)


def test_a_claim_that_was_given_back_is_lost_and_not_forgotten(slot):
    slot.put_due(numbered(2))
    plan(slot, "m1")
    slot.claim(mark="m1", lease_ms=0)
    slot.queue.expire()
    with pytest.raises(LeaseLost):
        slot.claim(mark="m1")


def test_a_settled_batch_stays_settled(slot):
    slot.put_due([b"m"])
    plan(slot, "m1")
    slot.commit()
    with pytest.raises(AlreadyCommitted):
        slot.claim(mark="m1")


def test_an_older_run_plans_nothing(slot):
    slot.put_due([b"m"])
    plan(slot, "m2", run=2)
    before = slot.dump()
    with pytest.raises(Fenced, match="run 1 of consumer a was superseded by run 2"):
        plan(slot, "m1")
    assert slot.dump() == before


def test_planning_bars_older_runs(slot):
    slot.put_due(numbered(2))
    plan(slot, "m1", run=2)
    with pytest.raises(Fenced):
        slot.claim(run=1)


def test_a_header_of_an_earlier_version_has_no_plan(slot):
    slot.put_due(numbered(2))
    slot.redis.hset(slot.keys.consumers(0), "a", "1 3 3 0 17")
    assert slot.claim(seq=4, mark="m1").forgotten
    plan(slot, "m1")
    assert slot.header().settled == 3
    assert slot.claimed(seq=4, mark="m1") == numbered(2)


@pytest.mark.parametrize("kind", ["store", "retry"])
def test_messages_that_somebody_has_stored_by_hand_are_planned(slot, kind):
    """Failed before: a slot without counters kept no plan, so that no claim was ever made there."""
    slot.redis.zadd(getattr(slot.keys, kind)(0), dict.fromkeys(numbered(3), 1005))
    (due,) = slot.queue.ask(reading.due, [0], "a")
    assert due.due == 3
    plan(slot, "m1")
    assert slot.claimed(mark="m1") == numbered(3)
    assert slot.commit().committed == 3
    figures = slot.queue.figures()
    assert (figures.store.count, figures.prepare.count, figures.retry.count) == (0, 0, 0)
    assert figures.counters["committed"] == 3
    slot.count("accepted", 3)
