"""A claim that exists already: asked for again, by the same run, a newer or an older one."""

import pytest

from rmq_spark.errors import AlreadyCommitted, Fenced, LeaseLost

from ..seeding import FAR_MS, LONG_MS, numbered


def test_a_claim_asked_for_again_returns_the_same_messages(slot):
    slot.put_due(numbered(5))
    first = slot.claim()
    slot.put_due(numbered(5, "later"))
    again = slot.claim()
    assert again.contents == first.contents == numbered(5)
    assert again.scores == first.scores
    assert list(again.retries_left) == [16] * 5


def test_a_claim_asked_for_again_holds_the_order_and_the_first_scores_of_retries(slot):
    slot.put({b"retried": 3, b"zeroth": 1000, b"tied-b": 2000, b"tied-a": 2000})
    first = slot.claim()
    again = slot.claim()
    assert again.contents == first.contents == [b"retried", b"zeroth", b"tied-a", b"tied-b"]
    assert again.scores == first.scores == [3, 1000, 2000, 2000]
    assert again.retries_left == first.retries_left == [2, 16, 16, 16]


def test_a_full_claim_comes_back_in_order_after_a_replay_changed_some_retries(new_slot):
    slot = new_slot("Priority")
    slot.put({content: 50_000 - rank for rank, content in enumerate(numbered(6000))})
    slot.put({content: 1 + rank % 16 for rank, content in enumerate(numbered(2192, "retry"))})
    first = slot.claim()
    assert len(first.contents) == 8192
    again = slot.claim(run=2)
    assert again.contents == first.contents
    assert again.scores == first.scores
    assert again.retries_left == [max(0, left - 1) for left in first.retries_left]


def test_a_claim_keeps_the_time_at_which_it_was_made(slot):
    slot.put_due(numbered(2))
    made = slot.claim().claimed_at_ms
    slot.wait_past(made)
    assert slot.claim().claimed_at_ms == made
    assert slot.claim(run=2).claimed_at_ms == made


def test_asking_again_does_not_charge_a_retry_but_renews_the_lease(slot):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    before = slot.now_ms()
    assert slot.claim().retries_left == [16]
    assert slot.records["a:1:0"].deadline >= before + LONG_MS
    assert slot.claimed("b") == []


def test_a_newer_run_is_one_new_delivery_and_pays_one_retry_each(slot):
    slot.put({b"first": 1000, b"retried": 5})
    slot.claim()
    assert slot.claim(run=2).retries_left == [3, 15]
    assert slot.claim(run=2).retries_left == [3, 15]
    assert slot.records["a:1:0"].run == 2
    assert slot.claim(run=4).retries_left == [2, 14]


def test_replays_alone_never_bury_a_message(new_slot):
    slot = new_slot(max_retries=1)
    slot.put_due([b"m"])
    slot.claim()
    lefts = [slot.claim(run=run).retries_left for run in (2, 3, 4)]
    assert lefts == [[0], [0], [0]]
    assert slot.dead == {}


def test_an_older_run_is_superseded_and_changes_nothing(slot):
    slot.put_due(numbered(2))
    slot.claim(limit=1)
    slot.claim(run=2, limit=1)
    before = slot.dump()
    for seq in (1, 2):
        with pytest.raises(Fenced, match="run 1 of consumer a was superseded by run 2"):
            slot.claim(run=1, seq=seq)
    assert slot.dump() == before


def test_a_newer_run_raises_the_header(slot):
    slot.claim(run=3)
    assert slot.header().run == 3
    slot.claim(run=4)
    assert slot.header().run == 4


def test_runs_of_other_consumers_do_not_supersede(slot):
    slot.put_due([b"m"])
    slot.claim("b", run=9)
    slot.release("b", run=9)
    slot.give_back_expired("a")
    assert slot.claimed("a", run=1) == [b"m"]


def test_a_settled_batch_is_refused_and_pops_nothing(slot):
    slot.claim(seq=4)
    slot.commit(seq=4)
    slot.put_due([b"m"])
    before = slot.dump()
    for seq in (4, 3):
        with pytest.raises(AlreadyCommitted, match=f"batch {seq} of consumer a is settled"):
            slot.claim(seq=seq)
    assert slot.dump() == before
    assert slot.claimed(seq=5) == [b"m"]


def test_a_claim_that_was_given_back_is_lost_not_smaller(slot):
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
    slot.give_back_expired("b")
    assert slot.claimed("b") == [b"m"]
    before = slot.dump()
    with pytest.raises(LeaseLost, match="claim a:1:0 is gone"):
        slot.claim("a")
    assert slot.dump() == before


