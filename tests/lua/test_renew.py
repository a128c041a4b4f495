"""Leases put off."""

from dataclasses import replace

import pytest

from rmq_spark.errors import Fenced
from rmq_spark.protocol import claiming

from ..seeding import LONG_MS, numbered


def test_all_claims_of_the_consumer_are_put_off_and_no_others(slot):
    slot.put_due(numbered(4))
    slot.claim("a", seq=1, lease_ms=1000, limit=1)
    slot.claim("a", seq=2, lease_ms=1000, limit=1)
    slot.claim("b", seq=1, lease_ms=1000, limit=1)
    others = slot.records["b:1:0"]
    before = slot.now_ms()
    assert slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS) == {0: 2}
    records = slot.records
    for name in ("a:1:0", "a:2:0"):
        assert before + LONG_MS <= records[name].deadline <= slot.now_ms() + LONG_MS
    assert records["b:1:0"] == others


def test_a_renewed_claim_is_not_taken_by_others(slot):
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
    slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS)
    assert slot.give_back_expired("b") == 0
    assert slot.claimed("b") == []


def test_claims_that_an_older_run_made_are_put_off_too(slot):
    """A replayed batch that was not read yet must not lapse."""
    slot.put_due([b"m"])
    slot.claim("a", run=1, lease_ms=0)
    slot.queue.ask(claiming.replay, "a", 2, 5, 5, LONG_MS)
    assert slot.queue.ask(claiming.renew, [0], "a", 2, LONG_MS) == {0: 1}
    assert slot.records["a:1:0"].run == 1
    assert slot.give_back_expired("b") == 0
    assert slot.claimed("b") == []


def test_an_older_run_than_the_slot_knows_may_not_renew(slot):
    slot.put_due([b"m"])
    slot.claim("a", run=2)
    before = slot.dump()
    with pytest.raises(Fenced, match="run 1 of consumer a was superseded by run 2"):
        slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS)
    assert slot.dump() == before


def test_nothing_but_the_deadline_changes(slot):
    slot.put_due(numbered(2))
    first = slot.claim()
    record = slot.records["a:1:0"]
    slot.queue.ask(claiming.renew, [0], "a", 1, 2 * LONG_MS)
    again = slot.records["a:1:0"]
    assert again.deadline > record.deadline
    assert again == replace(record, deadline=again.deadline)
    assert slot.claim().contents == first.contents


def test_only_batches_behind_a_number_are_renewed(slot):
    """A claim that came back with a fall-back must end, and be given back."""
    slot.put_due(numbered(2))
    slot.claim(limit=1)
    slot.claim(seq=2, limit=1)
    before = slot.records
    assert slot.queue.ask(claiming.renew, [0], "a", 1, 2 * LONG_MS, since=1) == {0: 1}
    assert slot.records["a:1:0"] == before["a:1:0"]
    assert slot.records["a:2:0"].deadline > before["a:2:0"].deadline


def test_the_consumer_counts_as_seen(slot):
    slot.claim()
    slot.wait_past(slot.header().seen_ms)
    slot.queue.ask(claiming.renew, [0], "a", 1, LONG_MS)
    header = slot.header()
    assert header.seen_ms > slot.records["a:1:0"].deadline - LONG_MS - 1
    assert (header.run, header.last_seq) == (1, 1)
