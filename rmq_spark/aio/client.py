"""The client for asyncio: a Redis server and its topics, their queues, and consumers."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, NoReturn, Self

from rmq_spark.aio.listener import AsyncListener
from rmq_spark.client.broker import Broker, connection_from
from rmq_spark.client.messages import Message, Outgoing, outgoing
from rmq_spark.client.queue import Contents, Queue
from rmq_spark.client.receiving.consumer import DEFAULT_LIMIT, Batch, Consumer
from rmq_spark.client.receiving.listener import Listener
from rmq_spark.client.tracing import is_recording
from rmq_spark.errors import ConsumerMisused, InvalidOption
from rmq_spark.protocol.claims import Delivered, Figures
from rmq_spark.protocol.pages import Entry, Page, QueueKind
from rmq_spark.protocol.sending import SendResult
from rmq_spark.redis.aio import AsyncServer, Batcher, greenlet_spawn
from rmq_spark.redis.connection import ConnectionOptions
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsing import Duration
from rmq_spark.topics.types import TopicType

_FOREVER = timedelta(days=36500)
# How many sends of single messages are on their way at the same time. What comes meanwhile goes
# with the next one: it waits less than a round trip.
_SENDS = 2
_MESSAGES_A_SEND = 1000
# A checked message, and the definition that it was checked for.
_Checked = tuple[Outgoing, TopicDefinition]


class _ClockNeeded(Exception):
    """The time of a message depends on Redis' clock, which only a call can read."""


async def connect(
    url: str | None = None, *, key_prefix: str = "", patience_s: float | None = None, **options: Any
) -> "AsyncBroker":
    """Connect to Redis from a program with asyncio. Arguments and errors as for client.connect.

    The broker belongs to the event loop that runs.
    """
    connection = connection_from(url, options)
    server = await greenlet_spawn(AsyncServer, connection, patience_s)
    await greenlet_spawn(server.warn_if_not_on_disk)
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
        await greenlet_spawn(self._broker.close)
        if self._for_threads is not None:
            self._for_threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def find(self, name: str) -> TopicDefinition | None:
        """Return a topic's definition, or None."""
        return await greenlet_spawn(self._broker.find, name)

    async def definition(self, name: str) -> TopicDefinition:
        """Return the definition of a topic. Raises UnknownTopic if it does not exist."""
        return await greenlet_spawn(self._broker.definition, name)

    async def topics(self) -> list[TopicDefinition]:
        """Return the definitions of all topics, sorted by name."""
        return await greenlet_spawn(self._broker.topics)

    async def create(
        self,
        name: str,
        topic_type: TopicType | str,
        slot_amount: int | None = None,
        **settings: Any,
    ) -> TopicDefinition:
        """Create a topic, or return an existing one. See Broker.create."""
        return await greenlet_spawn(self._broker.create, name, topic_type, slot_amount, **settings)

    async def alter(self, name: str, **changes: Any) -> TopicDefinition:
        """Change settings of a topic. See Broker.alter."""
        return await greenlet_spawn(self._broker.alter, name, **changes)

    async def delete(self, name: str) -> None:
        """Delete a topic with everything that it holds."""
        await greenlet_spawn(self._broker.delete, name)

    async def add_group(self, name: str, group: str) -> TopicDefinition:
        """Add a consumer group to a topic. See Broker.add_group."""
        return await greenlet_spawn(self._broker.add_group, name, group)

    async def pause(self, name: str, *, group: str | None = None) -> TopicDefinition:
        """Let nobody, or no consumer of one group, get new messages. See Broker.pause."""
        return await greenlet_spawn(self._broker.pause, name, group=group)

    async def resume(self, name: str, *, group: str | None = None) -> TopicDefinition:
        """Let all, or the consumers of one group, get messages again. See Broker.resume."""
        return await greenlet_spawn(self._broker.resume, name, group=group)

    async def remove_group(self, name: str, group: str, *, drop: bool = False) -> int:
        """Remove a consumer group from a topic. See Broker.remove_group."""
        return await greenlet_spawn(self._broker.remove_group, name, group, drop=drop)

    async def queue(self, name: str, *, group: str | None = None) -> "AsyncQueue":
        """Return the queue of an existing topic. See Broker.queue. Open it once, and keep it."""
        return AsyncQueue(await greenlet_spawn(self._broker.queue, name, group=group))

    def consumer(self, topic: str, name: str, **settings: Any) -> "AsyncConsumer":
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
        cancelled, and given up if that has not ended it after 10 s. Raises InvalidOption for
        another function; other errors of Broker.listen are raised by run.
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


