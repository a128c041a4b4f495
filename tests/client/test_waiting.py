"""A consumer that waits: woken by Redis, or by a look where a wake-up was missed."""

import threading
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest

from rmq_spark.client import connect
from rmq_spark.client.receiving import consumer, waits
from rmq_spark.client.receiving.waits import Waiter
from rmq_spark.errors import ConsumerMisused, InvalidOption, UnknownTopic

from ..logs import logged
from ..seeding import LONG_MS, numbered
from ..waiting import wait_until

NEVER_S = 3600.0


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 4, max_retries=3)
    return broker.queue("T")


@pytest.fixture
def only_wake_ups(monkeypatch):
    """Without looks, only a wake-up or a time that is known can end a wait."""
    monkeypatch.setattr(waits, "LOOK_EVERY_S", NEVER_S)


class Reader:
    """A consumer that waits in a thread of its own, for one batch after the other."""

    def __init__(self, broker, name="reader", batches=1, **options):
        self.taken, self.error = [], None
        self.consumer = broker.consumer("T", name, **options)
        self._batches = batches
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self._waits()

    def _read(self):
        try:
            for _ in range(self._batches):
                batch = self.consumer.poll(wait="1h")
                self.taken += [message.content for message in batch]
                batch.commit()
        except Exception as error:
            self.error = error

    def _waits(self):
        """Wait until it has looked everywhere and knows of nothing."""

        def is_calm():
            waiter = self.consumer._waiter
            hears = waiter is not None and waiter._notifications.hears_all
            return hears and not waiter._notifications._fresh and not waiter._slots._ripe

        wait_until(lambda: is_calm() or not self._thread.is_alive(), "the consumer waits")

    def result(self):
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.consumer.close()
        if self.error:
            raise self.error
        return self.taken


def test_a_message_that_is_sent_ends_the_wait(broker, topic, only_wake_ups):
    reader = Reader(broker)
    topic.send([b"m"], fixed_time=1000)
    assert reader.result() == [b"m"]


def test_a_message_that_falls_due_ends_the_wait(broker, topic, only_wake_ups):
    reader = Reader(broker)
    topic.send([b"late"], delay=LONG_MS)
    topic.send([b"soon"], delay=300)
    assert reader.result() == [b"soon"]


def test_what_was_there_before_is_waited_for_too(broker, topic, only_wake_ups):
    topic.send([b"soon"], delay=1000)
    assert Reader(broker).result() == [b"soon"]


def test_each_of_many_messages_ends_a_wait(broker, topic, only_wake_ups):
    reader = Reader(broker, batches=20)
    for number, content in enumerate(numbered(20)):
        topic.send([content], fixed_time=1000)
        wait_until(lambda so_far=number: len(reader.taken) > so_far, "the next message")
    assert reader.result() == numbered(20)


def test_a_rollback_of_another_consumer_ends_the_wait(broker, topic, only_wake_ups):
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "other", visibility_timeout="1h") as other:
        batch = other.poll()
        reader = Reader(broker)
        batch.rollback(delay="1ms")
        assert reader.result() == [b"m"]


def test_a_consumer_that_closes_gives_its_messages_to_one_that_waits(broker, topic, only_wake_ups):
    topic.send([b"m"], fixed_time=1000)
    other = broker.consumer("T", "other", visibility_timeout="1h")
    assert other.poll()
    reader = Reader(broker)
    other.close()
    assert reader.result() == [b"m"]


def test_the_end_of_anothers_lease_ends_the_wait(broker, topic, only_wake_ups):
    topic.send([b"m"], fixed_time=1000)
    other = broker.consumer("T", "other", visibility_timeout="2s")
    assert other.poll()
    assert Reader(broker).result() == [b"m"]


def test_a_requeue_ends_the_wait(broker, topic, only_wake_ups):
    broker.alter("T", max_retries=0)
    topic.send([b"m"], fixed_time=1000)
    with broker.consumer("T", "other") as other:
        other.poll().rollback()
    reader = Reader(broker)
    assert broker.queue("T").requeue([b"m"]) == 1
    assert reader.result() == [b"m"]


def test_the_end_of_a_pause_ends_the_wait(broker, topic, only_wake_ups):
    reader = Reader(broker)
    broker.alter("T", paused=True)
    topic.send([b"m"], fixed_time=1000)
    broker.alter("T", paused=False)
    assert reader.result() == [b"m"]


def test_of_two_that_wait_one_gets_the_message_and_the_other_the_next(broker, topic, only_wake_ups):
    readers = [Reader(broker, name) for name in ("a", "b")]
    topic.send([b"first"], fixed_time=1000)
    wait_until(lambda: any(reader.taken for reader in readers), "one has it")
    topic.send([b"second"], fixed_time=1000)
    assert sorted(content for reader in readers for content in reader.result()) == [
        b"first",
        b"second",
    ]


def test_a_wait_without_messages_ends_with_an_empty_batch(broker, topic):
    with broker.consumer("T", "a") as reader:
        assert len(reader.poll(wait="50ms")) == 0
        assert len(reader.poll(wait=50)) == 0
        assert len(reader.poll(wait=timedelta(milliseconds=50))) == 0


def test_a_poll_without_a_wait_looks_into_all_slots_after_one_with_it(broker, topic, only_wake_ups):
    with broker.consumer("T", "a") as reader:
        assert len(reader.poll(wait="50ms")) == 0
        topic.server.client.zadd(topic.keys.store(2), {b"by hand": 1000})
        assert [message.content for message in reader.poll()] == [b"by hand"]


