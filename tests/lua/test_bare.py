"""Messages with and without a body in one call."""

import pytest

from rmq_spark.client import Message
from rmq_spark.protocol import sending
from rmq_spark.protocol.bodies import Body
from rmq_spark.topics.types import TOPIC_TYPES

from ..seeding import FAR_MS, LONG_MS, Slot
from .staged import NAME, Stages

OLD, NEW = Body(headers=[("h", b"old")]).pack(), Body(headers=[("h", b"new")]).pack()
VALUES = {"time_range": LONG_MS, "priority": 50, "fixed_time": FAR_MS}


@pytest.fixture(params=TOPIC_TYPES)
def slot(new_slot, request):
    return new_slot(request.param)


def bodies(slot):
    return slot.redis.hgetall(slot.keys.bodies(0))


def pairs_of(contents, score=1000):
    return [value for content in contents for value in (score, content)]


def send(slot, *sent):
    """Sends contents and their bodies in one call; an empty body is none."""
    listed = [value for pair in sent for value in pair]
    return slot.queue.ask(sending.send, {0: pairs_of(listed[::2])}, {0: listed})


def test_only_messages_that_have_headers_get_a_body(slot):
    slot.queue.send([Message(b"a", headers={"h": b"new"}), Message(b"b")], **slot.value_of(VALUES))
    assert bodies(slot) == {b"a": NEW}


def test_a_body_that_waits_is_replaced_by_another_and_by_none(slot):
    send(slot, (b"a", OLD), (b"b", OLD), (b"c", OLD))
    slot.queue.send([Message(b"a", headers={"h": b"new"}), Message(b"b")], **slot.value_of(VALUES))
    assert bodies(slot) == {b"a": NEW, b"c": OLD}


def test_so_is_that_of_a_message_that_waits_for_a_retry(slot):
    slot.put_waiting({b"a": 5_004, b"b": 5_004})
    slot.redis.hset(slot.keys.bodies(0), mapping={b"a": OLD, b"b": OLD})
    send(slot, (b"a", b""), (b"b", NEW))
    assert (slot.retry, bodies(slot)) == ({}, {b"b": NEW})


def test_of_equal_messages_the_body_of_the_last_counts(slot):
    send(slot, (b"a", OLD), (b"b", b""), (b"c", b""), (b"c", OLD), (b"a", b""), (b"b", NEW))
    assert bodies(slot) == {b"b": NEW, b"c": OLD}


def test_where_all_are_empty_no_body_is_left(slot):
    send(slot, (b"a", OLD), (b"b", OLD))
    send(slot, (b"a", b""), (b"b", b""))
    assert bodies(slot) == {}
    assert slot.redis.exists(slot.keys.bodies(0)) == 0


def test_more_than_one_call_takes(slot):
    sent = [Message(b"%d" % n, headers={"h": b"new"} if n % 2 else None) for n in range(9000)]
    slot.queue.send(sent, **slot.value_of(VALUES))
    assert bodies(slot) == {b"%d" % n: NEW for n in range(1, 9000, 2)}


def test_all_groups_get_the_same(broker):
    slots = [Slot(broker, "T", group=group, groups=["one", "two"]) for group in ("one", "two")]
    send(slots[0], (b"a", OLD), (b"b", OLD))
    send(slots[0], (b"a", b""), (b"b", NEW))
    assert [bodies(slot) for slot in slots] == [{b"b": NEW}] * 2


def test_a_stage_publishes_them(slot):
    send(slot, (b"a", OLD), (b"b", OLD))
    stages, held = Stages(slot), {0: 0}
    stages.stage(NAME, {0: pairs_of([b"a", b"b"])}, held, {0: [b"a", b"", b"b", NEW]})
    stages.stage(NAME, {0: pairs_of([b"c"])}, held, {0: [b"c", b""]})
    stages.publish({NAME: 3})
    assert bodies(slot) == {b"b": NEW}


def test_a_message_without_a_body_followed_by_its_equal_with_one(slot):
    """None is left without a body, so there is none to remove: HDEL must not be called."""
    sent = [Message(b"a"), Message(b"a", headers={"h": b"new"})]
    assert slot.queue.send(sent, **slot.value_of(VALUES)).merged == 1
    assert bodies(slot) == {b"a": NEW}
    slot.check_conservation()


def test_such_a_pair_in_a_stage_comes_to_every_group(broker):
    """An error in the first group would be behind LPOP: the others never got the messages."""
    slots = [Slot(broker, "T", group=group, groups=["one", "two"]) for group in ("one", "two")]
    stages = Stages(slots[0])
    stages.stage(NAME, {0: pairs_of([b"a", b"a"])}, {0: 0}, {0: [b"a", b"", b"a", NEW]})
    stages.publish({NAME: 2})
    for slot in slots:
        assert (set(slot.store), bodies(slot)) == ({b"a"}, {b"a": NEW})
        slot.check_conservation()
