"""A call that was given up does not run later, when its successors have run."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time

import pytest
import redis

from rmq_spark.redis.aio import AsyncServer, greenlet_spawn
from rmq_spark.redis.connection import new_client, parse_connection

from ..waiting import wait_until

# More than the kernel takes in for a Redis that does not read, and less than it takes to send.
CALL = ("RPUSH", "late", bytes(2_000_000))
# More than it takes to send, so that a part waits in the program.
LARGE_CALL = ("RPUSH", "late", bytes(50_000_000))


@contextlib.contextmanager
def stopped(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def options(server):
    return parse_connection({"url": server.url, "sockettimeout": "500ms"})


def late_calls(server):
    """How many of the calls have run, once Redis has seen that the connections are closed."""
    with redis.Redis.from_url(server.url) as other:
        wait_until(lambda: len(other.client_list()) == 1, "the end of the connections")
        return other.llen("late")


def test_what_redis_has_not_received_is_dropped(own_redis):
    client = new_client(options(own_redis))
    client.ping()
    with stopped(own_redis), pytest.raises(redis.TimeoutError):
        client.execute_command(*CALL)
    client.close()
    assert late_calls(own_redis) == 0


def test_it_is_dropped_also_if_a_forked_process_has_a_copy_of_the_connection(own_redis):
    client = new_client(options(own_redis))
    client.ping()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    try:
        with stopped(own_redis), pytest.raises(redis.TimeoutError):
            client.execute_command(*CALL)
        client.close()
        assert late_calls(own_redis) == 0
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("call", [CALL, LARGE_CALL], ids=["sent", "partly sent"])
def test_what_asyncio_has_not_sent_is_dropped(own_redis, call):
    async def main():
        server = await greenlet_spawn(lambda: AsyncServer(options(own_redis)))
        client = server._new_client()
        await client.ping()
        with stopped(own_redis):
            with pytest.raises((redis.TimeoutError, TimeoutError)):
                await client.execute_command(*call)
            await client.aclose()
            await asyncio.sleep(0.05)  # asyncio closes a moment later
        await greenlet_spawn(server.close)

    asyncio.run(main())
    assert late_calls(own_redis) == 0
