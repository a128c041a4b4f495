"""A message that may have ended its last holder: the process has no other beside it."""

import threading
import time
from types import SimpleNamespace

import pytest

from rmq_spark.client.receiving import work_in_process
from rmq_spark.client.receiving.work_in_process import WorkInProcess

from ..seeding import numbered, suspect
from ..waiting import wait_until


class Reader:
    """Stands for a consumer or a listener."""


@pytest.fixture
def work():
    return WorkInProcess()


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 4)
    return broker.queue("T")


def put_suspects(topic, slots, deliveries=17):
    """Stores a message to be alone with in each of some slots."""
    for slot in slots:
        content = b"suspect%d" % slot
        topic.server.command("ZADD", topic.keys.store(slot), suspect(4, deliveries), content)
        topic.server.command("HINCRBY", topic.keys.stats(slot), "accepted", 1)


class Notes:
    """A function that notes what is in progress when one to be alone with begins and ends."""

    def __init__(self):
        self.seen, self.beside = [], []
        self._in_work, self._lock = set(), threading.Lock()

    def __call__(self, message):
        with self._lock:
            self._in_work.add(message.content)
        self._look(message)
        time.sleep(0.002)  # others could begin now
        self._look(message)
        with self._lock:
            self._in_work.discard(message.content)
            self.seen.append((message.content, message.retries_left))

    def _look(self, message):
        with self._lock:
            if message.content.startswith(b"suspect"):
                self.beside += self._in_work - {message.content}


def test_listeners_of_a_process_begin_nothing_beside_a_suspect(broker, topic):
    notes = Notes()
    topic.send(numbered(200), fixed_time=1000)
    put_suspects(topic, range(4))
    with broker.listen("T", "a", notes, workers=4), broker.listen("T", "b", notes, workers=4):
        wait_until(lambda: len(notes.seen) == 204, "all messages")
    assert notes.beside == []
    assert {left for _, left in notes.seen} == {16}


def test_a_consumer_takes_a_suspect_alone(broker, topic):
    topic.send(numbered(20), fixed_time=1000)
    put_suspects(topic, range(2))
    sizes = []
    with broker.consumer("T", "a") as consumer:
        for batch in consumer.batches(wait=False):
            sizes.append(len(batch))
            batch.commit()
    assert sizes == [1, 1, 20]


def test_a_consumer_takes_no_suspect_while_another_of_its_process_has_a_batch(broker, topic):
    topic.send(numbered(2), fixed_time=1000)
    with broker.consumer("T", "a") as first, broker.consumer("T", "b") as second:
        batch = first.poll(limit=1)
        put_suspects(topic, [0])
        other = second.poll()
        assert [message.content for message in (*batch, *other)] != [b"suspect0"]
        assert len(other) == 1
        batch.commit()
        [message] = second.poll()  # which gives back the other
        assert message.content == b"suspect0"
        assert not first.poll()  # nothing beside it
        second.close()
        assert first.poll()


def test_a_suspect_whose_consumer_raises_is_charged_and_dies(broker, topic):
    put_suspects(topic, [0], deliveries=2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), broker.consumer("T", "a") as consumer:
            len(consumer.poll()) // 0
    assert topic.figures().dead.count == 1


def test_one_reader_is_alone_or_all_work(work):
    one, two = Reader(), Reader()
    assert work.begin(one)
    assert work.begin(two)
    assert not work.begin_alone(one)
    work.end(two)
    assert work.begin_alone(one)
    assert not work.begin(two)
    assert not work.begin_alone(two)
    work.end(one)
    assert work.begin(two)


def test_others_hold_back_for_who_wishes_to_be_alone(work):
    one, two = Reader(), Reader()
    assert work.begin(two)
    assert not work.begin_alone(one)
    assert work.is_wished_by(one)
    assert not work.begin(two)
    assert not work.begin_alone(two)
    work.end(two)
    assert work.begin_alone(one)
    assert not work.is_wished_by(one)


def test_who_has_messages_in_work_itself_only_wishes(work):
    one, two = Reader(), Reader()
    assert not work.begin_alone(one, is_idle=False)
    assert not work.begin(two)
    assert work.begin_alone(one)


def test_a_reader_that_is_gone_keeps_nobody_waiting(work):
    one, two = Reader(), Reader()
    work.begin(one)
    del one
    assert work.begin_alone(two)
    del two
    assert work.begin(Reader())


def test_a_wish_ends_if_it_is_not_repeated_or_in_vain(work, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(work_in_process, "time", SimpleNamespace(monotonic=lambda: now))
    one, two = Reader(), Reader()
    work.begin(two)
    work.begin_alone(one)
    now += 2
    assert work.begin(two)
    for _ in range(12):  # the other one hangs
        work.begin_alone(one)
        now += 1
    assert work.begin(two)
    assert not work.is_wished_by(one)
    now += 10
    work.begin_alone(one)
    assert work.is_wished_by(one)
