"""Limits on what a topic takes, as senders, schedules and those who look at it see them."""

import asyncio
import threading

import pytest

from rmq_spark import aio
from rmq_spark.client.messages import Message, outgoing
from rmq_spark.client.room import WaitForRoom
from rmq_spark.errors import InvalidOption, RmqError, TopicFull, UnknownTopic
from rmq_spark.inspect.checks import WARN, check_topics
from rmq_spark.inspect.figures import look
from rmq_spark.protocol.pages import first_entries
from rmq_spark.protocol.sending import SendResult

from ..seeding import numbered
from ..waiting import wait_until


@pytest.fixture
def queue(broker):
    broker.create("T", "FixedTime", 1, max_messages=4)
    return broker.queue("T")


def checked(queue, contents):
    values = Message(fixed_time=1000)
    return outgoing(contents, values, queue.definition, now_ms=queue.now_ms), queue.definition


def drain(broker, seen):
    with broker.consumer("T", "a") as consumer:
        for batch in consumer.batches(2, wait=False):
            seen += [message.content for message in batch]
            batch.commit()


def test_a_changed_limit_is_learned(queue, broker):
    with pytest.raises(TopicFull, match="holds 4 of the 4 messages"):
        queue.send(numbered(5), fixed_time=1000)
    broker.alter("T", max_messages=None)
    queue.distrust()
    assert queue.send(numbered(5), fixed_time=1000) == SendResult(1, 4)


@pytest.mark.parametrize("room", [0, 1, 2, 5])
def test_of_one_call_a_slot_stores_nothing_behind_what_it_refused(broker, room):
    """Failed before: a later message found the room that was too little for earlier ones."""
    broker.create("T", "FixedTime", 2, max_messages=16)
    queue = broker.queue("T")
    slot, elsewhere = 0, 1
    basis = {queue.definition.slot_of(text): text for text in numbered(20)}
    sent, others = ["a", "b", "c", "d", "e"], ["o1", "o2", "o3"]
    queue.send(numbered(8 - room), slot_basis=basis[slot], fixed_time=1000)
    messages = [Message(name, slot_basis=basis[slot]) for name in sent]
    messages += [Message(name, slot_basis=basis[elsewhere]) for name in others]
    error = None
    try:
        counts = queue.send(messages, fixed_time=1000)
    except TopicFull as full:
        error, counts = full, full.sent
    stored = [name for name in sent if queue.find([name], slot_basis=basis[slot])]
    assert stored == sent[: len(stored)]
    assert room - 1 <= len(stored) <= room
    assert counts == SendResult(len(stored) + len(others), 0)
    assert len(queue.find(others, slot_basis=basis[elsewhere])) == len(others)
    refused = {slot: set(range(len(stored), len(sent)))} if room < len(sent) else None
    assert (error and error.refused) == refused


def test_a_topic_made_anew_between_two_calls_gets_nothing_of_the_send(queue, broker, monkeypatch):
    """Failed before: the rest was sent, and a topic of another type had it."""
    monkeypatch.setattr("rmq_spark.client.queue.DEFINITION_AGE_S", 0)
    ask = queue.server.ask

    def ask_and_make_anew(request):
        answer = ask(request)
        monkeypatch.setattr(queue.server, "ask", ask)
        broker.delete("T")
        broker.create("T", "Priority", 1)
        return answer

    monkeypatch.setattr(queue.server, "ask", ask_and_make_anew)
    with pytest.raises(UnknownTopic, match="the others were not sent"):
        queue.send(numbered(3), fixed_time=1000)
    assert broker.queue("T").figures().store.count == 0


def test_a_sender_can_wait_for_room_and_its_messages_keep_their_order(queue, broker, caplog):
    seen, sent = [], []
    wait = WaitForRoom()
    sender = threading.Thread(
        target=lambda: sent.append(queue.send_checked(*checked(queue, numbered(20)), wait))
    )
    sender.start()
    wait_until(lambda: "waits for room: Topic T is full" in caplog.text, "a sender that waits")
    while sender.is_alive():
        drain(broker, seen)
        sender.join(0.01)
    drain(broker, seen)
    assert sent == [SendResult(20, 0)]
    assert seen == numbered(20)
    assert queue.figures().counters["merged"] == 0


