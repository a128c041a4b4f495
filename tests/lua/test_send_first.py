"""RangeMerge: of equal contents the first due time stays."""

import pytest

from rmq_spark.client import Message, SendResult
from rmq_spark.protocol import sending
from rmq_spark.protocol.calls import Call

from ..seeding import LONG_MS, Slot, numbered


@pytest.fixture
def slot(new_slot):
    return new_slot("RangeMerge")


def test_a_message_is_due_its_time_range_after_redis_time(slot):
    before = slot.now_ms()
    slot.queue.send([b"m"], time_range=LONG_MS)
    assert before + LONG_MS <= slot.store[b"m"] <= slot.now_ms() + LONG_MS


def test_each_message_has_its_own_time_range(slot):
    messages = [Message(b"%d" % n, time_range=LONG_MS * n) for n in (1, 2, 2, 1, 3)]
    slot.queue.send(messages)
    store = slot.store
    assert store[b"2"] - store[b"1"] == store[b"3"] - store[b"2"] == LONG_MS


def test_the_first_due_time_stays(slot):
    slot.queue.send([b"m"], time_range=LONG_MS)
    due = slot.store[b"m"]
    assert slot.queue.send([b"m"], time_range=1) == SendResult(new=0, merged=1)
    assert slot.queue.send([b"m"], time_range=2 * LONG_MS) == SendResult(new=0, merged=1)
    assert slot.store == {b"m": due}


def test_equal_contents_of_one_call_merge_too(slot):
    assert slot.queue.send([b"m", b"n", b"m", b"m"], time_range=1) == SendResult(2, 2)
    assert slot.counters == {"accepted": 4, "merged": 2}


def test_a_message_waiting_as_a_retry_in_the_store_stays_a_retry(slot):
    slot.put({b"m": 5})
    assert slot.queue.send([b"m"], time_range=LONG_MS) == SendResult(0, 1)
    assert slot.store == {b"m": 5}


def test_a_copy_in_the_retry_queue_gives_way(slot):
    slot.put_waiting({b"m": 5_005, b"other": 5_005})
    assert slot.queue.send([b"m", b"m"], time_range=LONG_MS) == SendResult(new=0, merged=2)
    assert slot.store[b"m"] > 10**12
    assert slot.retry == {b"other": 5_005}


def test_a_content_in_flight_is_stored_again(slot):
    slot.put_due([b"m"])
    slot.claim()
    assert slot.queue.send([b"m"], time_range=1) == SendResult(new=1, merged=0)
    assert set(slot.store) == set(slot.prepare) == {b"m"}


def test_a_copy_in_the_dead_queue_is_left_alone(slot):
    slot.bury(b"m")
    assert slot.queue.send([b"m"], time_range=1) == SendResult(1, 0)
    assert slot.dead == {b"m": 1}


def test_every_group_gets_a_copy_and_the_first_groups_counts_are_returned(broker):
    slot = Slot(broker, "T", "RangeMerge", groups=("", "g"))
    other = Slot(broker, "T", "RangeMerge", group="g")
    slot.queue.send([b"m"], time_range=1)
    slot.redis.zrem(slot.keys.store(0), b"m")
    slot.count("accepted", -1)
    assert slot.queue.send([b"m"], time_range=1) == SendResult(new=1, merged=0)
    assert set(slot.store) == set(other.store) == {b"m"}
    assert other.counters == {"accepted": 2, "merged": 1}
    for each in (slot, other):
        each.check_conservation()


def test_groups_consume_independently(broker):
    slot = Slot(broker, "T", "RangeMerge", groups=("", "g"))
    other = Slot(broker, "T", "RangeMerge", group="g")
    slot.queue.send([b"m"], time_range=1)
    slot.wait_past(slot.store[b"m"])
    slot.claim("a")
    assert slot.commit("a").committed == 1
    assert other.claimed("b") == [b"m"]
    slot.queue.send([b"m"], time_range=1)
    assert set(other.store) == set(other.prepare) == {b"m"}
    for each in (slot, other):
        each.check_conservation()


def test_one_call_takes_3900_messages(slot):
    contents = numbered(3899)
    slot.put_waiting({contents[2000]: 5_003, contents[3898]: 5_003})
    pairs = [value for content in [*contents, contents[0]] for value in (1, content)]
    assert slot.queue.ask(sending.send, {}) == SendResult(0, 0)
    keys = slot.queue.queues.keys_of(0, "store retry stats bodies")
    assert slot.queue.server.pipeline([Call("send_first", keys, [3900, 0, 6, ""], pairs)]) == [
        [3897, 3, 0]
    ]
    assert sorted(slot.store) == contents
    assert slot.retry == {}
    assert slot.counters == {"accepted": 3902, "merged": 3}


def test_the_queue_sends_any_number_in_chunks(slot):
    assert slot.queue.send(numbered(10_000), time_range=1) == SendResult(10_000, 0)
    assert len(slot.store) == 10_000
