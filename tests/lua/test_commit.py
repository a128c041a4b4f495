"""The second phase: what was claimed is done."""

import pytest

from rmq_spark.errors import AlreadyCommitted, Fenced
from rmq_spark.protocol import claiming
from rmq_spark.protocol.claiming import EVERY_RUN
from rmq_spark.protocol.claims import ClaimRequest

from ..seeding import FAR_MS, LONG_MS, numbered


def call(slot, consumer="a", run=1, seq=1, names=()):
    """One call of the script, which names these claims."""
    args = [consumer, run, seq, 0, ""]
    return slot.queue.server.pipeline([claiming.commit_call(slot.queue.queues, 0, args, names)])[0]


def test_committed_messages_are_gone_with_their_records(slot):
    slot.put_due(numbered(3))
    slot.claim()
    assert slot.commit().committed == 3
    assert slot.prepare == slot.store == slot.records == {}
    assert not slot.redis.exists(slot.keys.claim(0, "a:1:0"))
    assert slot.counters == {"accepted": 3, "claimed": 3, "committed": 3}


def test_a_commit_that_names_no_claim_bars_older_runs_from_an_unused_slot_too(slot):
    slot.forget_use()
    call(slot, run=2)
    with pytest.raises(Fenced):
        call(slot, run=1)


def test_a_commit_takes_all_earlier_batches_and_no_later_one(slot):
    slot.put_due(numbered(4))
    for seq in (1, 2, 3, 4):
        slot.claim(seq=seq, limit=1)
    assert slot.commit(seq=3).committed == 3
    assert list(slot.records) == ["a:4:0"]
    assert set(slot.prepare) == {numbered(4)[3]}
    assert slot.header().settled == 3


def test_a_second_commit_changes_nothing_but_the_time_seen(slot):
    slot.put_due(numbered(3))
    slot.claim()
    slot.commit()
    before = slot.dump()
    again = slot.commit()
    assert (again.claimed, again.moved, again.committed) == (0, 0, 0)
    after = slot.dump()
    consumers = slot.keys.consumers(0)
    del before[consumers], after[consumers]
    assert after == before


def test_settled_never_goes_back(slot):
    slot.claim(seq=5)
    slot.commit(seq=5)
    slot.commit(seq=3)
    assert slot.header().settled == 5
    with pytest.raises(AlreadyCommitted):
        slot.claim(seq=4)


def test_a_commit_settles_batches_that_never_claimed(slot):
    assert call(slot, seq=7) == [0, 0, 0, 0, 0, 0, 0]
    assert slot.header().settled == 7


def test_other_consumers_keep_their_claims(slot):
    slot.put_due(numbered(3))
    for consumer in ("a", "b", "aa"):
        slot.claim(consumer, limit=1)
    slot.commit("a")
    assert sorted(slot.records) == ["aa:1:0", "b:1:0"]
    assert set(slot.prepare) == set(numbered(3)[1:])


def test_an_empty_claim_takes_no_others_messages_with_it(slot):
    slot.claim("a")
    slot.put_due(numbered(2))
    slot.claim("b")
    assert slot.commit("a").committed == 0
    assert set(slot.prepare) == set(numbered(2))


def test_claims_that_are_named_are_committed_and_others_named_in_turn(slot):
    slot.put_due(numbered(4))
    for ordinal in range(4):
        slot.claim(ordinal=ordinal, limit=1)
    reply = call(slot, names=["a:1:0", "a:1:2", "gone:7:0"])
    assert (reply[:7], sorted(reply[7:])) == ([2, 0, 2, 2, 0, 0, 0], [b"a:1:1", b"a:1:3"])
    assert sorted(slot.records) == ["a:1:1", "a:1:3"]
    assert set(slot.prepare) == set(numbered(4)[1::2])
    assert call(slot, names=["a:1:1", "a:1:3"]) == [2, 0, 2, 2, 1, 0, 0]
    assert slot.records == slot.prepare == {}


def test_claims_that_are_named_but_not_of_the_batch_stay(slot):
    slot.put_due(numbered(3))
    slot.claim("a", limit=1)
    slot.claim("a", seq=2, limit=1)
    slot.claim("b", limit=1)
    assert call(slot, names=["b:1:0", "a:2:0", "a:1:0"]) == [1, 0, 1, 1, 0, 0, 0]
    assert sorted(slot.records) == ["a:2:0", "b:1:0"]
    assert set(slot.prepare) == set(numbered(3)[1:])


def test_claims_that_hold_nothing_need_no_name(slot):
    slot.put_due(numbered(1))
    slot.claim(ordinal=0)
    slot.claim(ordinal=1)
    slot.rollback(numbered(1))
    assert call(slot) == [1, 0, 0, 2, 0, 0, 0]
    assert slot.records == {}


