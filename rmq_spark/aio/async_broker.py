"""A Redis server and its topics, for asyncio."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

from rmq_spark.aio.async_consumer import AsyncConsumer
from rmq_spark.aio.async_listener import AsyncListener
from rmq_spark.aio.async_queue import AsyncQueue
from rmq_spark.client.broker import Broker
from rmq_spark.client.connecting import connection_from
from rmq_spark.client.receiving.listener import Listener
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.topic_types import TopicType
from rmq_spark.transport.async_server import AsyncServer
from rmq_spark.transport.awaiting import run_awaiting
from rmq_spark.transport.connection import ConnectionOptions
from rmq_spark.transport.server import Server


async def connect(
    url: str | None = None, *, key_prefix: str = "", patience_s: float | None = None, **options: str
) -> "AsyncBroker":
    """Connect to Redis from a program with asyncio. Arguments and errors as for client.connect.

    The broker belongs to the event loop that runs.
    """
    connection = connection_from(url, options)
    server = await run_awaiting(AsyncServer, connection, patience_s)
    await run_awaiting(server.warn_if_not_on_disk)
    return AsyncBroker(server, connection, patience_s, key_prefix)


class AsyncBroker:
    """The topics of one Redis database. From ``await connect()``.

    An asynchronous context manager, which closes the connections. Arguments, results and errors are
    those of Broker.
    """

    def __init__(
        self,
        server: AsyncServer,
        connection: ConnectionOptions,
        patience_s: float | None,
        key_prefix: str,
    ) -> None:
        self._broker = Broker(server, key_prefix=key_prefix)
        # Listeners call Redis in threads.
        self._connection, self._patience_s = connection, patience_s
        self._for_threads: Broker | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"Async{self._broker!r}"

    async def close(self) -> None:
        """Close the connections to Redis."""
        await run_awaiting(self._broker.close)
        if self._for_threads is not None:
            self._for_threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def find(self, name: str) -> TopicDefinition | None:
        """Return a topic's definition, or None."""
        return await run_awaiting(self._broker.find, name)

    async def definition(self, name: str) -> TopicDefinition:
        """Return the definition of a topic. Raises UnknownTopic if it does not exist."""
        return await run_awaiting(self._broker.definition, name)

    async def topics(self) -> list[TopicDefinition]:
        """Return the definitions of all topics, sorted by name."""
        return await run_awaiting(self._broker.topics)

    async def create(
        self,
        name: str,
        topic_type: TopicType | str,
        slot_amount: int | None = None,
        **settings: Any,
    ) -> TopicDefinition:
        """Create a topic, or return an existing one. See Broker.create."""
        return await run_awaiting(self._broker.create, name, topic_type, slot_amount, **settings)

    async def alter(self, name: str, **changes: Any) -> TopicDefinition:
        """Change settings of a topic. See Broker.alter."""
        return await run_awaiting(self._broker.alter, name, **changes)

    async def delete(self, name: str) -> None:
        """Delete a topic with everything that it holds."""
        await run_awaiting(self._broker.delete, name)

    async def add_group(self, name: str, group: str) -> TopicDefinition:
        """Add a consumer group to a topic. See Broker.add_group."""
        return await run_awaiting(self._broker.add_group, name, group)

    async def remove_group(self, name: str, group: str, *, drop: bool = False) -> int:
        """Remove a consumer group from a topic. See Broker.remove_group."""
        return await run_awaiting(self._broker.remove_group, name, group, drop=drop)

    async def queue(self, name: str, *, group: str | None = None) -> AsyncQueue:
        """Return the queue of an existing topic. See Broker.queue. Open it once, and keep it."""
        return AsyncQueue(await run_awaiting(self._broker.queue, name, group=group))

    def consumer(self, topic: str, name: str, **settings: Any) -> AsyncConsumer:
        """Return a consumer for an ``async with`` statement. See Broker.consumer.

        The errors of Broker.consumer are raised at the start of the block.
        """
        return AsyncConsumer(partial(self._broker.consumer, topic, name, **settings))

    def listen(
        self,
        topic: str,
        name: str,
        function: Callable[[Delivered], Awaitable[Any]],
        **settings: Any,
    ) -> AsyncListener:
        """Return a listener that calls a coroutine function for every message. Call its ``run``.

        settings: as for Broker.listen, without processes. A call that takes longer than timeout is
        cancelled. Raises InvalidOption for another function; other errors of Broker.listen are
        raised by run.
        """
        if not inspect.iscoroutinefunction(function):
            raise InvalidOption(
                f"listen got a {type(function).__name__}. Accepted: an async function of one "
                "argument. For a plain one, use rmq_spark.client."
            )
        if settings.get("processes"):
            raise InvalidOption("processes=True is not accepted in asyncio: use rmq_spark.client.")
        return AsyncListener(partial(self._listener, topic, name, function, settings))

    def _listener(
        self,
        topic: str,
        name: str,
        function: Callable[[Delivered], Awaitable[Any]],
        settings: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> Listener:
        """Open a listener, in a thread."""
        with self._opening:
            if self._for_threads is None:
                server = Server(self._connection, self._patience_s)
                self._for_threads = Broker(server, key_prefix=self._broker.key_prefix)
        return self._for_threads.listen(topic, name, function, loop=loop, **settings)
