"""The client for asyncio on a Redis Cluster."""

import asyncio

import pytest

from rmq_spark import aio
from rmq_spark.client.receiving import waits
from rmq_spark.redis.aio import greenlet_spawn
from rmq_spark.topics.keys import Keys, topics_key

from ..seeding import numbered
from . import moving


@pytest.fixture
def connected(shared_cluster, cluster_broker):
    async def connect():
        return await aio.connect(
            shared_cluster.url, cluster="true", key_prefix=cluster_broker.key_prefix
        )

    return connect


def test_it_sends_to_all_nodes_and_receives_from_them(connected, cluster_broker):
    async def main():
        async with await connected() as broker:
            await broker.create("T", "FixedTime", 32)
            queue = await broker.queue("T")
            await asyncio.gather(
                queue.send(numbered(500), fixed_time=1),
                *(queue.send_one(content, fixed_time=1) for content in numbered(500, start=500)),
            )
            assert (await queue.figures()).store.count == 1000
            got = []
            async with broker.consumer("T", "c") as consumer:
                async for batch in consumer.batches(wait=False):
                    got += [message.content for message in batch]
                    await batch.commit()
            return got

    assert sorted(asyncio.run(main())) == numbered(1000)
    assert cluster_broker.queue("T").figures().counters["committed"] == 1000


def test_a_consumer_that_waits_is_woken_by_any_node(connected, cluster_broker):
    cluster_broker.create("T", "FixedTime", 8)
    queue = cluster_broker.queue("T")

    async def main():
        async with await connected() as broker, broker.consumer("T", "c") as consumer:
            for content in numbered(20):
                waiting = asyncio.create_task(consumer.poll(wait="60s"))
                await asyncio.sleep(0.01)
                await asyncio.to_thread(queue.send, [content], fixed_time=1)
                batch = await waiting
                assert [message.content for message in batch] == [content]
                await batch.commit()

    asyncio.run(main())


def move_slot(cluster, slot):
    """Moves the keys of a slot of the topic to another master, step by step."""
    (hash_slot,) = moving.hash_slots([Keys("T").store(slot)])
    source = moving.owner_of(cluster, hash_slot)
    target = next(node for node in cluster.masters() if node is not source)
    for step in (moving.begin, moving.move_keys, moving.finish):
        step(cluster, hash_slot, source, target)


def test_slots_that_move_meanwhile_lose_nothing(own_cluster):
    async def main():
        async with await aio.connect(own_cluster.url, cluster="true") as broker:
            await broker.create("T", "FixedTime", 8)
            queue = await broker.queue("T")
            stop, sent = asyncio.Event(), []

            async def send(task):
                number = 0
                while not stop.is_set():
                    content = f"{task} {number}".encode()
                    await queue.send_one(content, fixed_time=1)
                    sent.append(content)
                    number += 1

            tasks = [asyncio.create_task(send(task)) for task in range(10)]
            for slot in range(4):
                await asyncio.to_thread(move_slot, own_cluster, slot)
            stop.set()
            await asyncio.gather(*tasks)
            figures = await queue.figures()
            assert figures.store.count == len(set(sent))

    asyncio.run(main())


def test_the_first_hash_slot_of_a_new_master_is_found_on_its_way(growing_cluster):
    async def main():
        async with await aio.connect(growing_cluster.url, cluster="true", patience_s=1) as broker:
            await broker.create("T", "FixedTime", 1)
            way = (growing_cluster, *moving.hash_slots([topics_key()]), *growing_cluster.nodes)
            moving.begin(*way)
            moving.move_keys(*way)
            assert [topic.name for topic in await broker.topics()] == ["T"]
            nodes = broker._sync.server._nodes
            await greenlet_spawn(nodes.refresh)
            assert list(nodes._nodes) == [f"127.0.0.1:{growing_cluster.nodes[0].port}"]

    asyncio.run(main())


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_is_woken_by_the_node_to_which_a_slot_has_moved(own_cluster, monkeypatch):
    monkeypatch.setattr(waits, "LOOK_EVERY_S", 3600.0)

    async def main():
        async with await aio.connect(own_cluster.url, cluster="true") as broker:
            await broker.create("T", "FixedTime", 1)
            queue = await broker.queue("T")
            async with broker.consumer("T", "c") as consumer:
                polling = asyncio.create_task(consumer.poll(wait="60s"))
                while consumer._sync._waiter is None:
                    await asyncio.sleep(0.01)
                wakeups = consumer._sync._waiter._notifications
                async with asyncio.timeout(60):
                    while not wakeups.hears_all:
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(move_slot, own_cluster, 0)
                    while wakeups._sharded and wakeups.hears_all:  # Redis 7.0 and later
                        await asyncio.sleep(0.001)
                    while not wakeups.hears_all:
                        await asyncio.sleep(0.01)
                await queue.send([b"m"], fixed_time=1)
                assert len(await polling) == 1

    asyncio.run(main())