def test_a_sender_that_waits_learns_of_another_limit(queue, broker, caplog):
    sender = threading.Thread(
        target=queue.send_checked, args=(*checked(queue, numbered(9)), WaitForRoom())
    )
    sender.start()
    wait_until(lambda: "waits for room" in caplog.text, "a sender that waits")
    broker.alter("T", max_messages="none")
    sender.join(30)
    assert not sender.is_alive()
    assert queue.figures().store.count == 9


def waiting_sender(queue, caplog, contents):
    """Starts a sender that waits; what it ends with is in the list."""
    ended = []

    def send():
        try:
            ended.append(queue.send_checked(*checked(queue, contents), WaitForRoom()))
        except RmqError as error:
            ended.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: "waits for room" in caplog.text, "a sender that waits")
    return thread, ended


def ended_with(thread, ended):
    thread.join(30)
    assert not thread.is_alive(), "the sender still waits"
    return ended[0]


def test_a_sender_that_waits_goes_on_under_a_lower_limit(broker, caplog):
    """Failed before: what it sends at a time was too much for the empty slot."""
    broker.create("T", "FixedTime", 1, max_messages=100)
    queue = broker.queue("T")
    sender = waiting_sender(queue, caplog, numbered(200))
    broker.alter("T", max_messages=10)
    while sender[0].is_alive():
        drain(broker, [])
        sender[0].join(0.05)
    assert ended_with(*sender) == SendResult(200, 0)


def test_a_sender_that_waits_for_a_group_goes_on_without_it(broker, caplog):
    """Failed before, with InvalidOption."""
    broker.create("T", "FixedTime", 1, max_messages=4, groups="default,audit")
    queue = broker.queue("T")
    seen = []
    sender = waiting_sender(queue, caplog, numbered(9))
    drain(broker, seen)
    broker.remove_group("T", "audit", drop=True)
    while sender[0].is_alive():
        drain(broker, seen)
        sender[0].join(0.05)
    assert ended_with(*sender) == SendResult(9, 0)
    drain(broker, seen)
    assert seen == numbered(9)


@pytest.mark.parametrize("again", [None, ("Priority", 1), ("FixedTime", 2)])
def test_a_sender_that_waits_ends_with_its_topic(queue, broker, caplog, again):
    """Failed before: it wrote keys of a topic that was not there."""
    sender = waiting_sender(queue, caplog, numbered(20))
    broker.delete("T")
    if again:
        broker.create("T", *again)
    assert "deleted" in str(ended_with(*sender))
    left = broker.server.client.keys(f"{broker.key_prefix}*T_*")
    assert left == []


def test_tasks_that_send_at_the_same_moment_fail_only_where_there_is_no_room(redis_url, broker):
    """Failed before: one full slot failed the messages of all."""
    broker.create("T", "FixedTime", 4, max_messages=160)
    queue = broker.queue("T")
    names = [f"{number}" for number in range(200)]
    queue.send(numbered(35), slot_basis="0", fixed_time=1000)

    async def send():
        async with await aio.connect(redis_url, key_prefix=broker.key_prefix) as connected:
            of_tasks = await connected.queue("T")
            sends = [of_tasks.send_one(name, fixed_time=1000) for name in names]
            return await asyncio.gather(*sends, return_exceptions=True)

    ended = dict(zip(names, asyncio.run(send()), strict=True))
    failed = {name: error for name, error in ended.items() if error}
    assert 50 < len(failed) < 150
    found = {entry.content.decode() for entry in queue.find(names)}
    assert found == set(names) - set(failed)
    for name, error in failed.items():  # failed before: all had the same one, of any full slot
        slot = queue.definition.slot_of(name.encode())
        assert (error.slot, error.refused, error.sent) == (slot, {slot: {0}}, SendResult(0, 0))
        assert f" slot {slot} of group default holds " in str(error)
    assert len(set(map(id, failed.values()))) == len(failed)


def test_what_was_accepted_can_be_accepted_again_on_request(broker):
    broker.create("T", "FixedTime", 4, keyed=True, unique_for="1h")
    queue = broker.queue("T")
    queue.send([Message("one", key="k"), Message("two", key="j")], fixed_time=1000)
    assert queue.accept_again(["k", "never sent"]) == 1
    again = [Message("corrected", key="k"), Message("x", key="j")]
    assert queue.send(again, fixed_time=1000) == SendResult(0, 1, 1)


