"""Consumers and listeners in plain Python that own slots through a real ZooKeeper."""

import asyncio

import pytest

from rmq_spark import aio
from rmq_spark.errors import ExclusiveSlot, InvalidOption, OwnershipError, OwnershipUnavailable

from ..seeding import numbered
from ..waiting import wait_until

SLOTS = 8


@pytest.fixture
def owning(zookeeper, root):
    return {"hosts": zookeeper.hosts, "root": root, "sessionTimeout": "3s"}


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", SLOTS)
    return broker.queue("T")


def slots_of(reader):
    return set(reader._run.ownership.between_batches())


def test_consumers_share_the_slots_and_each_reads_its_own(broker, topic, owning):
    topic.send(numbered(200), fixed_time=1)
    with (
        broker.consumer("T", "a", zookeeper=owning) as first,
        broker.consumer("T", "b", zookeeper=owning) as second,
    ):

        def shared():
            return [len(slots_of(each)) for each in (first, second)] == [4, 4]

        wait_until(shared, "four slots each")
        for reader in (first, second):
            batch = reader.poll()
            assert {message.slot for message in batch} == slots_of(reader)
            batch.commit()
        assert topic.figures().counters["committed"] == 200


def test_who_waits_gets_the_slots_of_one_that_leaves(broker, topic, owning):
    with broker.consumer("T", "a", zookeeper=owning) as first:
        second = broker.consumer("T", "b", zookeeper=owning)
        wait_until(lambda: len(slots_of(first)) == len(slots_of(second)) == 4, "four slots each")
        second.close()
        topic.send(numbered(100), fixed_time=1)
        got = set()
        while len(got) < 100:
            batch = first.poll(wait="60s")
            got |= {message.content for message in batch}
            batch.commit()
    assert got == set(numbered(100))


def test_the_topic_is_exclusive_from_then_on(broker, topic, owning):
    with broker.consumer("T", "a", zookeeper=owning):
        assert broker.definition("T").exclusive
        with pytest.raises(ExclusiveSlot, match=r"zookeeper= in plain Python"):
            broker.consumer("T", "b")
        with pytest.raises(ExclusiveSlot):
            broker.listen("T", "b", print)
    broker.alter("T", exclusive=False)
    broker.consumer("T", "b").close()


def test_a_zookeeper_that_does_not_answer_leaves_the_topic_to_all(broker, topic):
    wrong = {"hosts": "127.0.0.1:1", "sessionTimeout": "1s"}
    with pytest.raises(OwnershipUnavailable):
        broker.consumer("T", "a", zookeeper=wrong)
    with pytest.raises(OwnershipUnavailable), broker.listen("T", "a", print, zookeeper=wrong):
        pytest.fail("the block began")
    assert not broker.definition("T").exclusive


def test_options_that_are_not_accepted_are_named(broker, topic):
    with pytest.raises(InvalidOption, match=r"zookeeper\.hosts"):
        broker.consumer("T", "a", zookeeper="x y")
    with pytest.raises(InvalidOption, match=r"zookeeper\.hosts is missing"):
        broker.listen("T", "a", print, zookeeper={"username": "u", "password": "Zk4-word"})


def test_a_reader_ends_when_exclusive_is_switched_off(broker, topic, owning):
    with broker.consumer("T", "a", zookeeper=owning) as consumer:
        broker.alter("T", exclusive=False)
        with pytest.raises(OwnershipError, match="is no longer exclusive"):
            consumer.poll()


def test_a_listener_owns_its_slots_and_gives_them_up_after_the_message_in_work(
    broker, topic, owning
):
    at_work, overlaps, got = set(), [], []

    def work(message):
        if message.slot in at_work:
            overlaps.append(message)
        at_work.add(message.slot)
        got.append(message.content)
        at_work.discard(message.slot)

    with broker.listen("T", "a", work, zookeeper=owning) as first:
        for number in range(10):
            topic.send(numbered(100, start=100 * number), fixed_time=1)
        wait_until(lambda: first.succeeded, "the first message")
        with broker.listen("T", "b", work, zookeeper=owning) as second:
            for number in range(10, 20):
                topic.send(numbered(100, start=100 * number), fixed_time=1)

            def second_works():
                topic.send(numbered(50, start=2000), fixed_time=1)
                return second.succeeded

            wait_until(second_works, "a message of the second")
        wait_until(lambda: not topic.figures().messages, "all messages")
    assert overlaps == []
    assert set(got) >= set(numbered(2000))


def test_a_consumer_in_asyncio_owns_slots(broker, topic, owning, redis_url):
    topic.send(numbered(50), fixed_time=1)

    async def main():
        async with (
            await aio.connect(redis_url, key_prefix=broker.key_prefix) as there,
            there.consumer("T", "a", zookeeper=owning) as consumer,
        ):
            batch = await consumer.poll(wait="60s")
            return await batch.commit()

    assert asyncio.run(main()) == 50
    assert broker.definition("T").exclusive
