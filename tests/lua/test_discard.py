"""Discarding stages: what was staged in vain, left by the dead, or belongs to a deleted topic."""

import pytest
from seeding import Slot, numbered
from staged import NAME, QUERY, Stages

from rmq_spark.queue.staging import FORGET_STAGES_MS, Manifest


@pytest.fixture
def stages(slot):
    return Stages(slot)


def test_a_stage_goes_with_its_entry_and_others_stay(stages):
    stages.put([b"a"])
    stages.put([b"b"], "a-query:1:1:b")
    assert stages.staging.discard({0: [NAME]}) == 1
    assert stages.names == ["a-query:1:1:b"]
    assert len(stages.keys()) == 1


def test_what_is_not_there_may_be_discarded(stages):
    assert stages.staging.discard({0: [NAME, "a-query:1:1:b"]}) == 0
    assert stages.staging.discard({0: []}) == 0


def test_more_than_a_call_takes(stages):
    names = [f"a-query:1:{n}:x" for n in range(2500)]
    stages.put([b"a"], names[-1])
    assert stages.staging.discard({0: names}) == 1
    assert stages.names == []


def test_a_sweep_takes_what_the_query_staged_up_to_the_batch(stages):
    kept = [f"{QUERY}:3:0:x", "another:1:0:x"]
    for name in [*kept, f"{QUERY}:2:0:x", f"{QUERY}:1:7:x"]:
        stages.put([b"m"], name)
    assert stages.staging.sweep([0], QUERY, 2) == 2
    assert stages.names == kept


def test_a_deleted_topic_takes_its_stages_along(broker):
    slot = Slot(broker, "T", groups=("g", "h"), group="g")
    stages = Stages(slot)
    stages.put(numbered(3))
    broker.delete("T")
    assert stages.keys() == []
    assert not slot.redis.exists(slot.keys.stages(0))


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
    stages.book.seal(1, Manifest({NAME: {slot.queue.definition.name: [0]}}))
    slot.redis.hset(slot.keys.stages(0), NAME, slot.now_ms() - FORGET_STAGES_MS - 1000)
    slot.queue.expire()
    assert stages.names == []
    assert slot.claimed() == numbered(3)
