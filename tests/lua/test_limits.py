"""Limits of a topic: how much may wait in a slot, and for how long an equal message is refused."""

import pytest

from rmq_spark.client.messages import Message
from rmq_spark.errors import TopicFull, WrongKeyType
from rmq_spark.protocol import reading, sending
from rmq_spark.protocol.pages import first_entries
from rmq_spark.protocol.sending import SendResult
from rmq_spark.topics.types import TOPIC_TYPES
from tests.lua.staged import NAME, Stages

HOUR_MS = 3_600_000
TYPES = pytest.mark.parametrize("topic_type", TOPIC_TYPES)


def sent(slot, *contents, score=1000):
    """Sends contents in one call."""
    pairs = [value for content in contents for value in (score, content)]
    [answer] = slot.queue.ask(sending.send_parts, [(0, (pairs, ()))])
    return answer


def age(slot, *contents, by_ms=HOUR_MS):
    """Makes contents seem to have been accepted earlier."""
    for content in contents:
        slot.redis.zincrby(slot.keys.recent(0), -by_ms, content)


def recent(slot):
    return dict(slot.redis.zrange(slot.keys.recent(0), 0, -1, withscores=True))


# -- unique_for


@TYPES
def test_an_equal_message_is_not_accepted_again_even_after_its_commit(new_slot, topic_type):
    slot = new_slot(topic_type, unique_for="1h")
    assert sent(slot, b"a", b"b", b"a", score=50) == SendResult(2, 0, 1)
    assert sent(slot, b"b", b"c", score=90) == SendResult(1, 0, 1)
    scores = slot.store
    assert sorted(scores) == [b"a", b"b", b"c"]
    if topic_type != "RangeMerge":
        assert int(scores[b"b"]) == 50 < int(scores[b"c"]) == 90
        assert sorted(slot.claim().contents) == [b"a", b"b", b"c"]
        slot.commit()
    assert sent(slot, b"a", b"b") == SendResult(0, 0, 2)
    expected = {"accepted": 3, "repeated": 4}
    assert expected.items() <= slot.counters.items()


