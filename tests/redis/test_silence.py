"""Connections that die without a word, as behind a router that has forgotten them."""

import asyncio
import time

import pytest
import redis

import rmq_spark
from rmq_spark import aio
from rmq_spark.redis.connection import IDLE_S

from .. import servers
from ..logs import logged
from ..rounds.proxy import Proxy
from ..waiting import wait_until

# So short that the connections of these tests do not count as idle.
TIMEOUT, PATIENCE_S = "1s", 0.1


@pytest.fixture
def proxy(own_redis):
    proxy = Proxy(own_redis.port)
    yield proxy
    proxy.close()


@pytest.fixture
def url(proxy):
    return f"redis://127.0.0.1:{proxy.port}/0"


def be_idle():
    """Longer than a connection may be without a sign of life."""
    time.sleep(IDLE_S + 0.1)


def test_an_idle_connection_that_has_died_is_replaced_before_it_is_used(proxy, url, caplog):
    with rmq_spark.connect(url) as broker:  # with the default options
        broker.create("T", "FixedTime", 4)
        queue = broker.queue("T")
        queue.send(["a", "b", "c", "d"], fixed_time=1000)
        be_idle()
        proxy.hush()
        before = proxy.accepted
        assert queue.send(["e"], fixed_time=1000).new == 1
        assert proxy.accepted > before
        with broker.consumer("T", "clerk") as consumer:
            batch = consumer.poll()
            be_idle()
            proxy.hush()
            assert batch.commit() == 5
    assert "retrying" not in logged(caplog, url)


def test_an_idle_connection_that_lives_is_kept(proxy, url):
    with rmq_spark.connect(url) as broker:
        broker.create("T", "FixedTime", 1)
        be_idle()
        before = proxy.accepted
        assert broker.queue("T").send(["a"], fixed_time=1000).new == 1
        assert proxy.accepted == before


def test_a_time_out_is_followed_by_a_try_on_a_new_connection(proxy, url):
    """However many connections have died, and however short the patience."""
    with rmq_spark.connect(url, patience_s=PATIENCE_S, socketTimeout=TIMEOUT) as broker:
        broker.create("T", "FixedTime", 1)
        pool = broker.server.client.connection_pool
        taken = [pool.get_connection() for _ in range(3)]
        for connection in taken:
            pool.release(connection)
        proxy.hush()
        assert broker.queue("T").send(["a"], fixed_time=1000).new == 1


@pytest.mark.parametrize("idle", [True, False])
def test_with_asyncio_too(proxy, url, idle, caplog):
    options = {} if idle else {"patience_s": PATIENCE_S, "socketTimeout": TIMEOUT}

    async def send():
        async with await aio.connect(url, **options) as broker:
            await broker.create("T", "FixedTime", 1)
            queue = await broker.queue("T")
            await queue.send(["a"], fixed_time=1000)
            if idle:
                await asyncio.to_thread(be_idle)
            proxy.hush()
            sent = await queue.send(["b"], fixed_time=1000)
            return sent.new

    assert asyncio.run(send()) == 1
    assert ("retrying" in logged(caplog, url)) != idle


@pytest.fixture
def replaced(proxy, own_redis, redis_executable):
    """Makes the server a replica of another one, to which its address leads from then on."""
    with servers.local(redis_executable) as other:

        def replace():
            with redis.Redis(port=own_redis.port) as old, redis.Redis(port=other.port) as new:
                new.replicaof("127.0.0.1", own_redis.port)
                wait_until(lambda: new.info("replication")["master_link_status"] == "up", "a copy")
                new.replicaof("NO", "ONE")
                old.replicaof("127.0.0.1", other.port)
            proxy.targets[0] = other.port

        yield replace


def test_connections_to_a_master_that_became_a_replica_are_left(url, replaced):
    """Failed before: whatever its address led to, the program stayed at the replica."""
    with rmq_spark.connect(url, patience_s=5) as broker:
        broker.create("T", "FixedTime", 1)
        queue = broker.queue("T")
        queue.send(["a"], fixed_time=1000)
        replaced()
        assert queue.send(["b"], fixed_time=1000).new == 1
        assert queue.figures().store.count == 2


def test_connections_of_asyncio_to_a_master_that_became_a_replica_are_left(url, replaced):
    """Failed before: as above."""

    async def main():
        async with await aio.connect(url, patience_s=5) as broker:
            await broker.create("T", "FixedTime", 1)
            queue = await broker.queue("T")
            await queue.send(["a"], fixed_time=1000)
            await asyncio.to_thread(replaced)
            assert (await queue.send(["b"], fixed_time=1000)).new == 1
            assert (await queue.figures()).store.count == 2

    asyncio.run(main())
