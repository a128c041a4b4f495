"""Publishing: sealed stages become messages, exactly as if they had been sent now."""

import pytest

from rmq_spark.client import SendResult, connect
from rmq_spark.errors import ServerFull, StageLost
from rmq_spark.protocol import staging as build
from rmq_spark.protocol.staging import Begun, Manifest

from ..seeding import LONG_MS, Slot, numbered
from .staged import NAME, Stages


def keys_of(stages, slot):
    """The keys of a stage and of the slot's store."""
    (call,) = next(build.publish(slot.queue.queues, {0: {NAME: 0}})).calls
    return call.keys


def everything(stages, slot):
    return [slot.redis.dump(key) for key in keys_of(stages, slot)]


def publish_once(stages, slot, total):
    return slot.queue.server.call("publish", keys_of(stages, slot), [NAME, "send_at", total, 0, ""])


def test_what_was_staged_can_be_claimed_and_the_stage_is_gone(stages, slot):
    stages.put(numbered(3))
    assert stages.publish({NAME: 3}) == SendResult(3, 0)
    assert slot.claimed() == numbered(3)
    assert stages.names == stages.keys() == []
    assert stages.evidence == {NAME: 3}
    assert slot.counters == {"accepted": 3, "claimed": 3}


def test_publishing_again_adds_nothing_even_when_the_first_copy_was_committed(stages, slot):
    stages.put(numbered(3))
    stages.publish({NAME: 3})
    slot.claim()
    slot.commit()
    before = slot.dump()
    assert stages.publish({NAME: 3}) == SendResult(0, 0)
    assert slot.dump() == before


def test_a_stage_that_is_published_remembers_when_it_was_begun(stages):
    stages.put(numbered(5000))
    before = stages.begun[NAME]
    stages.publish({NAME: 5000})
    assert stages.begun[NAME] == Begun(before.ms, 5000)


@pytest.mark.parametrize("there", [0, 2, 4])
def test_a_stage_that_does_not_hold_what_its_task_put_there_is_lost(stages, slot, there):
    if there:
        stages.put(numbered(there))
    before = everything(stages, slot)
    with pytest.raises(StageLost, match=f"holds {there} messages and 0 were published.* put 3"):
        stages.publish({NAME: 3})
    assert everything(stages, slot) == before


def test_a_stage_that_was_published_in_part_is_checked_by_both_parts(stages, slot):
    contents = numbered(9000)
    stages.put(contents)
    publish_once(stages, slot, 9000)
    slot.redis.rpop(slot.keys.stage(0, NAME), 2)
    before = everything(stages, slot)
    with pytest.raises(StageLost, match="holds 6951 messages and 2048 were published"):
        stages.publish({NAME: 9000})
    assert everything(stages, slot) == before


def test_a_stage_whose_evidence_is_gone_is_lost(stages, slot):
    """Not published a second time: nothing tells how much of it was published."""
    stages.put(numbered(3))
    slot.redis.delete(slot.keys.stages(0))
    before = everything(stages, slot)
    with pytest.raises(StageLost):
        stages.publish({NAME: 3})
    assert everything(stages, slot) == before


def test_a_slot_that_falls_back_is_published_from_where_it_then_is(stages, slot):
    stages.put(numbered(9000))
    publish_once(stages, slot, 9000)
    kept = {key: slot.redis.dump(key) for key in keys_of(stages, slot) if slot.redis.exists(key)}
    stages.publish({NAME: 9000})
    slot.redis.delete(*keys_of(stages, slot))
    for key, value in kept.items():
        slot.redis.restore(key, 0, value)
    assert stages.publish({NAME: 9000}) == SendResult(6952, 0)
    assert sorted(slot.store) == numbered(9000)


def test_a_call_takes_at_most_2048_and_repeated_calls_take_the_rest(stages, slot):
    contents = numbered(9000)
    stages.put(contents)
    replies, evidence = [], []
    for _ in range(6):
        replies.append(publish_once(stages, slot, 9000))
        evidence.append(stages.evidence[NAME])
    assert replies == [*[[1, 2048, 0, 0]] * 4, [0, 808, 0, 0], [0, 0, 0, 0]]
    assert evidence == [2048, 4096, 6144, 8192, 9000, 9000]
    assert sorted(slot.store) == contents
    assert stages.keys() == []


def test_the_last_call_says_so(stages, slot):
    stages.put(numbered(2048))
    assert publish_once(stages, slot, 2048) == [0, 2048, 0, 0]


def test_a_stage_is_published_whole_in_calls(stages, slot):
    stages.put(numbered(9000))
    assert stages.publish({NAME: 9000}) == SendResult(9000, 0)
    assert len(slot.store) == 9000


def test_the_last_score_wins_where_the_type_says_so(stages, slot):
    slot.queue.send([b"old"], fixed_time=500)
    stages.put([b"old", b"new"], score=700)
    stages.put([b"new"], score=600, held=2)
    assert stages.publish({NAME: 3}) == SendResult(new=1, merged=2)
    assert slot.store == {b"old": 700, b"new": 600}