def test_an_occurrence_that_is_repeated_does_not_count_as_sent(broker, caplog):
    broker.create("T", "FixedTime", 1, unique_for="1h")
    broker.schedule("often", "T", "tick", every="1s")
    with caplog.at_level("INFO", logger="rmq_spark"), broker.scheduler() as scheduler:
        wait_until(lambda: ": repeated" in caplog.text, "a second occurrence")
        assert scheduler.sent == 1
    assert broker.queue("T").figures().counters["accepted"] == 1


def test_a_schedule_without_room_sends_its_occurrence_later(queue, broker, caplog):
    pytest.importorskip("cronsim")
    queue.send(numbered(4), fixed_time=1000)
    broker.schedule("often", "T", Message("tick"), every="1s")
    with broker.scheduler():
        wait_until(lambda: "often sends nothing: Topic T is full" in caplog.text, "a complaint")
        queue.cancel(numbered(4))
        wait_until(lambda: queue.find(["tick"]), "the occurrence")


def test_messages_without_an_expiry_get_that_of_their_topic(broker):
    broker.create("T", "FixedTime", 1, time_to_live="1m")
    queue = broker.queue("T")
    given = [Message("a"), Message("b", time_to_live="2m"), Message("c", expires_at=5_000_000)]
    queue.send(given, fixed_time=1_000_000)
    queue.send(["d"], fixed_time=1_000_000)
    queue.send(["e"], fixed_time=1_000_000, expires_at=6_000_000)
    stored = first_entries(queue.pages("store", 0), 9)
    assert {one.content: one.expires_at_ms for one in stored} == {
        b"a": 1_060_000,
        b"b": 1_120_000,
        b"c": 5_000_000,
        b"d": 1_060_000,
        b"e": 6_000_000,
    }


def test_who_looks_sees_how_full_the_fullest_slot_is(broker):
    broker.create("T", "FixedTime", 4, max_messages=40, max_bytes="1gb", groups="default,audit")
    queue = broker.queue("T")
    queue.send(numbered(8), slot_basis="one", fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        consumer.poll(1)
        rows = {row.group: row for row in look(broker)}
        assert rows["default"].used["messages"] == 0.7
        assert rows["audit"].used["messages"] == 0.8
        assert 0 < rows["audit"].used["bytes"] < 0.001
        found = [one for one in check_topics(broker) if one.what == "Room"]
    assert [(one.state, one.seen) for one in found] == [
        (WARN, "topic T, group audit: a slot has 80% of its share of max_messages")
    ]
    assert "alter T --max-messages" in found[0].remedy


def test_a_deleted_topic_leaves_no_notes(broker):
    broker.create("T", "FixedTime", 2, unique_for="1h")
    broker.queue("T").send(numbered(9), fixed_time=1000)
    broker.delete("T")
    assert not broker.server.client.keys(f"{broker.key_prefix}*")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_messages": 3}, "max_messages=3 leaves slots without a share: topic T has 4"),
        ({"max_messages": 0}, "max_messages=0 is not accepted. Accepted: none, or a whole number"),
        ({"max_messages": True}, "max_messages=True is not accepted"),
        ({"max_messages": 4.0}, "max_messages=4.0 is not accepted"),
        ({"max_bytes": "10"}, "max_bytes=10 is less than 1024 for each of the 4 slots of topic T"),
        ({"max_bytes": "2 tb"}, "max_bytes='2 tb' is not accepted. Accepted: none, or bytes"),
        ({"max_bytes": -1}, "max_bytes=-1 is not accepted"),
        ({"unique_for": "2"}, "unique_for='2' is not accepted. Accepted: none, or a duration"),
        ({"time_to_live": 0}, "time_to_live=0 is not accepted"),
    ],
)
def test_limits_that_are_none_are_refused(broker, settings, said):
    with pytest.raises(InvalidOption) as raised:
        broker.create("T", "FixedTime", 4, **settings)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("given", "number", "text"),
    [
        ("500mb", 500 * 2**20, "500mb"),
        ("2GB", 2**31, "2gb"),
        (5000, 5000, "5000"),
        ("8kb", 8192, "8kb"),
    ],
)
def test_bytes_have_units_as_in_redis_conf(broker, given, number, text):
    topic = broker.create("T", "FixedTime", 1, max_bytes=given)
    assert (topic.max_bytes, topic.text_of("max_bytes")) == (number, text)
