"""A plain consumer starts, takes its next batch, or ends: what it holds is given back."""

from dataclasses import replace

import pytest

from rmq_spark.client.queue import overview_of
from rmq_spark.errors import AlreadyCommitted, Fenced
from rmq_spark.protocol import claiming, reading, returning

from ..seeding import LONG_MS, numbered, suspect


def leave(slot, consumer="a", run=1, seq=0):
    """One call of the script, without what follows from its answer."""
    keys = slot.queue.queues.keys_of(0, "claims consumers stats")
    return sorted(slot.queue.server.call("abandon", keys, [consumer, run, seq, 0]))


def give_back(slot, consumer="a", run=1, seq=0, **how):
    return slot.queue.ask(returning.give_back, [0], consumer, run, seq, **how)


def test_a_consumer_that_starts_bars_older_runs_from_an_unused_slot_too(slot):
    slot.forget_use()
    leave(slot, run=2)
    with pytest.raises(Fenced):
        leave(slot, run=1)


def test_all_batches_of_the_consumer_are_in_the_store_at_once(slot):
    slot.put_due(numbered(3))
    for seq in (1, 2):
        slot.claim("a", seq=seq, limit=1)
    slot.claim("b", limit=1)
    assert give_back(slot) == 2
    assert slot.store == dict.fromkeys(numbered(2), 16)
    assert list(slot.records) == ["b:1:0"]
    assert set(slot.prepare) == {numbered(3)[2]}
    assert slot.claim("c").retries_left == [15, 15]


def test_a_delivery_costs_what_it_costs_when_it_is_rolled_back(new_slot):
    rolled_back, given_back = new_slot(max_retries=2), new_slot(max_retries=2)
    for slot in (rolled_back, given_back):
        slot.put({b"first": 1000, b"retried": 2, b"last": 1})
        contents = slot.claimed()
    rolled_back.rollback(contents)
    give_back(given_back)
    assert given_back.store == rolled_back.store == {b"first": 2, b"retried": 1}
    assert list(given_back.dead) == list(rolled_back.dead) == [b"last"]
    assert given_back.counters == rolled_back.counters


def test_work_that_an_error_has_ended_costs_nothing(slot):
    slot.put({b"first": 1000, b"retried": 2, b"last": 1})
    slot.claim()
    assert give_back(slot, failed=True) == 3
    deliveries = {b"first": 17, b"retried": 2, b"last": 1}
    assert slot.store == {content: suspect(3, left) for content, left in deliveries.items()}


def test_a_lease_that_ran_out_is_given_back_too(slot):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    assert give_back(slot) == 1
    assert slot.store == {b"m": 16}


def test_a_claim_that_was_never_delivered_costs_nothing(slot):
    slot.put_due([b"m"], first_score=1000)
    slot.claim()
    slot.queue.ask(claiming.unread, [0], "a", 1, 1)
    assert give_back(slot) == 1
    assert slot.store == {b"m": 1000}


