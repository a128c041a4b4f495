"""Priority and FixedTime: of equal contents the last score wins."""

import pytest

from rmq_spark.client import Message, SendResult
from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol.calls import Call

from ..seeding import FAR_MS, LONG_MS, Slot, numbered


@pytest.fixture(params=["Priority", "FixedTime"])
def slot(new_slot, request):
    return new_slot(request.param)


def send(slot, contents, score):
    return slot.queue.send(contents, **{slot.queue.definition.type.keyword: score})


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
    keys = [slot.keys.store(0), slot.keys.retry(0), slot.keys.stats(0)]
    assert slot.queue.server.pipeline([Call("send_last", keys, [3900], pairs)]) == [[3898, 2]]
    assert slot.store == dict.fromkeys(contents, LONG_MS)
    assert slot.retry == {}


def test_a_call_with_more_than_lua_passes_on_stores_nothing(slot):
    before = slot.dump()
    pairs = [value for content in numbered(4500) for value in (1, content)]
    keys = [slot.keys.store(0), slot.keys.retry(0), slot.keys.stats(0)]
    with pytest.raises(ScriptFailed):
        slot.queue.server.pipeline([Call("send_last", keys, [4500], pairs)])
    assert slot.dump() == before


@pytest.mark.parametrize("contents", [[b"m"], [b"0", b"\xa10", b"10", b"m"], numbered(3900)])
def test_a_score_of_0_is_now_and_nothing_else_changes(new_slot, contents):
    """Whatever bytes the contents have: these look as the score does."""
    slot = new_slot("FixedTime")
    before = slot.now_ms()
    assert send(slot, contents, 0) == SendResult(len(contents), 0)
    assert slot.store.keys() == set(contents)
    assert all(before <= score <= slot.now_ms() for score in slot.store.values())


def test_only_the_scores_of_0_are_now(new_slot):
    slot = new_slot("FixedTime")
    times = {b"0": 1000, b"\xa10": 100, b"at once": 0, b"future": FAR_MS}
    slot.queue.send([Message(content, fixed_time=time) for content, time in times.items()])
    stored = slot.store
    assert stored.pop(b"at once") >= slot.now_ms() - LONG_MS
    assert stored == {b"0": 1000, b"\xa10": 100, b"future": FAR_MS}


def test_what_is_due_at_once_follows_what_was_sent_or_due_before_it(new_slot):
    slot = new_slot("FixedTime")
    slot.queue.send([b"z"], fixed_time=slot.now_ms() - 5)
    for content in (b"y", b"x"):
        slot.queue.send([content], fixed_time=0)
        slot.wait_past(slot.now_ms())
    assert slot.claimed() == [b"z", b"y", b"x"]


def test_a_message_that_waits_for_its_time_is_due_at_once_when_it_is_sent_so(new_slot):
    slot = new_slot("FixedTime")
    send(slot, [b"m"], FAR_MS)
    assert send(slot, [b"m"], 0) == SendResult(0, 1)
    assert slot.claimed() == [b"m"]


def test_every_group_has_the_same_now(broker):
    groups = [Slot(broker, "T", "FixedTime", groups=("", "g"), group=name) for name in ("", "g")]
    send(groups[0], [b"m"], 0)
    assert groups[0].store == groups[1].store != {}


def test_a_score_that_is_none_loses_nothing(slot):
    """The waiting copy may go only once the new one is stored."""
    slot.put_waiting({b"m": 5_005})
    keys = [slot.keys.store(0), slot.keys.retry(0), slot.keys.stats(0)]
    before = slot.dump()
    with pytest.raises(Exception, match="not a valid float"):
        slot.queue.server.pipeline([Call("send_last", keys, [1], ["soon", b"m"])])
    assert slot.dump() == before
