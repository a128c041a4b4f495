"""An occurrence of a schedule: its note and its message, in one step, once."""

import pytest

from rmq_spark.client import connect
from rmq_spark.errors import ServerFull
from rmq_spark.protocol import sending
from rmq_spark.protocol.bodies import Body
from rmq_spark.protocol.pages import first_entries

BODY = Body(None, (("a", b"b"),)).pack()


def occur(queue, notes, message=(500, b"m", b""), slot=0):
    return queue.ask(sending.occur, slot, "nightly", notes, message)[:2]


def stored(queue, kind="store"):
    return [(one.content, one.headers) for one in first_entries(queue.pages(kind, 0), 9)]


@pytest.fixture(params=["FixedTime", "RangeMerge", "Priority"])
def queue(broker, request):
    broker.create("T", request.param, 1, groups="default,audit")
    return broker.queue("T")


def test_of_several_that_have_read_the_same_note_one_sends(queue):
    assert occur(queue, ("", "1 100")) == (True, "1 100")
    assert occur(queue, ("", "1 100")) == (False, "1 100")
    assert occur(queue, ("", "1 200"), (500, b"other", b"")) == (False, "1 100")
    assert occur(queue, ("1 100", "1 200"), (500, b"other", BODY)) == (True, "1 200")
    for group in ("", "audit"):
        of_group = queue.of_group(group)
        assert dict(stored(of_group)) == {b"m": (), b"other": (("a", b"b"),)}
        assert of_group.figures().counters["accepted"] == 2


def test_one_may_be_noted_and_send_nothing(queue):
    assert occur(queue, ("", "1 100"), None) == (True, "1 100")
    assert stored(queue) == []
    assert occur(queue, ("", "1 100"), None) == (False, "1 100")


def test_it_is_due_as_if_it_had_been_sent(broker):
    for topic, topic_type in (("Timed", "FixedTime"), ("Merged", "RangeMerge")):
        broker.create(topic, topic_type, 1)
        queue = broker.queue(topic)
        before_ms = queue.now_ms()
        occur(queue, ("", "1 1"), (60_000, b"m", b""))
        [entry] = first_entries(queue.pages("store", 0), 9)
        due_ms = entry.due_time_ms
        assert due_ms == 60_000 if topic == "Timed" else due_ms >= before_ms + 60_000


def test_an_equal_message_merges_with_the_one_that_waits(queue):
    occur(queue, ("", "1 100"))
    occur(queue, ("1 100", "1 200"))
    assert queue.figures().counters["merged"] == 1


def test_a_full_server_refuses_it_and_keeps_the_note(own_redis):
    with connect(own_redis.url, patience_s=2) as broker:
        broker.create("T", "FixedTime", 1)
        queue = broker.queue("T")
        broker.server.client.config_set("maxmemory", 1)
        with pytest.raises(ServerFull):
            occur(queue, ("", "1 100"))
        broker.server.client.config_set("maxmemory", 0)
        assert occur(queue, ("", "1 100")) == (True, "1 100")