class AsyncQueue:
    """A topic, and one of its consumer groups. From ``await broker.queue``.

    Any number of tasks of one event loop can call it at the same time. What they call at the same
    moment shares a round trip. Arguments, results and errors are those of Queue. If a task is
    cancelled while it calls, Redis may do what was asked all the same.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._sends = Batcher[_Checked, None](
            self._send_together,
            key=lambda checked: id(checked[1]),
            size=lambda checked: 1,
            runs=_SENDS,
            most=_MESSAGES_A_SEND,
        )

    def __repr__(self) -> str:
        return f"Async{self._queue!r}"

    @property
    def definition(self) -> TopicDefinition:
        """The topic's definition, as last read."""
        return self._queue.definition

    async def send(self, messages: Iterable[Message | bytes | str], **values: Any) -> SendResult:
        """Send messages. See Queue.send."""
        return await greenlet_spawn(self._queue.send, messages, **values)

    async def send_one(
        self, message: Message | bytes | str, *, past_fixed_time: str = "send", **values: Any
    ) -> None:
        """Send a message. For web services, in which many tasks send single messages.

        It goes together with those that other tasks send at the same moment, which takes less of
        both computers. So whether it was new or merged is not told; for that, use send. Arguments
        and errors are those of Queue.send; an error of the call is raised for all of its messages.
        """
        if past_fixed_time == "send" and not is_recording():
            topic = self._queue.definition
            with suppress(_ClockNeeded):
                checked = outgoing([message], Message(**values), topic, now_ms=_refuse)
                await self._sends.run((checked, topic))
                return
        await self.send([message], past_fixed_time=past_fixed_time, **values)

    async def _send_together(self, together: list[_Checked]) -> list[None]:
        merged = _merged(checked for checked, _ in together)
        await greenlet_spawn(self._queue.send_checked, merged, together[0][1])
        return [None] * len(together)

    async def cancel(self, contents: Contents, **slot_basis: Any) -> int:
        """Remove contents that no consumer of this group has claimed yet. See Queue.cancel."""
        return await greenlet_spawn(self._queue.cancel, contents, **slot_basis)

    async def move(self, contents: Contents, **value: Any) -> int:
        """Give contents that wait another due time or priority. See Queue.move."""
        return await greenlet_spawn(self._queue.move, contents, **value)

    async def find(self, contents: Contents, **slot_basis: Any) -> list[Entry]:
        """Find messages in all queues. See Queue.find."""
        return await greenlet_spawn(self._queue.find, contents, **slot_basis)

    async def requeue(self, contents: Contents, **values: Any) -> int:
        """Requeue contents from the dead queue as first deliveries. See Queue.requeue."""
        return await greenlet_spawn(self._queue.requeue, contents, **values)

    async def purge(
        self, contents: Contents, kind: QueueKind | str = QueueKind.DEAD, **slot_basis: Any
    ) -> int:
        """Delete contents from one queue for good. See Queue.purge."""
        return await greenlet_spawn(self._queue.purge, contents, kind, **slot_basis)

    async def expire(self) -> int:
        """Give back all claims whose lease has expired. See Queue.expire."""
        return await greenlet_spawn(self._queue.expire)

    async def figures(self) -> Figures:
        """Return the sizes of all queues and the counters, summed up over all slots."""
        return await greenlet_spawn(self._queue.figures)

    async def pages(self, kind: QueueKind | str, slot: int) -> AsyncIterator[Page]:
        """Yield one queue of one slot page by page. See Queue.pages."""
        pages = self._queue.pages(kind, slot)
        while (page := await greenlet_spawn(next, pages, None)) is not None:
            yield page

    async def now_ms(self) -> int:
        """Return Redis' time in ms since 1970."""
        return await greenlet_spawn(self._queue.now_ms)


