"""Leases ended: the batch failed."""

import pytest

from rmq_spark.errors import Fenced
from rmq_spark.protocol import claiming

from ..seeding import LONG_MS, numbered


def test_anyone_else_takes_what_was_released(slot):
    slot.put_due(numbered(2))
    slot.claim("a", seq=1, limit=1)
    slot.claim("a", seq=2, limit=1)
    assert slot.release("a") == 2
    assert slot.give_back_expired("b") == 2
    claims = [slot.claim("b", seq=seq) for seq in (1, 2)]
    assert [claim.contents for claim in claims] == [[one] for one in numbered(2)]
    assert [claim.retries_left for claim in claims] == [[16], [16]]


def test_its_own_replay_still_reads_what_was_released(slot):
    slot.put_due(numbered(2))
    first = slot.claim("a")
    slot.release("a")
    assert len(slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)) == 1
    assert slot.claim("a", run=2, replay_only=True).contents == first.contents
    assert slot.give_back_expired("b") == 0
    assert slot.claimed("b") == []


def test_other_consumers_keep_their_leases(slot):
    slot.put_due(numbered(2))
    slot.claim("a", limit=1)
    slot.claim("b", limit=1)
    slot.release("a")
    assert slot.give_back_expired("c") == 1
    assert slot.claimed("c") == numbered(1)


def test_claims_that_an_older_run_made_are_released_too(slot):
    slot.put_due([b"m"])
    slot.claim("a", run=1)
    slot.queue.ask(claiming.replay, "a", 2, 5, 5, LONG_MS)
    assert slot.release("a", run=2) == 1
    assert slot.give_back_expired("b") == 1
    assert slot.claimed("b") == [b"m"]


def test_an_older_run_than_the_slot_knows_may_not_release(slot):
    slot.put_due([b"m"])
    slot.claim("a", run=2)
    before = slot.dump()
    with pytest.raises(Fenced):
        slot.release("a", run=1)
    assert slot.dump() == before


def test_an_unknown_consumer_has_nothing_to_release(slot):
    slot.forget_use()
    assert slot.release("never", run=1) == 0
    assert not any(slot.dump().values())


def test_a_slot_that_lost_its_header_is_released_all_the_same(slot):
    slot.put_due([b"m"])
    slot.claim("a", run=2)
    slot.redis.delete(slot.keys.consumers(0))  # such as by a replica that lagged behind
    assert slot.release("a", run=2) == 1
    assert slot.give_back_expired("b") == 1
    assert slot.claimed("b") == [b"m"]


def test_a_released_claim_is_free_also_when_the_clock_steps_back(slot):
    slot.put_due([b"m"])
    slot.claim("a")
    slot.release("a")
    assert slot.records["a:1:0"].deadline == 2  # long past, whatever the time will be