def test_earlier_names_than_the_last_claimed_are_lost_and_later_ones_are_new(slot):
    slot.put_due(numbered(3))
    slot.claim(seq=2, ordinal=1, limit=1)
    for seq, ordinal in ((1, 15), (2, 0)):
        with pytest.raises(LeaseLost):
            slot.claim(seq=seq, ordinal=ordinal)
    assert slot.claimed(seq=2, ordinal=2, limit=1) == [numbered(3)[1]]
    assert slot.claimed(seq=3, ordinal=0, limit=1) == [numbered(3)[2]]


def test_a_name_that_is_no_longer_the_last_is_still_lost(slot):
    slot.claim(seq=1, ordinal=3)
    slot.claim(seq=2, ordinal=0)
    with pytest.raises(LeaseLost):
        slot.claim(seq=1, ordinal=4)


def test_replay_only_never_makes_a_claim(slot):
    slot.put_due([b"m"])
    with pytest.raises(LeaseLost):
        slot.claim(replay_only=True)
    assert slot.records == {}
    slot.claim()
    assert slot.claimed(replay_only=True) == [b"m"]


def test_an_empty_claim_is_sealed_too(slot):
    assert slot.claimed() == []
    slot.put_due([b"m"])
    assert slot.claimed() == []
    assert slot.claimed(run=2) == []
    assert slot.claimed("b") == [b"m"]


def test_a_sealed_claim_does_not_grow(slot):
    slot.put_due(numbered(2))
    slot.claim(limit=1)
    assert slot.claimed(limit=2) == numbered(1)


def test_what_was_rolled_back_is_missing_and_the_others_keep_order_and_scores(slot):
    slot.put_due(numbered(5))
    first = slot.claim()
    slot.rollback([numbered(5)[1], numbered(5)[3]])
    again = slot.claim()
    assert again.contents == first.contents[::2]
    assert again.scores == first.scores[::2]


def test_a_claim_rolled_back_message_by_message_stays_a_record(slot):
    slot.put_due(numbered(2))
    slot.claim()
    slot.rollback(numbered(2))
    assert slot.claimed() == []
    assert slot.claimed(run=2) == []
    assert sorted(slot.claimed(run=2, seq=2)) == numbered(2)


def test_a_rolled_back_message_that_another_holds_now_is_not_read_by_the_first(slot):
    slot.put_due(numbered(2))
    slot.claim("a")
    slot.rollback(numbered(1))
    assert slot.claimed("b") == numbered(1)
    assert slot.claimed("a") == numbered(2)[1:]


def test_moved_is_told_again_on_every_read(slot):
    slot.put_waiting({b"m": 5_003})
    slot.claim("a")
    assert [slot.claim_reply("a", run=run)[2] for run in (1, 1, 2)] == [1, 1, 1]


def test_a_replay_charges_the_record_and_touches_no_message(slot):
    slot.put({b"first": 1000, b"retried": 5})
    slot.claim()
    key = slot.keys.claim(0, "a:1:0")
    before = slot.redis.dump(key)
    for charged, run in enumerate((1, 2, 2, 3)):
        slot.claim(run=run)
        assert slot.records["a:1:0"].charged == max(0, run - 1), charged
    assert slot.redis.dump(key) == before
    assert slot.retries_left == {b"first": 14, b"retried": 2}


def test_the_retries_of_a_claim_are_those_of_the_topic_when_it_was_made(new_slot):
    slot = new_slot(max_retries=3)
    slot.put({b"first": 1000, b"retried": 9})
    slot.claim()
    slot.broker.alter(slot.queue.definition.name, max_retries=7)
    slot.queue = slot.broker.queue(slot.queue.definition.name)
    assert slot.claim().retries_left == [8, 3]
    assert slot.claim(run=2).retries_left == [7, 2]


def test_a_claim_is_read_again_whatever_epochs_say(new_slot):
    slot = new_slot(exclusive=True)
    slot.put_due([b"m"])
    slot.claim("a", epoch=1)
    slot.claim("b", epoch=7)
    assert slot.claimed("a", epoch=1) == [b"m"]
    assert slot.claimed("a") == [b"m"]


def test_a_claim_of_a_far_future_batch_keeps_its_number(slot):
    slot.put({b"m": 1000, b"far": FAR_MS})
    seq = 2**40
    assert slot.claimed(seq=seq) == [b"m"]
    assert slot.claimed(seq=seq) == [b"m"]
    assert slot.header().last_seq == seq