@TYPES
def test_when_its_time_is_over_it_is_accepted_and_counts_anew(new_slot, topic_type):
    slot = new_slot(topic_type, unique_for="1h")
    sent(slot, b"a", b"b")
    age(slot, b"a")
    age(slot, b"b", by_ms=HOUR_MS // 2)
    assert sent(slot, b"a", b"b") == SendResult(0, 1, 1)
    assert sent(slot, b"a", b"b") == SendResult(0, 0, 2)
    assert HOUR_MS - 60_000 < slot.redis.pttl(slot.keys.recent(0)) <= HOUR_MS


def test_what_may_be_accepted_again_is_forgotten_faster_than_messages_come(new_slot):
    slot = new_slot(unique_for="1h")
    sent(slot, *(b"old%d" % number for number in range(6)))
    age(slot, *recent(slot))
    sent(slot, b"a", b"b")
    assert len(recent(slot)) == 6 - 4 + 2
    sent(slot, b"c")
    assert sorted(recent(slot)) == [b"a", b"b", b"c"]


def test_of_a_key_the_first_payload_is_kept_and_bodies_stay_with_their_messages(new_slot):
    slot = new_slot(keyed=True, unique_for="1h")
    queue = slot.queue
    assert queue.send([Message("one", key="k"), Message("two", key="k")], delay=0) == SendResult(
        1, 0, 1
    )
    assert queue.send([Message("three", key="k"), Message("x", key="j")], delay=0) == SendResult(
        1, 0, 1
    )
    stored = first_entries(queue.pages("store", 0), 9)
    assert {one.key: one.content for one in stored} == {b"k": b"one", b"j": b"x"}


def test_all_groups_get_what_is_accepted_and_count_what_is_not(broker):
    broker.create("T", "FixedTime", 1, groups="default,audit", unique_for="1h")
    queue = broker.queue("T")
    queue.send(["a"], delay=0)
    assert queue.send(["a", "b"], delay=0) == SendResult(1, 0, 1)
    for group in ("default", "audit"):
        counters = broker.queue("T", group=group).figures().counters
        assert (counters["accepted"], counters["repeated"]) == (2, 1)


def test_a_call_of_3900_messages_is_taken_and_taken_as_repeated(new_slot):
    slot = new_slot("Priority", unique_for="1h", max_messages=10_000)
    contents = [b"%d" % number for number in range(3900)]
    assert sent(slot, *contents) == SendResult(3900, 0)
    assert sent(slot, *contents) == SendResult(0, 0, 3900)
    age(slot, *contents)
    assert sent(slot, *contents) == SendResult(0, 3900)


def test_a_key_of_another_type_is_named_and_nothing_is_sent(new_slot):
    slot = new_slot(unique_for="1h")
    slot.redis.hset(slot.keys.recent(0), "a", 1)
    with pytest.raises(WrongKeyType, match="recent_"):
        slot.queue.send(["a"], delay=0)
    assert slot.store == {}


def test_a_published_stage_leaves_out_what_is_repeated(new_slot):
    slot = new_slot(unique_for="1h")
    stages = Stages(slot)
    sent(slot, b"a")
    assert stages.put([b"a", b"b", b"b", b"c"]) == 4
    assert stages.publish({NAME: 4}) == SendResult(2, 0, 2)
    assert stages.publish({NAME: 4}) == SendResult(0, 0)
    assert sorted(slot.store) == [b"a", b"b", b"c"]


def test_an_occurrence_that_is_repeated_is_noted_and_sends_nothing(new_slot):
    slot = new_slot(unique_for="1h")
    for notes in (("", "1 1"), ("1 1", "1 2")):
        answer = slot.queue.ask(sending.occur, 0, "nightly", notes, (500, b"m", b""))
        assert answer == (True, notes[1], notes[0] != "")
    assert (slot.counters["accepted"], slot.counters["repeated"]) == (1, 1)


# -- max_messages, max_bytes


@TYPES
def test_a_full_slot_refuses_what_is_new_and_changes_nothing(new_slot, topic_type):
    slot = new_slot(topic_type, max_messages=3, unique_for="1h")
    assert sent(slot, b"a", b"b") == SendResult(2, 0)
    before = slot.dump()
    refused = sent(slot, b"c", b"d")
    assert isinstance(refused, TopicFull)
    assert (refused.slot, refused.group, refused.waiting, refused.unit) == (0, "", 2, "messages")
    assert slot.dump() == before
    assert sent(slot, b"c", b"c") == SendResult(1, 0, 1)
    assert isinstance(sent(slot, b"d"), TopicFull)
    assert sent(slot, b"a", b"c") == SendResult(0, 0, 2)


@TYPES
def test_what_merges_always_finds_room(new_slot, topic_type):
    slot = new_slot(topic_type, max_messages=3, max_bytes="1gb")
    sent(slot, b"a", b"b", b"c")
    assert sent(slot, b"c", b"a", b"c") == SendResult(0, 3)
    slot.queue.cancel([b"c"])
    assert sent(slot, b"d", b"d") == SendResult(1, 1)
    assert isinstance(sent(slot, b"a", b"e"), TopicFull)


def test_a_slot_above_its_limit_still_knows_what_is_repeated(new_slot):
    slot = new_slot(unique_for="1h")
    sent(slot, b"a", b"b", b"c")
    slot.broker.alter(slot.queue.definition.name, max_messages=1)
    slot.queue.distrust()
    slot.queue.refresh()
    assert sent(slot, b"a", b"b") == SendResult(0, 0, 2)
    assert isinstance(sent(slot, b"d"), TopicFull)


def test_retries_wait_too_and_merge(slot):
    slot.broker.alter(slot.queue.definition.name, max_messages=2)
    slot.queue.distrust()
    slot.queue.refresh()
    slot.put_waiting({b"again": 9_000_000_005_003})
    slot.queue.send(["a"], delay=0)
    assert isinstance(sent(slot, b"b"), TopicFull)
    assert sent(slot, b"again") == SendResult(0, 1)


def test_a_claim_makes_room_and_what_comes_back_is_never_refused(new_slot):
    slot = new_slot(max_messages=2)
    sent(slot, b"a", b"b")
    slot.claim()
    assert sent(slot, b"c", b"d") == SendResult(2, 0)
    slot.rollback([b"a", b"b"])
    assert len(slot.store) == 4
    assert isinstance(sent(slot, b"e"), TopicFull)
    assert sent(slot, b"a", b"d") == SendResult(0, 2)


def test_each_slot_has_its_share_and_each_group_is_named(broker):
    broker.create("T", "FixedTime", 4, groups="default,audit", max_messages=11)
    queue = broker.queue("T")
    contents = [f"{number}" for number in range(200)]
    with pytest.raises(TopicFull, match=r"group default holds 2 of the 2 messages.*=11,") as full:
        queue.send(contents, delay=0)
    assert full.value.sent == SendResult(8, 0)
    with broker.consumer("T", "a") as reader:
        for batch in reader.batches(wait=False):
            batch.commit()
    with pytest.raises(TopicFull, match="group audit holds 2 of the 2") as full:
        queue.send([f"other {content}" for content in contents], delay=0)
    assert (full.value.group, full.value.sent) == ("audit", SendResult(0, 0))
    counts = [
        queue.of_group(group).ask(reading.waiting, queue.slots, "messages")
        for group in ("", "audit")
    ]
    assert counts == [[0] * 4, [2] * 4]


def test_bytes_are_about_those_of_redis_memory(new_slot):
    slot = new_slot(max_bytes="20kb")
    contents = [b"%d" % number + b"x" * 1000 for number in range(50)]
    taken = next(n for n, one in enumerate(contents) if isinstance(sent(slot, one), TopicFull))
    assert 15 < taken < 22
    [waiting] = slot.queue.ask(reading.waiting, [0], "bytes")
    real = slot.redis.memory_usage(slot.keys.store(0), samples=0)
    assert 20 * 1024 <= waiting < 22 * 1024
    assert 0.8 < waiting / real < 1.25
    refused = sent(slot, contents[49])
    assert (refused.unit, refused.waiting) == ("bytes", waiting)
    assert "20480 bytes that are its share of max_bytes=20480" in str(refused)
    assert sent(slot, contents[0]) == SendResult(0, 1)


def test_bytes_of_payloads_count(new_slot):
    slot = new_slot(keyed=True, max_bytes="20kb")
    messages = [Message("x" * 1000, key=f"{number}") for number in range(50)]
    slot.queue.send(messages[:10], delay=0)
    slot.queue.send(messages[10:], delay=0)  # the messages that cross the limit find room
    with pytest.raises(TopicFull, match="bytes"):
        slot.queue.send([Message("x", key="new")], delay=0)


def test_bytes_of_retries_count(new_slot):
    slot = new_slot(max_bytes="20kb")
    slot.put_waiting({b"%d" % number + b"x" * 1000: 5003 for number in range(30)})
    with pytest.raises(TopicFull, match="bytes"):
        slot.queue.send(["a"], delay=0)


def test_an_empty_slot_takes_a_call_of_a_sender_that_knows_an_earlier_limit(new_slot):
    """Else a sender that waits for room would wait for ever."""
    slot = new_slot(max_messages=2)
    assert sent(slot, b"a", b"b", b"c") == SendResult(3, 0)
    assert isinstance(sent(slot, b"d"), TopicFull)


def test_a_slot_without_room_stages_nothing_and_what_is_staged_is_published(new_slot):
    slot = new_slot(max_messages=4)
    stages = Stages(slot)
    assert stages.put([b"a", b"b", b"c", b"d", b"e"]) == 5  # in parts that each found room
    sent(slot, b"x", b"y", b"z", b"w")
    with pytest.raises(TopicFull):
        stages.put([b"f"], held=5)
    assert stages.put([b"w"], held=5) == 6
    assert stages.publish({NAME: 6}) == SendResult(5, 1)
    assert len(slot.store) == 9


def test_an_occurrence_without_room_is_not_noted(new_slot):
    slot = new_slot(max_messages=1)
    slot.queue.send(["a"], delay=0)
    with pytest.raises(TopicFull):
        slot.queue.ask(sending.occur, 0, "nightly", ("", "1 1"), (500, b"m", b""))
    assert not slot.redis.exists(slot.keys.schedules(0))
    slot.queue.cancel(["a"])
    answer = slot.queue.ask(sending.occur, 0, "nightly", ("", "1 1"), (500, b"m", b""))
    assert answer == (True, "1 1", False)
