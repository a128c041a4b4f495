"""What may be sent, and what is refused before anything goes."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from rmq_spark.client import Message
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.protocol import sending
from rmq_spark.topics.types import TOPIC_TYPES

from ..seeding import LONG_MS, numbered

RANGE, PRIORITY, FIXED = "RangeMerge", "Priority", "FixedTime"
ACCEPTED = {
    RANGE: "whole milliseconds, 1 to 4503599627370496, or a duration such as '30s'",
    PRIORITY: "a whole number, 17 to 9007199254740992",
    FIXED: "ms since 1970, 0 (now) to 9007199254740992, or a datetime with a time zone",
}
NAMES = {RANGE: "time_range", PRIORITY: "priority", FIXED: "fixed_time"}


@pytest.mark.parametrize(
    ("topic_type", "value"),
    [
        *((RANGE, value) for value in (0, -1, None, 1.5, "5", "0s", "3 weeks", True, 2**52 + 1)),
        *((RANGE, value) for value in (timedelta(microseconds=999), timedelta(seconds=-1))),
        *((PRIORITY, value) for value in (16, 0, -1, None, 16.5, 17.0, "17", True, 2**53 + 1)),
        *((PRIORITY, value) for value in (timedelta(hours=1), datetime(2030, 1, 1, tzinfo=UTC))),
        (RANGE, datetime(2030, 1, 1, tzinfo=UTC)),
        (FIXED, timedelta(hours=1)),
        *((FIXED, value) for value in (None, -1, 1.5, "now", 2**53 + 1, datetime(2030, 1, 1))),
    ],
)
def test_a_bad_value_is_refused_naming_index_value_and_what_is_accepted(
    new_slot, topic_type, value
):
    slot = new_slot(topic_type)
    name = NAMES[topic_type]
    good = {RANGE: 1, PRIORITY: 17, FIXED: 0}[topic_type]
    messages = [Message(b"good", **{name: good}), Message(b"bad", **{name: value})]
    with pytest.raises(InvalidMessage) as raised:
        slot.queue.send(messages)
    instead = "; or a delay in its place" if value is None and topic_type == FIXED else ""
    assert str(raised.value) == (
        f"Message 1 of topic T0: {name} is {value!r}. Accepted for a {topic_type} topic: "
        f"{ACCEPTED[topic_type]}{instead}. Nothing was sent."
    )
    assert slot.store == {}


@pytest.mark.parametrize(
    ("topic_type", "value"),
    [
        *((RANGE, value) for value in (1, 2**52, timedelta(milliseconds=1), timedelta(days=400))),
        *((RANGE, value) for value in ("1ms", "1.5h", " 30 S ")),
        *((PRIORITY, value) for value in (17, 2**53)),
        *((FIXED, value) for value in (0, 16, 17, 2**53, datetime(2030, 1, 1, tzinfo=UTC))),
    ],
)
def test_values_at_the_bounds_are_accepted(new_slot, topic_type, value):
    slot = new_slot(topic_type)
    assert slot.queue.send([b"m"], **{NAMES[topic_type]: value}).new == 1
    assert slot.store[b"m"] >= 17


@pytest.mark.parametrize("content", [None, 5, 1.5, bytearray(b"m"), ["m"], {"content": "m"}])
def test_a_content_that_is_neither_bytes_nor_text_is_refused(slot, content):
    with pytest.raises(InvalidMessage, match=r"Message 2: content is .* Accepted: bytes or str"):
        slot.queue.send([b"good", "good too", content], fixed_time=5)
    assert slot.store == {}


def test_a_text_that_utf_8_cannot_hold_is_refused(slot):
    with pytest.raises(InvalidMessage, match=r"Message 1: content is .* Accepted"):
        slot.queue.send(["good", "\ud800"], fixed_time=5)
    assert slot.store == {}


def test_a_slot_basis_that_is_neither_bytes_nor_text_is_refused(slot):
    with pytest.raises(InvalidMessage, match=r"Message 0: slot_basis is 5. Accepted: bytes or str"):
        slot.queue.send([Message(b"m", slot_basis=5)], fixed_time=5)
    assert slot.store == {}


def test_nothing_is_sent_when_the_last_of_many_is_bad(slot):
    with pytest.raises(InvalidMessage, match="Message 5000"):
        slot.queue.send([*numbered(5000), None], fixed_time=5)
    assert slot.store == {}


def test_a_message_that_a_generator_fails_to_make_sends_none(slot):
    def messages():
        yield b"good"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        slot.queue.send(messages(), fixed_time=5)
    assert slot.store == {}


def test_texts_are_sent_as_utf_8(slot):
    slot.queue.send(["gr\u00fc\u00df", "gr\u00fc\u00df".encode()], fixed_time=5)
    assert list(slot.store) == ["gr\u00fc\u00df".encode()]


def test_the_messages_own_value_goes_before_that_of_the_call(new_slot):
    slot = new_slot(PRIORITY)
    slot.queue.send([Message(b"own", priority=99), b"default"], priority=50)
    assert slot.store == {b"own": 99, b"default": 50}


@pytest.mark.parametrize("time_ms", [0, 3, 16])
def test_a_fixed_time_below_17_ms_is_no_retry_count_but_now(slot, time_ms):
    before = slot.now_ms()
    slot.queue.send([b"m"], fixed_time=time_ms)
    assert before <= slot.store[b"m"] <= slot.now_ms()
    assert slot.claim().retries_left == [16]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-7))])
@pytest.mark.parametrize("ms", [17, 18, 999, 1_234_567_890_123, 253_402_300_799_999])
def test_a_time_is_exact_to_the_millisecond_in_any_zone(slot, zone, ms):
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    slot.queue.send([b"m"], fixed_time=when.astimezone(zone) if ms < 10**14 else when)
    assert slot.store == {b"m": ms}


def test_a_time_in_the_past_is_due_at_once(slot):
    slot.queue.send([b"m"], fixed_time=slot.now_ms() - 5)
    assert slot.claimed() == [b"m"]


def test_a_time_in_the_past_is_refused_where_asked_for(slot):
    now = slot.now_ms()
    with pytest.raises(InvalidMessage, match=rf"Message 1 .*fixed_time {now} is not after now"):
        slot.queue.send(
            [Message(b"future", fixed_time=now + 10**6), Message(b"past", fixed_time=now)],
            past_fixed_time="fail",
        )
    assert slot.store == {}
    assert slot.queue.send([b"m"], fixed_time=now + 10**6, past_fixed_time="fail").new == 1


def test_a_delay_is_counted_from_when_the_message_is_stored(slot):
    before = slot.now_ms()
    slot.queue.send([Message(b"own", delay=timedelta(hours=2)), b"default"], delay=LONG_MS)
    now = slot.now_ms()
    assert before + LONG_MS <= slot.store[b"default"] <= now + LONG_MS
    assert before + 2 * LONG_MS <= slot.store[b"own"] <= now + 2 * LONG_MS


@pytest.mark.parametrize("delay", [-1, 1.5, "5", "5 weeks", True, 2**52 + 1, timedelta(seconds=-1)])
@pytest.mark.parametrize("default", [{}, {"fixed_time": 5}])
def test_a_bad_delay_is_refused_naming_index_value_and_what_is_accepted(slot, delay, default):
    with pytest.raises(InvalidMessage) as raised:
        slot.queue.send([Message(b"good", delay=0), Message(b"bad", delay=delay)], **default)
    assert str(raised.value) == (
        f"Message 1 of topic T0: delay is {delay!r}. Accepted for a FixedTime topic: whole "
        "milliseconds, 0 to 4503599627370496, or a duration such as '30s'. Nothing was sent."
    )
    assert slot.store == {}


def test_one_message_in_place_of_a_list_is_refused(slot):
    for one in (Message(b"m"), b"m", "m"):
        with pytest.raises(InvalidMessage, match=rf"a list .* single {type(one).__name__}\."):
            slot.queue.send(one, fixed_time=5)
    assert slot.store == {}


def test_a_delay_and_a_fixed_time_exclude_each_other(slot):
    with pytest.raises(InvalidMessage, match=r"Message 1 .*delay is 7 and fixed_time is 5\. Acc"):
        slot.queue.send([b"good", Message(b"both", fixed_time=5, delay=7)], delay=1)
    with pytest.raises(
        InvalidMessage, match=r"arguments of the call, .*delay is 7 and fixed_time is 5\."
    ):
        slot.queue.send([b"m"], fixed_time=5, delay=7)
    assert slot.store == {}


def test_the_messages_own_time_or_delay_goes_before_the_other_of_the_call(slot):
    slot.queue.send([Message(b"own time", fixed_time=99), b"delayed"], delay=LONG_MS)
    slot.queue.send([Message(b"own delay", delay=LONG_MS), b"timed"], fixed_time=99)
    stored = slot.store
    assert stored[b"own time"] == stored[b"timed"] == 99
    assert min(stored[b"delayed"], stored[b"own delay"]) > slot.now_ms()


@pytest.mark.parametrize(
    ("topic_type", "other"),
    [
        (RANGE, "delay"),
        (RANGE, "priority"),
        (RANGE, "fixed_time"),
        (PRIORITY, "delay"),
        (PRIORITY, "time_range"),
        (PRIORITY, "fixed_time"),
        (FIXED, "time_range"),
        (FIXED, "priority"),
    ],
)
def test_a_value_of_messages_of_another_type_is_refused(new_slot, topic_type, other):
    slot, name = new_slot(topic_type), NAMES[topic_type]
    takes = "fixed_time or delay" if topic_type == FIXED else name
    text = f"{other} is 500, but a {topic_type} topic takes {takes} instead"
    given = {other: 500}
    with pytest.raises(InvalidMessage, match=f"Message 1 of topic T0: {text}"):
        slot.queue.send([b"good", Message(b"m", **given)], **{name: 50})
    with pytest.raises(InvalidMessage, match=text):
        slot.queue.send([Message(b"m", **{name: 50})], **given)
    with pytest.raises(InvalidMessage, match=rf"{text}.*Nothing was requeued"):
        slot.queue.requeue([b"m"], **given, **{name: 50})
    assert slot.store == {}


def test_a_delay_is_never_in_the_past(slot):
    slot.queue.send([Message(b"m", delay=0), b"n"], delay=5, past_fixed_time="fail")
    assert slot.store.keys() == {b"m", b"n"}


@pytest.mark.parametrize("delay", [0, LONG_MS, timedelta(hours=1)])
def test_dead_messages_come_back_after_a_delay(slot, delay):
    slot.bury(b"m")
    before = slot.now_ms()
    assert slot.queue.requeue([b"m"], delay=delay) == 1
    wait_ms = LONG_MS if delay else 0
    assert before + wait_ms <= slot.store[b"m"] <= slot.now_ms() + wait_ms


def test_a_requeue_takes_a_delay_or_a_fixed_time(slot):
    slot.bury(b"m")
    with pytest.raises(InvalidMessage, match="delay is 7 and fixed_time is 5"):
        slot.queue.requeue([b"m"], fixed_time=5, delay=7)
    with pytest.raises(InvalidMessage, match=r"The requeue .* delay is -1.* was requeued\."):
        slot.queue.requeue([b"m"], delay=-1)
    with pytest.raises(InvalidMessage, match=r"The move .* fixed_time is 'now'.* was moved\."):
        slot.queue.move([b"m"], fixed_time="now")
    assert slot.store == {}


def test_past_fixed_time_is_send_or_fail(slot):
    with pytest.raises(InvalidOption, match=r"past_fixed_time='drop'.*send, fail"):
        slot.queue.send([b"m"], fixed_time=5, past_fixed_time="drop")


def test_nothing_to_send_is_no_error(slot):
    assert slot.queue.send([]) == slot.queue.send(iter(())) == slot.queue.ask(sending.send, {})


def test_messages_with_one_slot_basis_share_a_slot(broker):
    broker.create("T", FIXED, 64)
    queue = broker.queue("T")
    queue.send([Message(c, slot_basis="order-7") for c in numbered(50)], fixed_time=5)
    queue.send(numbered(50), slot_basis=b"order-7", fixed_time=5)
    assert queue.figures().counters == {**queue.figures().counters, "accepted": 100, "merged": 50}
    slot = queue.definition.slot_of(b"order-7")
    assert queue.server.command("ZCARD", queue.keys.store(slot)) == 50


def test_without_a_slot_basis_the_content_chooses_the_slot(broker):
    broker.create("T", FIXED, 4)
    queue = broker.queue("T")
    queue.send(numbered(100), fixed_time=5)
    for slot in range(4):
        expected = [c for c in numbered(100) if queue.definition.slot_of(c) == slot]
        assert queue.server.client.zrange(queue.keys.store(slot), 0, -1) == expected


def test_an_empty_slot_basis_is_one(broker):
    broker.create("T", FIXED, 64)
    queue = broker.queue("T")
    queue.send([Message(c, slot_basis="") for c in numbered(20)], fixed_time=5)
    assert queue.server.command("ZCARD", queue.keys.store(0)) == 20


@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
@pytest.mark.parametrize("slot_basis", [None, "one"])
def test_contents_with_all_else_in_common_are_sent_like_messages_with_values(
    broker, topic_type, slot_basis
):
    """What they have in common is checked and packed once."""
    contents = [b"", "one", b"two" * 20, "ü" * 200, bytes(70_000), *numbered(300)]
    value = {"RangeMerge": {"time_range": 1}, "Priority": {"priority": 20}}
    common = value.get(topic_type, {"fixed_time": 1000})
    stored = []
    for name, messages, more in (
        ("Alike", contents, common),
        ("Each", [Message(content, **common) for content in contents], {}),
    ):
        broker.create(name, topic_type, 8)
        queue = broker.queue(name)
        result = queue.send(messages, slot_basis=slot_basis, **more)
        assert (result.new, result.merged) == (305, 0)
        assert queue.send(iter(contents), slot_basis=slot_basis, **common).merged == 305
        found = {}
        for slot in queue.slots:
            for page in queue.pages("store", slot):
                found |= dict.fromkeys(page.contents, slot)
        stored.append(found)
    assert stored[0] == stored[1]
    assert len(stored[0]) == 305


@pytest.mark.parametrize(
    "send",
    [
        {"fixed_time": list(range(10**5))},
        {"slot_basis": 10**5 * [1]},
        {"fixed_time": 501 * "x"},
        {"fixed_time": 10**5 * b"x"},
    ],
)
def test_an_error_quotes_the_beginning_of_a_long_value(broker, send):
    """Failed before: a list was quoted whole, and the end of a text was left out unsaid."""
    broker.create("T", "FixedTime", 1)
    with pytest.raises((InvalidMessage, InvalidOption)) as caught:
        broker.queue("T").send(["m"], **{"fixed_time": 1, **send})
    assert len(str(caught.value)) < 1000
    assert "..." in str(caught.value)


class Unprintable:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("value", [10**5000, Unprintable()], ids=["long", "unprintable"])
def test_a_value_whose_repr_fails_is_refused_all_the_same(broker, value):
    """Seen: a ValueError of Python, "Exceeds the limit (4300 digits)", in place of the error."""
    broker.create("P", "Priority", 1)
    broker.create("K", "FixedTime", 1, keyed=True)
    shown = f"a value of type {type(value).__name__} that cannot be shown"
    with pytest.raises(InvalidMessage, match=f"priority is {shown}. Accepted"):
        broker.queue("P").send([b"m"], priority=value)
    with pytest.raises(InvalidMessage, match=f"key is {shown}. Accepted"):
        broker.queue("K").send([Message(b"m", key=value)], fixed_time=0)
