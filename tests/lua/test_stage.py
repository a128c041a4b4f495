"""Staging: what is sent to an exactly-once sink waits where no consumer sees it."""

import pytest

from rmq_spark.client import SendResult
from rmq_spark.errors import StageLost
from rmq_spark.protocol.calls import Call

from ..seeding import numbered
from .staged import NAME


def test_scores_and_contents_are_kept_in_order(stages):
    assert stages.put([b"b", b"a", b"\xff\x00"]) == 3
    assert stages.list() == [b"1000", b"b", b"1000", b"a", b"1000", b"\xff\x00"]


def test_a_stage_is_registered_with_the_time_it_was_begun(stages, slot):
    before = slot.now_ms()
    stages.put([b"a"])
    ((name, begun),) = stages.begun.items()
    assert name == NAME
    assert before <= begun.ms <= slot.now_ms()
    slot.wait_past(begun.ms)
    stages.put([b"b"], held=1)
    assert stages.begun == {NAME: begun}


def test_consumers_and_counters_do_not_see_what_is_staged(stages, slot):
    stages.put(numbered(3))
    assert slot.claimed() == []
    assert slot.store == slot.counters == {}


def test_a_call_whose_reply_was_lost_adds_nothing_when_repeated(stages):
    stages.put([b"a", b"b"])
    assert stages.put([b"a", b"b"]) == 2
    stages.put([b"c"], held=2)
    assert stages.put([b"c"], held=2) == 3
    assert stages.list()[1::2] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("held", [1, 3])
def test_a_stage_that_holds_something_else_is_lost_and_left_as_it_is(stages, slot, held):
    stages.put([b"a", b"b"])
    before = slot.redis.dump(slot.keys.stage(0, NAME))
    with pytest.raises(StageLost, match=f"holds 2 messages and 0 were.* had put {held}"):
        stages.put([b"x", b"y"], held=held)
    assert slot.redis.dump(slot.keys.stage(0, NAME)) == before


def test_a_stage_that_was_deleted_is_not_begun_again(stages):
    stages.put([b"a"])
    stages.discard({0: [NAME]})
    with pytest.raises(StageLost, match="holds 0 messages"):
        stages.put([b"b"], held=1)
    assert stages.names == stages.keys() == []


def test_a_call_that_comes_after_its_stage_was_published_adds_nothing(stages):
    """A first copy of a call that was repeated: on a network, one may overtake the other."""
    stages.put([b"a"])
    stages.publish({NAME: 1})
    with pytest.raises(StageLost, match="holds 0 messages and 1 were published"):
        stages.put([b"a"])
    assert stages.keys() == []
    assert stages.publish({NAME: 1}) == SendResult(0, 0)


def test_stages_of_other_attempts_do_not_mix(stages):
    stages.put([b"a"])
    stages.put([b"b"], "a-query:1:0:another")
    assert stages.list()[1::2] == [b"a"]
    assert len(stages.names) == 2


def test_one_call_takes_more_than_lua_can_unpack(stages):
    assert stages.put(numbered(10_000)) == 10_000
    assert stages.list()[1::2] == numbered(10_000)


def test_one_call_of_3900_messages_is_taken(stages, slot):
    pairs = [value for content in numbered(3900) for value in (1, content)]
    keys = [slot.keys.stage(0, NAME), slot.keys.stages(0)]
    assert slot.queue.server.pipeline([Call("stage", keys, [NAME, 0, 3900, ""], pairs)]) == [3900]
    assert stages.list()[1::2] == numbered(3900)