def _refuse() -> NoReturn:
    raise _ClockNeeded


def _merged(parts: Iterable[Outgoing]) -> Outgoing:
    """Combine checked messages into those of one call, in order."""
    pairs: dict[int, list[Any]] = {}
    bodies: dict[int, list[bytes]] = {}
    has_bodies = False
    for part in parts:
        has_bodies = has_bodies or bool(part.bodies)
        for slot, of_slot in part.pairs.items():
            pairs.setdefault(slot, []).extend(of_slot)
            without = (value for name in islice(of_slot, 1, None, 2) for value in (name, b""))
            bodies.setdefault(slot, []).extend(part.bodies.get(slot) or without)
    return Outgoing(pairs, bodies if has_bodies else {})


class AsyncBatch:
    """Messages that a consumer has taken and not yet committed. Iterate over it.

    Its methods do what those of Batch do.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self._batch)

    def __len__(self) -> int:
        return len(self._batch)

    async def commit(self) -> int:
        """Commit the messages that were not rolled back. Return their number."""
        return await greenlet_spawn(self._batch.commit)

    async def rollback(self, messages: Iterable[Delivered] | None = None, **how: Any) -> int:
        """Roll back ``messages``, or the whole batch. Return their number."""
        return await greenlet_spawn(self._batch.rollback, messages, **how)

    async def mark_unread(self) -> None:
        """Mark the batch as unread, so that it costs no retry."""
        await greenlet_spawn(self._batch.mark_unread)

    async def renew(self) -> None:
        """Renew the lease, for a batch that takes a long time."""
        await greenlet_spawn(self._batch.renew)


class AsyncConsumer:
    """A consumer that takes due messages of a topic, one batch at a time.

    ::

        async with broker.consumer("Orders", "billing") as consumer:
            async for batch in consumer.batches(limit=100):
                for message in batch:
                    await bill(message.content)
                await batch.commit()

    A batch that is not committed is given back when you take the next one or the ``async with``
    block ends, also by a cancelled task. Otherwise, it is as Consumer. It belongs to one task at a
    time.
    """

    def __init__(self, open_consumer: Callable[[], Consumer]) -> None:
        """Connect nothing yet. open_consumer: called at the start of the block."""
        self._open_consumer = open_consumer
        self._opened: Consumer | None = None

    @property
    def _consumer(self) -> Consumer:
        if self._opened is None:
            raise ConsumerMisused(
                "This consumer is not open. Use it in an async with statement: "
                "async with broker.consumer(...) as consumer:"
            )
        return self._opened

    async def __aenter__(self) -> Self:
        self._opened = await greenlet_spawn(self._open_consumer)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await greenlet_spawn(self._consumer.__exit__, *error)

    async def batches(
        self, limit: int = DEFAULT_LIMIT, *, wait: bool = True
    ) -> AsyncIterator[AsyncBatch]:
        """Yield batches of up to ``limit`` messages. See Consumer.batches."""
        while batch := await self.poll(limit, wait=_FOREVER if wait else 0):
            yield batch

    async def poll(self, limit: int = DEFAULT_LIMIT, *, wait: Duration = 0) -> AsyncBatch:
        """Take up to ``limit`` due messages, after waiting for them. See Consumer.poll."""
        return AsyncBatch(await greenlet_spawn(self._consumer.poll, limit, wait=wait))

    async def close(self) -> None:
        """Close the consumer and give back its uncommitted messages."""
        await greenlet_spawn(self._consumer.close)

    async def forget(self) -> None:
        """Close the consumer and delete its state in Redis. For a name that is used only once."""
        await greenlet_spawn(self._consumer.forget)