def test_the_backoff_holds(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put_due([b"m"])
    slot.claim()
    assert give_back(slot) == 1
    assert (slot.store, slot.waiting) == ({}, {b"m": 16})


def test_a_copy_sent_again_meanwhile_wins(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.queue.send([b"m"], fixed_time=7000)
    assert give_back(slot) == 1
    assert slot.store == {b"m": 7000}


def test_what_was_rolled_back_or_committed_stays_where_it_is(slot):
    slot.put_due(numbered(2))
    slot.claim(seq=1, limit=1)
    slot.commit(seq=1)
    slot.claim(seq=2)
    slot.rollback(numbered(2), "a:2:0:1", delay_ms=LONG_MS)
    assert give_back(slot) == 0
    assert slot.waiting == {numbered(2)[1]: 16}
    assert slot.records == slot.store == {}


def test_empty_records_of_the_consumer_go_and_those_of_others_stay(slot):
    for consumer in ("a", "aa", "b"):
        slot.claim(consumer)
    assert give_back(slot) == 0
    assert sorted(slot.records) == ["aa:1:0", "b:1:0"]


def test_an_empty_claim_that_was_never_delivered_goes_too(slot):
    slot.claim()
    assert slot.queue.ask(claiming.unread, [0], "a", 1, 1) == 1
    assert give_back(slot) == 0
    assert slot.records == {}


def test_the_consumer_is_no_longer_at_work(slot):
    slot.put_due([b"m"])
    slot.claim(seq=4, ordinal=3)
    claimed_ms = slot.header().seen_ms
    slot.wait_past(claimed_ms)
    give_back(slot)
    header = slot.header()
    assert (header.run, header.settled, header.last_seq, header.last_ordinal) == (1, 4, 4, 3)
    assert header.seen_ms > claimed_ms
    assert [seen.held_slots for seen in overview_of(slot.queue).consumers] == [0]


def test_settled_never_goes_back(slot):
    slot.claim(seq=2)
    slot.commit(seq=9)
    give_back(slot, seq=3)
    assert slot.header().settled == 9


def test_a_claim_that_comes_too_late_is_refused(slot):
    """Its call was still under way to Redis when the consumer gave up. Nobody reads the reply, and
    the commit of the next batch would remove the messages."""
    slot.put_due([b"m"])
    give_back(slot, seq=3)
    with pytest.raises(AlreadyCommitted):
        slot.claim(seq=3)
    assert slot.claimed(seq=4) == [b"m"]


def test_a_newer_run_takes_what_an_older_one_held_and_bars_it(slot):
    slot.put_due([b"m"])
    slot.claim(run=1)
    assert give_back(slot, run=2) == 1
    for late in (lambda: slot.claim(run=1, seq=2), lambda: slot.commit(run=1)):
        with pytest.raises(Fenced):
            late()
    assert slot.store == {b"m": suspect(3, 17)}


def test_a_slot_that_held_nothing_is_barred_as_well(slot):
    assert give_back(slot, run=2) == 0
    with pytest.raises(Fenced):
        slot.claim(run=1)


def test_an_older_run_than_the_slot_knows_gives_nothing_back(slot):
    slot.put_due([b"m"])
    slot.claim(run=2)
    before = slot.dump()
    with pytest.raises(Fenced):
        give_back(slot, run=1)
    assert slot.dump() == before


def test_a_second_time_changes_nothing_but_the_time_seen(slot):
    slot.put_due(numbered(3))
    slot.claim()
    give_back(slot)
    before = slot.dump()
    assert give_back(slot) == 0
    after = slot.dump()
    consumers = slot.keys.consumers(0)
    del before[consumers], after[consumers]
    assert after == before


def test_the_names_of_what_holds_messages_are_told_and_their_leases_ended(slot):
    slot.put_due(numbered(4))
    slot.claim(seq=1, limit=1)
    slot.claim(seq=2, ordinal=0, limit=1)
    slot.claim(seq=2, ordinal=1, due_before_ms=17)
    slot.claim("b", limit=1)
    before = slot.records
    assert leave(slot, seq=4) == [b"a:1:0", b"a:2:0"]
    records = slot.records
    assert sorted(records) == ["a:1:0", "a:2:0", "b:1:0"]
    for name in ("a:1:0", "a:2:0"):
        assert records[name] == replace(before[name], deadline=1)
    assert records["b:1:0"] == before["b:1:0"]
    assert set(slot.prepare) == set(numbered(3))
    assert slot.header().settled == 4


def test_where_the_consumer_died_half_way_anybody_gives_the_rest_back(slot):
    slot.put_due(numbered(3))
    for ordinal in range(3):
        slot.claim(ordinal=ordinal, limit=1)
    leave(slot)
    assert slot.give_back_expired("b") == 3
    assert slot.prepare == slot.records == {}
    assert slot.store == dict.fromkeys(numbered(3), 16)


def test_a_call_that_was_interrupted_is_repeated_to_the_end(slot):
    slot.put_due(numbered(3))
    for ordinal in range(3):
        slot.claim(ordinal=ordinal, limit=1)
    assert leave(slot) == leave(slot) == [b"a:1:0", b"a:1:1", b"a:1:2"]
    call = returning.give_back_call(slot.queue.queues, 0, "a:1:1")
    assert slot.queue.server.pipeline([call, call]) == [[1, b""], [0, b""]]
    assert give_back(slot) == 2
    assert slot.prepare == slot.records == {}


def test_full_claims_are_given_back(slot):
    slot.put_due(numbered(3 * 8192))
    for ordinal in range(3):
        slot.claim(ordinal=ordinal)
    assert give_back(slot) == 3 * 8192
    assert slot.store == dict.fromkeys(numbered(3 * 8192), 16)


def test_what_expired_of_others_is_left_to_others(slot):
    slot.put_due(numbered(2))
    slot.claim("a", limit=1)
    slot.claim("b", limit=1, lease_ms=0)
    assert give_back(slot) == 1
    assert list(slot.records) == ["b:1:0"]


def test_each_slot_goes_on_until_it_is_empty(broker):
    broker.create("T", "FixedTime", 2)
    queue = broker.queue("T")
    queue.send(numbered(50), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        assert len(consumer.poll()) == 50
        run = queue.ask(reading.headers, "a")[0].run
        assert queue.ask(returning.give_back, queue.slots, "a", run) == 50
    assert queue.figures().store.count == 50
