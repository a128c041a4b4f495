"""The server for blocking code within asyncio: it gives way to the event loop while it waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from rmq_spark.transport.async_routing import AsyncCluster, AsyncOneServer, Gathering
from rmq_spark.transport.awaiting import TaskLock, awaited
from rmq_spark.transport.caller import Caller
from rmq_spark.transport.connection import (
    ConnectionOptions,
    client_arguments,
    sentinel_arguments,
)
from rmq_spark.transport.late_calls import on_async_connect
from rmq_spark.transport.routing import Cluster, OneServer
from rmq_spark.transport.server import Server

_T = TypeVar("_T")

# Consumers that wait for messages take one each.
_MOST_THREADS = 256


class AsyncServer(Server):
    """A server whose methods are called within run_awaiting, in one event loop.

    Commands go through redis-py's asyncio client. Its blocking client, in threads, loads scripts,
    knows the nodes of a cluster, and receives wake-ups.
    """

    def __init__(self, options: ConnectionOptions, patience_s: float | None = None) -> None:
        """Connect and check the server. Arguments and errors as for Server."""
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "rmq-aside")
        super().__init__(options, patience_s)

    def aside(self, run: Callable[[], _T]) -> _T:
        """Run a function in a thread."""
        return awaited(asyncio.get_running_loop().run_in_executor(self._threads, run))

    def pause(self, seconds: float) -> None:
        """Wait for a time."""
        awaited(asyncio.sleep(seconds))

    def caller(self) -> Caller:
        """Return the task that calls."""
        task = asyncio.current_task()
        if task is None:
            return super().caller()
        return Caller("task", task.get_name(), id(task), lambda: not task.done())

    def new_lock(self) -> AbstractContextManager[Any]:
        """Return a lock between tasks, which its holder may take again."""
        return TaskLock()

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._threads.shutdown(wait=False)

    def _route(self) -> OneServer | Cluster:
        if self.is_cluster:
            return AsyncCluster(self.client, self._open_node, self.aside)
        gathering = Gathering(self._new_client(), self.address)
        return AsyncOneServer(self.client, gathering, self.address)

    def _open_node(self, host: str, port: int) -> Gathering:
        of_url = {**parse_url(self._options.url), "host": host, "port": port}
        pool = redis.asyncio.ConnectionPool(**{**of_url, **self._arguments()})
        return Gathering(redis.asyncio.Redis.from_pool(pool), f"{host}:{port}")

    def _new_client(self) -> Any:
        sentinels = self._options.sentinels
        if sentinels is None:
            return redis.asyncio.Redis.from_url(self._options.url, **self._arguments())
        arguments, to_sentinels = sentinel_arguments(sentinels, self._arguments())
        known = Sentinel(sentinels.nodes, sentinel_kwargs=to_sentinels, **arguments)  # type: ignore[no-untyped-call]
        return known.master_for(sentinels.master)

    def _arguments(self) -> dict[str, Any]:
        own = {"retry": Retry(NoBackoff(), 0), "redis_connect_func": on_async_connect}
        return own | client_arguments(self._options)
