"""What an earlier run claimed for a batch, listed by a newer one."""

from dataclasses import replace

import pytest

from rmq_spark.errors import Fenced
from rmq_spark.protocol import claiming

from ..seeding import LONG_MS, numbered


def listed(slot, seq_from, seq_to, consumer="a", run=2):
    claims = slot.queue.ask(claiming.replay, consumer, run, seq_from, seq_to, LONG_MS)
    return sorted((claim.seq, claim.ordinal, claim.count) for claim in claims)


def test_claims_after_the_first_and_up_to_the_last_batch_are_listed(slot):
    slot.put_due(numbered(20))
    for seq in (1, 2, 3, 4):
        slot.claim(seq=seq, ordinal=0, limit=seq)
        slot.claim(seq=seq, ordinal=5, limit=1)
    assert listed(slot, 1, 3) == [(2, 0, 2), (2, 5, 1), (3, 0, 3), (3, 5, 1)]


def test_empty_claims_are_listed_too(slot):
    slot.claim()
    assert listed(slot, 0, 1) == [(1, 0, 0)]


def test_claims_of_other_consumers_are_not(slot):
    slot.put_due(numbered(2))
    slot.claim("b", limit=1)
    slot.claim("aa", limit=1)
    assert listed(slot, 0, 9) == []


def test_a_replay_renews_what_it_lists_and_nothing_else(slot):
    slot.put_due(numbered(3))
    for seq in (1, 2, 3):
        slot.claim(seq=seq, limit=1)
    slot.release()
    before = slot.now_ms()
    listed(slot, 1, 2)
    deadlines = {name: record.deadline for name, record in slot.records.items()}
    assert deadlines["a:2:0"] >= before + LONG_MS
    assert max(deadlines["a:1:0"], deadlines["a:3:0"]) <= before


def test_listed_claims_may_then_be_read_whoever_asks_meanwhile(slot):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    listed(slot, 0, 1)
    assert slot.give_back_expired("b") == 0
    assert slot.claimed("b") == []
    assert slot.claim(run=2, replay_only=True).contents == [b"m"]


def test_a_replay_bars_older_runs_even_where_they_had_nothing(slot):
    slot.put_due([b"m"])
    assert listed(slot, 0, 1) == []
    assert slot.header().run == 2
    with pytest.raises(Fenced):
        slot.claim(run=1)
    assert slot.store == {b"m": 1000}


def test_listing_alone_charges_nothing_and_reading_charges_once(slot):
    slot.put_due([b"m"])
    slot.claim()
    listed(slot, 0, 1)
    listed(slot, 0, 1)
    assert slot.retries_left == {b"m": 16}
    assert slot.claim(run=2).retries_left == [15]


def test_an_older_run_is_superseded_and_renews_nothing(slot):
    slot.claim(run=3)
    before = slot.dump()
    with pytest.raises(Fenced):
        listed(slot, 0, 1, run=2)
    assert slot.dump() == before


def test_what_was_given_back_is_no_longer_listed(slot):
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
    slot.give_back_expired("b")
    slot.claim("b")
    assert listed(slot, 0, 1) == []


def test_a_replay_keeps_what_the_header_knew(slot):
    slot.claim(seq=1)
    slot.commit(seq=1)
    slot.claim(seq=4, ordinal=3)
    before = slot.now_ms()
    listed(slot, 1, 4)
    header = slot.header()
    assert (header.settled, header.last_seq, header.last_ordinal) == (1, 4, 3)
    assert header.seen_ms >= before


def test_a_claim_is_listed_with_what_it_took_even_if_it_holds_less(slot):
    slot.put_due(numbered(3))
    slot.claim()
    slot.rollback(numbered(2), delay_ms=LONG_MS)
    assert listed(slot, 0, 1) == [(1, 0, 3)]
    assert slot.claim(run=2, replay_only=True).contents == numbered(3)[2:]


def test_nothing_but_the_deadline_and_who_replays_changes(slot):
    slot.put_due(numbered(2))
    slot.claim(lease_ms=0)
    before, held = slot.records["a:1:0"], slot.held("a:1:0")
    listed(slot, 0, 1, run=7)
    after = slot.records["a:1:0"]
    assert after == replace(before, deadline=after.deadline, replayed=7)
    assert slot.held("a:1:0") == held
