"""Claims that were read but could not be handed out cost no retry."""

import pytest

from rmq_spark.errors import Fenced
from rmq_spark.protocol import claiming

from ..seeding import LONG_MS, numbered


def unread(slot, consumer="a", run=1, seq=1):
    return slot.queue.ask(claiming.unread, [0], consumer, run, seq)


def test_the_next_delivery_costs_no_retry(slot):
    slot.put({b"first": 1000, b"retried": 5})
    slot.claim()
    assert unread(slot) == 1
    assert slot.claim(run=2).retries_left == [4, 16]
    assert slot.claim(run=3).retries_left == [3, 15]


def test_giving_it_back_restores_the_scores_it_came_with(slot):
    slot.put({b"first": 1000, b"retried": 5})
    slot.claim(lease_ms=0)
    unread(slot)
    slot.give_back_expired("b")
    claim = slot.claim("b")
    assert claim.scores == [5, 1000]
    assert claim.retries_left == [4, 16]


def test_a_last_delivery_that_was_not_read_is_not_buried(new_slot):
    slot = new_slot(max_retries=0)
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    unread(slot)
    slot.give_back_expired("b")
    assert slot.claim("b").contents == [b"m"]
    assert slot.dead == {}


def test_an_unread_message_does_not_wait_for_a_backoff(new_slot):
    slot = new_slot(retry_backoff="1h")
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    unread(slot)
    slot.give_back_expired("b")
    assert slot.claimed("b") == [b"m"]


def test_deliveries_before_the_unread_one_stay_paid_for(slot):
    """Run 1 delivered it; run 2 could not: the retry that run 1's replay cost stays spent."""
    slot.put({b"first": 1000, b"retried": 5})
    slot.claim()
    assert slot.claim(run=2).retries_left == [3, 15]
    unread(slot, run=2)
    slot.release(run=2)
    slot.give_back_expired("b")
    claim = slot.claim("b")
    assert dict(zip(claim.contents, claim.retries_left, strict=True)) == {
        b"first": 15,
        b"retried": 3,
    }


def test_a_copy_sent_again_meanwhile_wins(slot):
    slot.put_due([b"m"])
    slot.claim(lease_ms=0)
    unread(slot)
    slot.queue.send([b"m"], fixed_time=500)
    slot.give_back_expired("b")
    assert slot.claim("b").scores == [500]
    assert slot.counters["merged"] == 1


def test_only_that_batch_and_run_are_marked(slot):
    slot.put_due(numbered(6))
    slot.claim(seq=1, limit=1)
    slot.claim(seq=2, ordinal=0, limit=1)
    slot.claim(seq=2, ordinal=1, limit=1)
    slot.claim(seq=3, limit=1)
    slot.claim("b", seq=2, limit=1)
    assert unread(slot, seq=2) == 2
    runs = {name: record.run for name, record in slot.records.items()}
    assert runs == {"a:1:0": 1, "a:2:0": 0, "a:2:1": 0, "a:3:0": 1, "b:2:0": 1}


def test_a_claim_that_an_earlier_run_delivered_is_not_marked(slot):
    slot.put_due([b"m"])
    slot.claim(run=1)
    slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)
    assert unread(slot, run=2) == 0
    assert slot.claim(run=2).retries_left == [15]


def test_read_again_by_the_same_run_it_is_delivered(slot):
    slot.put_due([b"m"])
    slot.claim()
    unread(slot)
    assert slot.claim().retries_left == [16]
    assert slot.records["a:1:0"].run == 1
    assert slot.claim(run=2).retries_left == [15]


def test_a_rollback_of_an_unread_claim_leaves_it_alone(slot):
    slot.put_due([b"m"])
    slot.claim()
    unread(slot)
    assert slot.rollback([b"m"]) == (0, 1)


def test_a_message_rolled_back_before_does_not_disturb_the_scores_of_the_others(slot):
    slot.put_due(numbered(4))
    slot.claim()
    slot.rollback(numbered(2)[1:])
    unread(slot)
    slot.release()
    slot.give_back_expired("b")
    claim = slot.claim("b")
    assert dict(zip(claim.contents, claim.scores, strict=True)) == {
        b"m00000": 1000,
        b"m00001": 16,
        b"m00002": 1002,
        b"m00003": 1003,
    }


def test_an_older_run_is_superseded(slot):
    slot.put_due([b"m"])
    slot.claim(run=1)
    slot.claim(run=2)
    before = slot.dump()
    with pytest.raises(Fenced):
        unread(slot, run=1)
    assert slot.dump() == before


def test_unread_messages_are_committed_once_they_were_read(slot):
    slot.put_due([b"m"])
    slot.claim()
    unread(slot)
    assert slot.commit(seq=1).committed == 0
    assert slot.commit(seq=1, finished_by=0).committed == 1


@pytest.mark.parametrize("most", [3, 9, 16])
def test_what_comes_back_unread_keeps_its_due_time_though_the_topics_retries_changed(
    new_slot, most
):
    """The record knows with how many retries the claim was made."""
    slot = new_slot(max_retries=8)
    slot.put({b"first": 1000, b"retried": 5})
    slot.claim(lease_ms=0)
    unread(slot)
    slot.broker.alter(slot.queue.definition.name, max_retries=most)
    slot.queue = slot.broker.queue(slot.queue.definition.name)
    assert slot.give_back_expired("b") == 2
    assert slot.store == {b"first": 1000, b"retried": 5}
    assert slot.claim("b").retries_left == [4, most]


def test_a_first_delivery_that_a_replay_could_not_charge_keeps_its_due_time(new_slot):
    """Where no retry is left none was spent, so the message goes back as it was."""
    slot = new_slot(max_retries=0)
    slot.put({b"first": 1000, b"last": 1, b"retried": 3})
    slot.claim()
    slot.claim(run=2)
    unread(slot, run=2)
    slot.release(run=2)
    assert slot.give_back_expired("b") == 3
    assert slot.store == {b"first": 1000, b"last": 1, b"retried": 2}


@pytest.mark.parametrize("topic_type", ["FixedTime", "Priority"])
def test_a_full_claim_that_was_not_read_comes_back_as_it_was(new_slot, topic_type):
    slot = new_slot(topic_type)
    scores = {content: 1 + rank for rank, content in enumerate(numbered(8192))}
    slot.put(scores)
    slot.claim(lease_ms=0)
    unread(slot)
    assert slot.give_back_expired("b") == 8192
    assert slot.store == scores