def test_a_call_names_up_to_eight_claims_and_the_queue_commits_all(slot):
    slot.put_due(numbered(17))
    for ordinal in range(16):
        slot.claim(ordinal=ordinal, limit=1)
    slot.claim("b")
    reply = call(slot)
    assert reply[:7] == [0, 0, 0, 0, 0, 0, 0]
    assert len(reply[7:]) == len(set(reply[7:])) == 8
    assert {name.split(b":")[0] for name in reply[7:]} == {b"a"}
    assert len(slot.records) == 17
    result = slot.commit()
    assert (result.claimed, result.committed, result.records) == (16, 16, 16)
    assert list(slot.records) == ["b:1:0"]


def test_names_that_are_known_save_the_second_call(slot):
    slot.put_due(numbered(16))
    names = [f"a:1:{ordinal}" for ordinal in range(16)]
    for ordinal in range(16):
        slot.claim(ordinal=ordinal, limit=1)
    conversation = claiming.commit(slot.queue.queues, [0], "a", 1, 1, expected={0: names})
    request = next(conversation)
    assert len(request.calls) == 1
    with pytest.raises(StopIteration) as end:
        conversation.send(slot.queue.server.ask(request))
    assert (end.value.value.committed, end.value.value.again) == (16, set())
    assert slot.records == slot.prepare == {}


def test_the_queue_commits_all_however_many_there_are(slot):
    slot.put_due(numbered(40))
    for seq in (1, 2, 3):
        for ordinal in range(16):
            slot.claim(seq=seq, ordinal=ordinal, limit=1)
    result = slot.commit(seq=3)
    assert (result.claimed, result.committed, result.records) == (40, 40, 48)
    assert (result.held, result.again) == ({0}, set())
    assert slot.records == {}


def test_claimed_and_moved_are_told_as_the_claims_saw_them(slot):
    slot.put_waiting({b"r1": 5_003, b"r2": 5_003})
    slot.put_due([b"m"])
    slot.claim("a")
    slot.rollback([b"m"])
    result = slot.commit("a")
    assert (result.claimed, result.moved, result.committed) == (3, 2, 2)


def test_a_commit_tells_a_batch_that_was_settled_from_one_that_was_lost(slot):
    slot.put_due(numbered(2))
    slot.claim("a", limit=1)
    slot.claim("lost", limit=1, lease_ms=0)
    slot.queue.expire()
    first, again, lost = slot.commit("a"), slot.commit("a"), slot.commit("lost")
    assert (first.records, first.held, first.again) == (1, {0}, set())
    assert (again.records, again.held, again.again) == (0, set(), {0})
    assert (lost.records, lost.held, lost.again) == (0, set(), set())


def test_a_commit_counts_the_claims_of_its_batch_that_were_given_back(slot):
    slot.put_due(numbered(6))
    slot.claim(seq=1, limit=1)
    for ordinal, lease_ms in enumerate((0, LONG_MS, 0)):
        slot.claim(seq=2, ordinal=ordinal, limit=1, lease_ms=lease_ms)
    slot.claim("b", seq=2, limit=1)
    slot.queue.expire()
    result = slot.commit(seq=2)
    assert (result.gone, result.records) == ({0: 2}, 2)
    assert slot.commit(seq=2).gone == {}


def test_a_batch_without_a_claim_in_the_slot_has_none_that_is_gone(slot):
    slot.put_due(numbered(1))
    slot.claim(seq=2, lease_ms=0)
    slot.queue.expire()
    assert slot.commit(seq=1).gone == slot.commit(seq=3).gone == {}


def test_a_claim_that_lost_all_its_messages_to_rollbacks_is_not_gone(slot):
    slot.put_due(numbered(2))
    slot.claim(lease_ms=0)
    slot.rollback(numbered(2))
    slot.queue.expire()
    assert slot.commit().gone == {}


def test_claims_that_another_call_must_commit_are_not_gone(slot):
    slot.put_due(numbered(12))
    for ordinal in range(12):
        slot.claim(ordinal=ordinal, limit=1)
    result = slot.commit()
    assert (result.gone, result.records) == ({}, 12)


def test_a_batch_is_settled_by_its_own_commit_or_a_later_one(slot):
    slot.commit(seq=4)
    assert slot.commit(seq=5).again == set()
    assert slot.commit(seq=4).again == {0}


