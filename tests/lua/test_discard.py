"""Discarding stages: what was staged in vain, left by the dead, or belongs to a deleted topic."""

import pytest

from rmq_spark.protocol.staging import FORGET_STAGES_MS, Manifest

from ..logs import logged
from ..seeding import Slot, numbered
from .staged import NAME, QUERY, Stages


def test_a_stage_goes_with_its_entry_and_others_stay(stages):
    stages.put([b"a"])
    stages.put([b"b"], "a-query:1:1:b")
    assert stages.discard({0: [NAME]}) == 1
    assert stages.names == ["a-query:1:1:b"]
    assert len(stages.keys()) == 1


def test_what_is_not_there_may_be_discarded(stages):
    assert stages.discard({0: [NAME, "a-query:1:1:b"]}) == 0
    assert stages.discard({0: []}) == 0


def test_more_than_a_call_takes(stages):
    names = [f"a-query:1:{n}:x" for n in range(2500)]
    stages.put([b"a"], names[-1])
    assert stages.discard({0: names}) == 1
    assert stages.names == []


def test_a_sweep_takes_what_the_query_staged_up_to_the_batch(stages):
    kept = [f"{QUERY}:3:0:x", "another:1:0:x"]
    for name in [*kept, f"{QUERY}:2:0:x", f"{QUERY}:1:7:x"]:
        stages.put([b"m"], name)
    assert stages.sweep([0], QUERY, 2, {})
    assert stages.names == kept


def test_a_sweep_leaves_the_evidence_of_the_batch_and_takes_that_of_earlier_ones(stages):
    for name in (now := f"{QUERY}:2:0:x", f"{QUERY}:1:0:x"):
        stages.put(numbered(3), name)
        stages.publish({name: 3})
    assert stages.sweep([0], QUERY, 2, {0: {now: 3}})
    assert stages.evidence == {now: 3}


@pytest.mark.parametrize("found", [0, 2])
def test_a_sweep_that_misses_evidence_says_so_and_deletes_nothing(stages, found):
    stages.put([b"in vain"], f"{QUERY}:2:1:x")
    if found:
        stages.put(numbered(found))
        stages.publish({NAME: found})
    assert not stages.sweep([0], QUERY, 2, {0: {NAME: 3}})
    assert stages.names == [f"{QUERY}:2:1:x"]


def test_a_deleted_topic_takes_its_stages_along(broker):
    slot = Slot(broker, "T", groups=("g", "h"), group="g")
    stages = Stages(slot)
    stages.put(numbered(3))
    broker.delete("T")
    assert stages.keys() == []
    assert not slot.redis.exists(slot.keys.stages(0))


def sealed_long_ago(stages, slot, total):
    """Seals a stage of so many messages that was begun more than 30 days ago."""
    manifest = Manifest({NAME: {slot.queue.definition.name: {0: total}}})
    stages.book.seal(1, manifest)
    slot.redis.hset(slot.keys.stages(0), NAME, slot.now_ms() - FORGET_STAGES_MS - 1000)
    return manifest


@pytest.mark.parametrize("age_ms", [FORGET_STAGES_MS - 60_000, FORGET_STAGES_MS + 1000])
def test_expire_forgets_stages_that_nobody_came_back_to_for_30_days(stages, slot, age_ms):
    stages.put(numbered(3))
    stages.put([b"new"], "another:1:0:x")
    slot.redis.hset(slot.keys.stages(0), NAME, slot.now_ms() - age_ms)
    slot.queue.expire()
    old = [] if age_ms > FORGET_STAGES_MS else [NAME]
    assert stages.names == [*old, "another:1:0:x"]
    assert slot.store == {}


def test_expire_publishes_an_old_stage_that_was_sealed(stages, slot):
    stages.put(numbered(3))
    sealed_long_ago(stages, slot, 3)
    slot.queue.expire()
    slot.queue.expire()
    assert stages.names == stages.keys() == []
    assert slot.claimed() == numbered(3)
    assert stages.evidence == {NAME: 3}  # for its query, should it come back


def test_expire_leaves_a_sealed_stage_that_is_lost_to_its_query(stages, slot, caplog):
    stages.put(numbered(2))
    stages.put([b"in vain"], "another:1:0:x")
    sealed_long_ago(stages, slot, 3)
    slot.redis.hset(slot.keys.stages(0), "another:1:0:x", 1)
    slot.queue.expire()
    assert stages.names == [NAME]
    assert "did not come back" in logged(caplog)
    assert slot.store == {}


def test_expire_deletes_the_evidence_of_a_batch_that_is_concluded(stages, slot):
    stages.put(numbered(3))
    manifest = sealed_long_ago(stages, slot, 3)
    stages.publish({NAME: 3})
    stages.book.announce(1, manifest, "a")
    stages.book.conclude(1, "a")
    slot.queue.expire()
    assert stages.begun == {}
