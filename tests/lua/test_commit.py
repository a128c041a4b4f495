"""The second phase: what was claimed is done."""

import pytest

from rmq_spark.errors import Settled, Superseded
from rmq_spark.protocol import claiming
from rmq_spark.protocol.claiming import EVERY_RUN
from rmq_spark.protocol.claims import ClaimRequest

from ..seeding import LONG_MS, numbered


def call(slot, consumer="a", run=1, seq=1):
    """One call of the script, which the queue repeats while records remain."""
    keys = [getattr(slot.keys, k)(0) for k in ["prepare", "claims", "first", "consumers", "stats"]]
    return slot.queue.server.call("commit", keys, [consumer, run, seq, 0, ""])


def test_committed_messages_are_gone_with_their_records(slot):
    slot.put_due(numbered(3))
    slot.claim()
    assert slot.commit().committed == 3
    assert slot.prepare == slot.store == slot.records == {}
    assert slot.redis.hlen(slot.keys.first(0)) == 0
    assert slot.counters == {"accepted": 3, "claimed": 3, "committed": 3}


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
    keys = slot.keys.all_of(0)
    before = [slot.redis.dump(key) for key in keys if key != slot.keys.consumers(0)]
    again = slot.commit()
    assert (again.claimed, again.moved, again.committed) == (0, 0, 0)
    assert [slot.redis.dump(key) for key in keys if key != slot.keys.consumers(0)] == before


def test_settled_never_goes_back(slot):
    slot.claim(seq=5)
    slot.commit(seq=5)
    slot.commit(seq=3)
    assert slot.header().settled == 5
    with pytest.raises(Settled):
        slot.claim(seq=4)


def test_a_commit_settles_batches_that_never_claimed(slot):
    assert call(slot, seq=7) == [0, 0, 0, 0, 0, 0]
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


def test_a_call_takes_eight_records_and_says_that_more_remain(slot):
    slot.put_due(numbered(16))
    for ordinal in range(16):
        slot.claim(ordinal=ordinal, limit=1)
    slot.claim("b")
    assert call(slot) == [1, 8, 0, 8, 8, 0]
    assert len(slot.records) == 9
    assert call(slot) == [0, 8, 0, 8, 8, 1]
    assert list(slot.records) == ["b:1:0"]


def test_exactly_eight_records_need_one_call(slot):
    for ordinal in range(8):
        slot.claim(ordinal=ordinal)
    assert call(slot) == [0, 0, 0, 0, 8, 0]
    assert slot.records == {}


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
    slot.put_due(numbered(3))
    slot.claim("b", limit=2, lease_ms=0)
    slot.claim("a")
    slot.rollback([numbered(3)[2]])
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


def test_a_batch_is_settled_by_its_own_commit_or_a_later_one(slot):
    slot.commit(seq=4)
    assert slot.commit(seq=5).again == set()
    assert slot.commit(seq=4).again == {0}


def test_each_slot_of_a_commit_answers_for_itself(broker):
    broker.create("T", "FixedTime", 4)
    queue = broker.queue("T")
    asked = {"consumer": "a", "run": 1, "seq": 1, "lease_ms": LONG_MS}
    queue.ask(claiming.claim, [ClaimRequest(slot, 0) for slot in (0, 1)], **asked)
    queue.ask(claiming.commit, [0], "a", 1, 1)
    result = queue.ask(claiming.commit, queue.slots, "a", 1, 1)
    assert (result.records, result.held, result.again) == (1, {1}, {0})


def test_an_older_run_is_superseded_and_deletes_nothing(slot):
    slot.put_due([b"m"])
    slot.claim(run=1)
    slot.claim(run=2)
    before = slot.dump()
    with pytest.raises(Superseded):
        slot.commit(run=1)
    assert slot.dump() == before


def test_a_newer_run_commits_and_bars_the_older(slot):
    slot.put_due([b"m"])
    slot.claim(run=1)
    assert slot.commit(run=2, finished_by=EVERY_RUN).committed == 1
    with pytest.raises(Superseded):
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
    assert slot.claimed("b") == [numbered(3)[0], numbered(3)[2]]


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


def test_records_of_the_version_before_are_read(slot):
    slot.put_due(numbered(2))
    slot.claim(limit=1)
    slot.claim("empty", seq=7, limit=1)
    slot.rollback(numbered(2)[1:], claim_id="empty:7:0:1")
    key = slot.keys.claims(0)
    for name, record in slot.records.items():
        old = (1, record.stamp, record.run, record.deadline, record.count, record.moved)
        slot.redis.hset(key, name, " ".join(map(str, old)))
    assert slot.claim().claimed_at_ms % 1000 == 0
    assert slot.commit().committed == 1
    assert slot.claimed("b") == numbered(2)[1:]


def test_an_old_task_cannot_claim_what_the_commit_of_the_replay_would_delete(slot):
    """Seen: an old run's task popped after the replay had passed its slot; nobody read that."""
    slot.queue.ask(claiming.replay, "a", 2, 0, 1, 1000)
    slot.put_due([b"m"])
    with pytest.raises(Superseded):
        slot.claim(run=1, seq=1)
    slot.commit(run=2, seq=1)
    assert slot.claimed("b") == [b"m"]


def test_what_was_given_back_meanwhile_is_not_committed(slot):
    slot.put_due([b"m"])
    slot.claim("a", lease_ms=0)
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
