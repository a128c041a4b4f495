"""Priority and FixedTime (send_at): of equal contents the last score wins."""

import pytest

from rmq_spark.client import Message, SendResult
from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol.calls import Call

from ..seeding import LONG_MS, Slot, numbered


@pytest.fixture(params=["Priority", "FixedTime"])
def slot(new_slot, request):
    return new_slot(request.param)


def send(slot, contents, score):
    return slot.queue.send(contents, **{slot.queue.definition.type.keyword: score})


def call_of(slot, sent, pairs):
    keys = slot.queue.queues.keys_of(0, "store retry stats bodies")
    script = slot.queue.definition.type.send_script
    return Call(script, keys, [sent, 0, 6, "", *([17] if script == "send_at" else [])], pairs)


def test_the_score_is_stored_as_given(slot):
    for content, score in ((b"low", 17), (b"high", 2**53), (b"time", 1_700_000_000_001)):
        send(slot, [content], score)
        assert slot.store[content] == score


def test_the_last_score_wins_up_and_down(slot):
    assert send(slot, [b"m"], 500) == SendResult(1, 0)
    for score in (900, 300, 300):
        assert send(slot, [b"m"], score) == SendResult(0, 1)
        assert slot.store == {b"m": score}
    assert slot.counters == {"accepted": 4, "merged": 3}


def test_of_equal_contents_in_one_call_the_last_wins(new_slot):
    slot = new_slot("Priority")
    messages = [Message(b"m", priority=score) for score in (90, 20, 50)]
    assert slot.queue.send(messages) == SendResult(1, 2)
    assert slot.store == {b"m": 50}


def test_a_message_waiting_as_a_retry_becomes_a_first_delivery(slot):
    slot.put({b"m": 5})
    assert send(slot, [b"m"], 500) == SendResult(0, 1)
    assert slot.store == {b"m": 500}


def test_a_copy_in_the_retry_queue_gives_way(slot):
    slot.put_waiting({b"m": 5_005, b"other": 5_005})
    assert send(slot, [b"m"], 500) == SendResult(0, 1)
    assert slot.store == {b"m": 500}
    assert slot.retry == {b"other": 5_005}


def test_a_content_in_flight_is_stored_again(slot):
    slot.put_due([b"m"])
    slot.claim()
    assert send(slot, [b"m"], 500) == SendResult(1, 0)
    assert set(slot.store) == set(slot.prepare) == {b"m"}


def test_a_copy_in_the_dead_queue_is_left_alone(slot):
    slot.bury(b"m")
    assert send(slot, [b"m"], 500) == SendResult(1, 0)
    assert slot.dead == {b"m": 1}


def test_every_group_gets_a_copy(broker):
    groups = {
        name: Slot(broker, "T", "Priority", groups=("", "g", "h"), group=name)
        for name in ("", "g", "h")
    }
    send(groups["g"], [b"m"], 500)
    send(groups["h"], [b"m"], 600)
    for slot in groups.values():
        assert slot.store == {b"m": 600}
        assert slot.counters == {"accepted": 2, "merged": 1}


def test_one_call_takes_3900_messages(slot):
    contents = numbered(3899)
    slot.put_waiting({contents[3500]: 5_003})
    pairs = [value for content in [*contents, contents[0]] for value in (LONG_MS, content)]
    assert slot.queue.server.pipeline([call_of(slot, 3900, pairs)]) == [[3898, 2, 0]]
    assert slot.store == dict.fromkeys(contents, LONG_MS)
    assert slot.retry == {}


def test_a_call_with_more_than_lua_passes_on_stores_nothing(slot):
    before = slot.dump()
    pairs = [value for content in numbered(4500) for value in (1, content)]
    with pytest.raises(ScriptFailed):
        slot.queue.server.pipeline([call_of(slot, 4500, pairs)])
    assert slot.dump() == before


def test_a_score_that_is_none_loses_nothing(slot):
    """The waiting copy may go only once the new one is stored."""
    slot.put_waiting({b"m": 5_005})
    before = slot.dump()
    with pytest.raises(Exception, match=r"not a valid float|arithmetic on"):
        slot.queue.server.pipeline([call_of(slot, 1, ["soon", b"m"])])
    assert slot.dump() == before