def test_each_slot_of_a_commit_answers_for_itself(broker):
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    asked = {"consumer": "a", "run": 1, "seq": 1, "lease_ms": LONG_MS}
    queue.send(numbered(100), fixed_time=FAR_MS)
    requests = [ClaimRequest(slot, 0) for slot in (0, 1)]
    queue.ask(claiming.claim, requests, claiming.Claiming(**asked))
    queue.ask(claiming.commit, {0: ()}, "a", 1, 1)
    result = queue.ask(claiming.commit, dict.fromkeys(queue.slots, ()), "a", 1, 1)
    assert (result.records, result.held, result.again) == (1, {1}, {0})


def test_an_older_run_is_superseded_and_deletes_nothing(slot):
    slot.put_due([b"m"])
    slot.claim(run=1)
    slot.claim(run=2)
    before = slot.dump()
    with pytest.raises(Fenced):
        slot.commit(run=1)
    assert slot.dump() == before


def test_a_newer_run_commits_and_bars_the_older(slot):
    slot.put_due([b"m"])
    slot.claim(run=1)
    assert slot.commit(run=2, finished_by=EVERY_RUN).committed == 1
    with pytest.raises(Fenced):
        slot.claim(run=1, seq=2)


def test_claims_of_an_earlier_run_that_were_not_replayed_stay(slot):
    """Redis may have fallen back to a state that has them: nobody has finished them."""
    slot.put_due(numbered(3))
    slot.claim(run=1, limit=1)
    slot.claim(run=2, seq=2, limit=1)
    result = slot.commit(run=2, seq=2)
    assert (result.records, result.committed) == (1, 1)
    assert list(slot.records) == ["a:1:0"]
    slot.queue.ask(claiming.release, [0], "a", 2)
    slot.give_back_expired("b")
    assert slot.claimed("b") == [numbered(3)[0]]
    assert slot.claimed("b", seq=2) == [numbered(3)[2]]


@pytest.mark.parametrize("reads", [False, True])
def test_claims_that_a_run_has_replayed_are_committed_whether_it_read_them_or_not(slot, reads):
    """A file sink that has the batch already does not read it again."""
    slot.put_due(numbered(2))
    slot.claim(run=1)
    slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)
    if reads:
        slot.claim(run=2, replay_only=True)
    assert slot.commit(run=2).committed == 2


@pytest.mark.parametrize("finisher", [1, 2, EVERY_RUN])
def test_claims_of_the_run_that_finished_a_batch_are_committed_by_the_next(slot, finisher):
    """The other topics of its batch, which it had not, are nobody's."""
    slot.put_due(numbered(2))
    slot.claim(run=1)
    if finisher != 1:
        slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)
    assert slot.commit(run=4, finished_by=3).committed == 0
    assert slot.commit(run=4, finished_by=finisher).committed == 2


def test_a_claim_that_was_replayed_by_the_run_before_stays(slot):
    slot.put_due(numbered(2))
    slot.claim(run=1)
    slot.queue.ask(claiming.replay, "a", 2, 0, 1, LONG_MS)
    assert slot.commit(run=3).committed == 0
    assert list(slot.records) == ["a:1:0"]


def test_only_batches_behind_a_number_are_committed(slot):
    """A plain consumer commits its batch alone: an earlier one may come back with a fall-back."""
    slot.put_due(numbered(3))
    for seq in (1, 2, 3):
        slot.claim(seq=seq, limit=1)
    assert slot.commit(seq=3, since=2).committed == 1
    assert sorted(slot.records) == ["a:1:0", "a:2:0"]
    assert slot.commit(seq=2, since=0).committed == 2


def test_an_old_task_cannot_claim_what_the_commit_of_the_replay_would_delete(slot):
    """Seen: an old run's task popped after the replay had passed its slot; nobody read that."""
    slot.queue.ask(claiming.replay, "a", 2, 0, 1, 1000)
    slot.put_due([b"m"])
    with pytest.raises(Fenced):
        slot.claim(run=1, seq=1)
    slot.commit(run=2, seq=1)
    assert slot.claimed("b") == [b"m"]


def test_what_was_given_back_meanwhile_is_not_committed(slot):
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
    slot.give_back_expired("b")
    assert slot.claimed("b") == [b"m"]
    assert slot.commit("a").committed == 0
    assert slot.claimed("b") == [b"m"]


def test_a_copy_sent_again_in_flight_survives_the_commit(slot):
    slot.put_due([b"m"])
    slot.claim()
    slot.put_due([b"m"])
    slot.commit()
    assert slot.claimed(seq=2) == [b"m"]


def test_a_commit_keeps_what_the_header_knew(slot):
    slot.claim(seq=4, ordinal=3)
    before = slot.now_ms()
    slot.commit(run=2, seq=3)
    header = slot.header()
    assert (header.run, header.settled, header.last_seq, header.last_ordinal) == (2, 3, 4, 3)
    assert header.seen_ms >= before