@pytest.mark.parametrize("wait", ["5", "soon", -1, 1.5, None])
def test_a_wait_that_is_no_duration_is_refused(broker, topic, wait):
    with broker.consumer("T", "a") as reader, pytest.raises(InvalidOption, match="wait="):
        reader.poll(wait=wait)


def test_who_closes_the_consumer_ends_its_wait(broker, topic, only_wake_ups):
    reader = Reader(broker)
    reader.consumer.close()
    with pytest.raises(ConsumerMisused, match="is closed"):
        reader.result()


def test_the_deletion_of_the_topic_ends_the_wait(broker, topic, only_wake_ups, monkeypatch):
    monkeypatch.setattr(consumer, "REFRESH_S", 0.05)
    reader = Reader(broker)
    broker.delete("T")
    with pytest.raises(UnknownTopic):
        reader.result()


# -- without wake-ups


def test_a_message_of_a_sender_who_does_not_publish_is_found_and_told_of(
    broker, topic, monkeypatch, caplog
):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 0.05)
    reader = Reader(broker, batches=2)
    topic.server.client.zadd(topic.keys.store(2), {b"first": 1000})
    wait_until(lambda: reader.taken, "the first one")
    wait_until(lambda: "does not wake readers" in logged(caplog), "the warning")
    topic.server.client.zadd(topic.keys.store(3), {b"second": 1000})
    assert reader.result() == [b"first", b"second"]
    assert logged(caplog).count("does not wake readers") == 1


def test_a_user_who_may_not_subscribe_finds_messages_all_the_same(own_redis, monkeypatch):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 0.05)
    admin = connect(own_redis.url)
    admin.create("T", "FixedTime", 4)
    words = ["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-subscribe", "resetchannels"]
    admin.server.client.execute_command(*words)
    with (
        connect(own_redis.url.replace("redis://", "redis://reader:pw@")) as broker,
        broker.consumer("T", "a") as reader,
    ):
        assert len(reader.poll(wait="100ms")) == 0
        admin.queue("T").send([b"m"], fixed_time=1000)
        assert [message.content for message in reader.poll(wait="1h")] == [b"m"]
    admin.close()


def test_a_paused_topic_with_due_messages_is_no_missed_wake_up(broker, topic, monkeypatch, caplog):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 0.02)
    topic.send([b"m"], fixed_time=1000)
    broker.alter("T", paused=True)
    with broker.consumer("T", "a") as reader:
        assert len(reader.poll(wait="500ms")) == 0
    assert "does not wake readers" not in logged(caplog)


@pytest.mark.parametrize("slots", [16, 1024])
def test_a_look_costs_few_commands(own_redis, slots):
    """One a second is what an idle consumer costs Redis, beside reading the topic's definition."""
    with connect(own_redis.url) as broker:
        queue = broker.create("T", "FixedTime", slots) and broker.queue("T")
        waiter = Waiter(queue)
        wait_until(lambda: waiter._notifications.hears_all, "wake-ups")
        count = lambda: queue.server.client.info("stats")["total_commands_processed"]  # noqa: E731
        waiter._look(queue)  # loads the scripts
        before = count()
        waiter._look(queue)
        assert count() - before <= 45
        waiter.close()


def test_a_message_without_a_wake_up_is_found_while_another_slot_is_busy(
    broker, topic, monkeypatch
):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 0.2)
    client, seen = topic.server.client, []
    with broker.consumer("T", "a") as reader:
        assert len(reader.poll(wait="100ms")) == 0
        client.zadd(topic.keys.store(1), {b"silent": 1000})

        def busy():
            client.zadd(topic.keys.store(0), {b"m%d" % len(seen): 1000})
            reader._waiter._slots.ripen([0])
            batch = reader.poll(wait="1h")
            seen.extend(message.content for message in batch)
            batch.commit()
            return b"silent" in seen

        wait_until(busy, "the silent message")


def test_a_topic_that_is_created_again_with_more_slots_is_read_whole(broker, topic, monkeypatch):
    monkeypatch.setattr(consumer, "REFRESH_S", 0.05)
    seen = set()
    with broker.consumer("T", "a") as reader:
        assert len(reader.poll(wait="100ms")) == 0
        broker.delete("T")
        broker.create("T", "FixedTime", 8)
        broker.queue("T").send(numbered(100), fixed_time=1000)
        while len(seen) < 100:
            batch = reader.poll(wait="60s")
            assert batch
            seen.update(message.content for message in batch)
            batch.commit()
    assert seen == set(numbered(100))


def test_a_lease_that_began_unseen_ends_the_wait_before_a_message_that_is_far_away(
    broker, topic, monkeypatch
):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 0.2)
    client = topic.server.client
    client.zadd(topic.keys.store(0), {b"far": 10**13})
    reader = Reader(broker)
    with monkeypatch.context() as blind:
        blind.setattr(Waiter, "look_if_time", lambda self, queue: False)
        client.zadd(topic.keys.store(0), {b"m": 1000})
        assert broker.consumer("T", "other", visibility_timeout="1s").poll()
    assert reader.result() == [b"m"]


def test_more_readers_wait_than_redis_py_has_connections_by_default(broker, topic):
    """Failed before: from the 101st connection on, every call of the program failed."""
    with ExitStack() as stack:
        waiters = [stack.enter_context(closing(Waiter(topic))) for _ in range(105)]
        wait_until(lambda: all(each._notifications.hears_all for each in waiters), "all hear")
        topic.send([b"m"], fixed_time=1000)
