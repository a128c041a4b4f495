"""FixedTime: times that have passed, delays, and since when a slot has had due messages."""

import pytest

from rmq_spark.client import Message, SendResult

from ..seeding import FAR_MS, LONG_MS, Slot, numbered, requeue

YEAR_2000 = 946_684_800_000


def send(slot, contents, time_ms):
    return slot.queue.send(contents, fixed_time=time_ms)


def oldest_ms(slot):
    return slot.queue.figures().store.oldest_ms


def later(slot):
    """Waits for another millisecond, and returns it."""
    slot.wait_past(slot.now_ms())
    return slot.now_ms()


@pytest.mark.parametrize("contents", [[b"m"], [b"0", b"\xa10", b"10", b"m"], numbered(3900)])
def test_a_time_of_0_is_now_and_nothing_else_changes(slot, contents):
    """Whatever bytes the contents have: these look as the time does."""
    before = slot.now_ms()
    assert send(slot, contents, 0) == SendResult(len(contents), 0)
    assert slot.store.keys() == set(contents)
    assert all(before <= score <= slot.now_ms() for score in slot.store.values())


def test_only_the_times_of_0_are_now(slot):
    times = {b"0": 1000, b"\xa10": 100, b"at once": 0, b"future": FAR_MS}
    slot.queue.send([Message(content, fixed_time=time) for content, time in times.items()])
    stored = slot.store
    assert stored.pop(b"at once") >= slot.now_ms() - LONG_MS
    assert stored == {b"0": 1000, b"\xa10": 100, b"future": FAR_MS}


def test_what_is_due_at_once_follows_what_was_sent_or_due_before_it(slot):
    send(slot, [b"z"], slot.now_ms() - 5)
    for content in (b"y", b"x"):
        send(slot, [content], 0)
        later(slot)
    assert slot.claimed() == [b"z", b"y", b"x"]


def test_a_message_that_waits_for_its_time_is_due_at_once_when_it_is_sent_so(slot):
    send(slot, [b"m"], FAR_MS)
    assert send(slot, [b"m"], 0) == SendResult(0, 1)
    assert slot.claimed() == [b"m"]


def test_every_group_has_the_same_now(broker):
    groups = [Slot(broker, "T", "FixedTime", groups=("", "g"), group=name) for name in ("", "g")]
    groups[0].queue.send([Message(b"m", fixed_time=0), Message(b"n", delay=LONG_MS)])
    assert groups[0].store == groups[1].store
    assert groups[0].store[b"n"] - groups[0].store[b"m"] == LONG_MS


@pytest.mark.parametrize("delay", [1, 16, 17, LONG_MS, 2**52])
def test_a_message_is_due_its_delay_after_redis_time(slot, delay):
    before = slot.now_ms()
    assert slot.queue.send([b"m"], delay=delay) == SendResult(1, 0)
    assert before + delay <= slot.store[b"m"] <= slot.now_ms() + delay
    assert oldest_ms(slot) is None or delay < LONG_MS


def test_each_message_has_its_own_delay_or_time(slot):
    delays = {b"3": 3, b"1": 1, b"-1": 1, b"also 3": 3, b"0": 0}
    messages = [Message(content, delay=LONG_MS * many) for content, many in delays.items()]
    slot.queue.send(
        [Message(b"past", fixed_time=1000), *messages, Message(b"far", fixed_time=FAR_MS)]
    )
    stored = slot.store
    assert (stored.pop(b"past"), stored.pop(b"far")) == (1000, FAR_MS)
    now = stored[b"0"]
    assert stored == {content: now + LONG_MS * many for content, many in delays.items()}


def test_each_send_with_a_delay_moves_the_due_time(slot):
    """Debouncing: a message comes when nobody has sent it for that long."""
    for delay in (LONG_MS, 3 * LONG_MS, 2 * LONG_MS):
        before = slot.now_ms()
        slot.queue.send([b"m"], delay=delay)
        assert before + delay <= slot.store[b"m"] <= slot.now_ms() + delay
    assert slot.counters == {"accepted": 3, "merged": 2}
    assert slot.queue.send([b"m"], delay=0) == SendResult(0, 1)
    assert slot.claimed() == [b"m"]


def test_of_equal_messages_in_one_call_the_last_decides(slot):
    messages = [(FAR_MS, None), (None, LONG_MS), (None, 1), (1000, None), (None, LONG_MS)]
    before = slot.now_ms()
    sent = slot.queue.send([Message(b"m", fixed_time=t, delay=d) for t, d in messages])
    assert sent == SendResult(1, 4)
    assert before + LONG_MS <= slot.store[b"m"] <= slot.now_ms() + LONG_MS


def test_a_message_that_was_due_and_is_sent_with_a_delay_is_late_no_more(slot):
    send(slot, [b"m", b"n"], 1000)
    since = oldest_ms(slot)
    slot.queue.send([b"m"], delay=LONG_MS)
    assert oldest_ms(slot) == since
    slot.queue.send([b"n"], delay=LONG_MS)
    assert oldest_ms(slot) is None
    now = later(slot)
    send(slot, [b"n"], 1000)
    assert oldest_ms(slot) >= now


@pytest.mark.parametrize("count", [1, 3900, 10_000])
def test_any_number_of_messages_has_delays(slot, count):
    delays = [LONG_MS + n % 7 for n in range(count)]
    messages = [Message(c, delay=d) for c, d in zip(numbered(count), delays, strict=True)]
    before = slot.now_ms()
    assert slot.queue.send(messages) == SendResult(count, 0)
    stored = slot.store
    sent_ms = [stored[c] - d for c, d in zip(numbered(count), delays, strict=True)]
    assert before <= min(sent_ms) <= max(sent_ms) <= slot.now_ms()