def test_a_message_that_is_due_at_once_is_due_from_publishing_on(stages, slot):
    stages.put([b"0", b"m"], score=0)
    stages.put([b"past"], score=1000, held=2)
    slot.wait_past(slot.now_ms() + 20)
    before = slot.now_ms()
    assert stages.publish({NAME: 3}) == SendResult(3, 0)
    assert slot.store.keys() == {b"past", b"0", b"m"}
    assert slot.store[b"past"] == 1000
    assert before <= slot.store[b"0"] == slot.store[b"m"] <= slot.now_ms()


def test_a_delay_runs_from_publishing_and_the_last_due_time_wins(stages, slot):
    slot.queue.send([b"old", b"new"], fixed_time=10**15)
    stages.put([b"old", b"new"], score=-LONG_MS)
    stages.put([b"new"], score=-10, held=2)
    slot.wait_past(slot.now_ms() + 20)
    before = slot.now_ms()
    assert stages.publish({NAME: 3}) == SendResult(new=0, merged=3)
    assert before + 10 <= slot.store[b"new"] <= slot.now_ms() + 10
    assert slot.store[b"old"] - slot.store[b"new"] == LONG_MS - 10
    assert slot.redis.hget(slot.keys.stats(0), "dueSince") is None


@pytest.mark.parametrize("time_ms", [0, 1000])
def test_a_message_with_a_time_long_past_is_late_only_since_publishing(stages, slot, time_ms):
    stages.put([b"m"], score=time_ms)
    slot.wait_past(slot.now_ms())
    before = slot.now_ms()
    stages.publish({NAME: 1})
    assert before <= slot.queue.figures().store.oldest_ms <= slot.now_ms()


@pytest.mark.parametrize("topic_type", ["Priority", "RangeMerge"])
def test_other_types_note_no_lateness(new_slot, topic_type):
    slot = new_slot(topic_type)
    stages = Stages(slot)
    stages.put([b"m"], score=500)
    stages.publish({NAME: 1})
    assert slot.redis.hget(slot.keys.stats(0), "dueSince") is None


def test_a_time_range_runs_from_publishing_and_the_first_due_time_stays(new_slot):
    slot = new_slot("RangeMerge")
    stages = Stages(slot)
    slot.queue.send([b"old"], time_range=LONG_MS)
    due = slot.store[b"old"]
    stages.put([b"old", b"new"], score=10)
    stages.put([b"new"], score=LONG_MS, held=2)
    slot.wait_past(slot.now_ms() + 20)
    before = slot.now_ms()
    assert stages.publish({NAME: 3}) == SendResult(new=1, merged=2)
    assert slot.store[b"old"] == due
    assert before + 10 <= slot.store[b"new"] <= slot.now_ms() + 10


def test_a_copy_in_the_retry_queue_gives_way(stages, slot):
    slot.put_waiting({b"m": 5_005, b"other": 5_005})
    stages.put([b"m"])
    assert stages.publish({NAME: 1}) == SendResult(new=0, merged=1)
    assert slot.retry == {b"other": 5_005}


def test_every_group_gets_a_copy_and_the_first_groups_counts_are_returned(broker):
    slot = Slot(broker, "T", groups=("", "g"))
    other = Slot(broker, "T", group="g")
    slot.queue.send([b"m"], fixed_time=1)
    slot.claim()
    slot.commit()
    stages = Stages(slot)
    stages.put([b"m"])
    assert stages.publish({NAME: 1}) == SendResult(new=1, merged=0)
    assert slot.claimed(seq=2) == [b"m"]
    assert other.counters == {"accepted": 2, "merged": 1}
    for each in (slot, other):
        each.check_conservation()


def test_several_stages_are_published_at_once(stages, slot):
    names = [f"a-query:1:{partition}:x" for partition in range(40)]
    for n, name in enumerate(names):
        stages.put([b"%d" % n], name)
    assert stages.publish(dict.fromkeys(names, 1)) == SendResult(40, 0)
    assert stages.names == []
    assert stages.evidence == dict.fromkeys(names, 1)


def test_a_full_server_stages_nothing_more_but_lets_through_what_is_staged(own_redis):
    broker = connect(own_redis.url, patience_s=2)
    slot = Slot(broker, "T")
    stages = Stages(slot)
    stages.put(numbered(5000))
    # Any amount is used by now, so every command that may store is refused.
    slot.redis.config_set("maxmemory", 1)
    for name, held in ((NAME, 5000), ("a-query:1:1:new", 0)):
        with pytest.raises(ServerFull):
            stages.put([b"more"], name, held=held)
    manifest = Manifest({NAME: {"T": {0: 5000}}})
    assert stages.book.seal(1, manifest)[0] == 1
    assert stages.publish({NAME: 5000}) == SendResult(5000, 0)
    assert stages.book.announce(1, manifest, "a")
    assert stages.book.conclude(1, "a")
    assert len(slot.claimed()) == 5000
    slot.check_conservation()
    broker.close()