def store_by_requeue(slot, time_ms):
    slot.bury(b"m")
    assert requeue(slot.queue, 0, [b"m"], max(time_ms, 17)) == 1


WAYS = {"send": lambda slot, time_ms: send(slot, [b"m"], time_ms), "requeue": store_by_requeue}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("time_ms", [0, 17, 1000, YEAR_2000])
def test_a_message_with_a_time_long_past_is_late_only_since_it_was_stored(slot, way, time_ms):
    before = slot.now_ms()
    WAYS[way](slot, time_ms)
    assert before <= oldest_ms(slot) <= slot.now_ms()
    if time_ms and way == "send":
        assert slot.store == {b"m": time_ms}


def test_what_waits_for_its_time_is_late_since_that_time(slot):
    send(slot, [b"m"], 1000)
    slot.claim()
    due = slot.now_ms() + 300
    send(slot, [b"n"], due)
    assert oldest_ms(slot) is None
    slot.wait_past(due + 5)
    assert oldest_ms(slot) == due


@pytest.mark.parametrize("more_ms", range(16))
def test_a_past_time_hides_no_lateness_that_was_there(slot, more_ms):
    really_late = slot.now_ms() - 90_000 - more_ms  # as if sent before that
    slot.put({b"m": really_late})
    send(slot, [b"after"], really_late + 10)
    assert oldest_ms(slot) == really_late
    send(slot, [b"n"], 1000)
    assert oldest_ms(slot) == really_late
    send(slot, [b"o"], YEAR_2000)
    assert oldest_ms(slot) == really_late
    assert slot.claimed(limit=2) == [b"n", b"o"]
    assert oldest_ms(slot) == really_late


def test_lateness_goes_on_while_something_is_due(slot):
    send(slot, [b"m", b"n"], YEAR_2000)
    since = oldest_ms(slot)
    later(slot)
    send(slot, [b"o"], 1000)
    assert oldest_ms(slot) == since
    assert slot.claimed(limit=2) == [b"o", b"m"]
    send(slot, [b"p"], YEAR_2000)
    assert oldest_ms(slot) == since


ENDS = {
    "claim": lambda slot: slot.claim(),
    "cancel": lambda slot: slot.queue.cancel([b"m"]),
    "sent for later": lambda slot: send(slot, [b"m"], FAR_MS),
    "sent with a delay": lambda slot: slot.queue.send([b"m"], delay=LONG_MS),
}


@pytest.mark.parametrize("end", ENDS)
def test_when_nothing_is_due_any_more_lateness_begins_anew(slot, end):
    send(slot, [b"m"], 1000)
    ENDS[end](slot)
    assert oldest_ms(slot) is None
    now = later(slot)
    send(slot, [b"n"], 1000)
    since = oldest_ms(slot)
    assert since >= now
    later(slot)
    assert oldest_ms(slot) == since


def test_retries_are_not_what_is_late(slot):
    slot.put({b"retried": 3})
    before = slot.now_ms()
    send(slot, [b"m"], 1000)
    assert oldest_ms(slot) >= before


def test_a_message_whose_time_is_set_back_is_late_since_then(slot):
    send(slot, [b"m"], FAR_MS)
    now = later(slot)
    send(slot, [b"m"], 1000)
    assert oldest_ms(slot) >= now


def test_the_earliest_time_of_a_call_counts_wherever_it_stands(slot):
    times = [FAR_MS, YEAR_2000, 1000, 0, FAR_MS]
    messages = [Message(b"%d" % at, fixed_time=time) for at, time in enumerate(times)]
    before = slot.now_ms()
    slot.queue.send([Message(b"delayed", delay=LONG_MS), *messages])
    assert oldest_ms(slot) >= before


def test_each_group_has_its_own_lateness(broker):
    groups = [Slot(broker, "T", "FixedTime", groups=("", "g"), group=name) for name in ("", "g")]
    send(groups[0], [b"m"], 1000)
    groups[0].claim()
    first, now = oldest_ms(groups[1]), later(groups[0])
    send(groups[0], [b"n"], 500)
    assert oldest_ms(groups[1]) == first < now <= oldest_ms(groups[0])


def test_a_clock_that_was_set_back_makes_nothing_due_later_than_now(slot):
    slot.count("dueSince", FAR_MS)
    slot.put({b"m": 1000})
    before = slot.now_ms()
    assert before <= oldest_ms(slot) <= slot.now_ms()


@pytest.mark.parametrize(("topic_type", "value"), [("Priority", 500), ("RangeMerge", 1)])
def test_other_types_note_nothing(new_slot, topic_type, value):
    slot = new_slot(topic_type)
    slot.queue.send([b"m"], **{slot.queue.definition.type.keyword: value})
    requeue(slot.queue, 0, [b"m"], 500)
    slot.bury(b"n")
    assert requeue(slot.queue, 0, [b"n"], 500) == 1
    assert slot.redis.hget(slot.keys.stats(0), "dueSince") is None


@pytest.mark.parametrize("times", [[FAR_MS], [0], [FAR_MS, 0]])
def test_times_that_have_not_passed_note_nothing(slot, times):
    slot.queue.send([Message(b"%d" % time, fixed_time=time) for time in times])
    slot.queue.send([Message(b"%d" % delay, delay=delay) for delay in (0, 1, LONG_MS)])
    assert slot.redis.hget(slot.keys.stats(0), "dueSince") is None
