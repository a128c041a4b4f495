"""The client for asyncio: a Redis server and its topics, their queues, and consumers."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from rmq_spark.aio.listener import AsyncListener
from rmq_spark.client.broker import Broker, connection_from
from rmq_spark.client.messages import Message, Outgoing, outgoing
from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.batch import Batch
from rmq_spark.client.receiving.child_process import is_async
from rmq_spark.client.receiving.consumer import DEFAULT_LIMIT, Consumer
from rmq_spark.client.receiving.listener import Listener
from rmq_spark.client.tracing import is_recording
from rmq_spark.errors import ConsumerMisused, InvalidMessage, InvalidOption, TopicFull
from rmq_spark.protocol.claims import Delivered
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, Page, QueueKind
from rmq_spark.protocol.sending import SendResult
from rmq_spark.redis.aio import AsyncServer, Batcher, greenlet_spawn
from rmq_spark.redis.connection import ConnectionOptions
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsing import Duration

# How many sends of single messages are on their way at the same time. What comes meanwhile goes
# with the next one: it waits less than a round trip.
_SENDS = 2
_MESSAGES_A_SEND = 1000
# A checked message, and the definition that it was checked for.
_Checked = tuple[Outgoing, TopicDefinition]


P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A coroutine method that calls this one of ``_sync``, with its signature and contract."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **values: P.kwargs) -> T:
        return await greenlet_spawn(method, self._sync, *args, **values)

    return call


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
        self._sync = Broker(server, key_prefix=key_prefix)
        # Listeners call Redis in threads.
        self._connection, self._patience_s = connection, patience_s
        self._for_threads: Broker | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"Async{self._sync!r}"

    async def close(self) -> None:
        """Close the connections to Redis."""
        if self._for_threads is not None:
            self._for_threads.close()
        await greenlet_spawn(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    find = _awaited(Broker.find)
    definition = _awaited(Broker.definition)
    topics = _awaited(Broker.topics)
    create = _awaited(Broker.create)  # type: ignore[arg-type]  # its settings: no self
    alter = _awaited(Broker.alter)  # type: ignore[arg-type]
    delete = _awaited(Broker.delete)
    add_group = _awaited(Broker.add_group)
    remove_group = _awaited(Broker.remove_group)
    pause = _awaited(Broker.pause)
    resume = _awaited(Broker.resume)
    hold = _awaited(Broker.hold)
    schedule = _awaited(Broker.schedule)
    schedules = _awaited(Broker.schedules)
    unschedule = _awaited(Broker.unschedule)
    pause_schedule = _awaited(Broker.pause_schedule)
    resume_schedule = _awaited(Broker.resume_schedule)

    async def queue(self, name: str, *, group: str | None = None) -> "AsyncQueue":
        """Return the queue of an existing topic. See Broker.queue. Open it once, and keep it."""
        return AsyncQueue(await greenlet_spawn(self._sync.queue, name, group=group))

    def consumer(self, topic: str, name: str, **settings: Any) -> "AsyncConsumer":
        """Return a consumer for an ``async with`` statement. See Broker.consumer.

        The errors of Broker.consumer are raised at the start of the block.
        """
        return AsyncConsumer(partial(self._sync.consumer, topic, name, **settings))

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
        if not is_async(function):
            raise InvalidOption(
                f"listen got a {type(function).__name__}. Accepted: an async function of one "
                "argument (async def), not one that only returns a coroutine. For a plain one, use "
                "rmq_spark.connect."
            )
        if settings.get("processes"):
            raise InvalidOption("processes=True is not accepted in asyncio: use rmq_spark.connect.")
        return AsyncListener(partial(self._listener, topic, name, function, settings))

    def _listener(
        self,
        topic: str,
        name: str,
        function: Callable[[Delivered], Awaitable[Any]],
        settings: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> Listener:
        with self._opening:
            if self._for_threads is None:
                server = Server(self._connection, self._patience_s)
                self._for_threads = Broker(server, key_prefix=self._sync.key_prefix)
        return self._for_threads.listen(topic, name, function, loop=loop, **settings)


class AsyncQueue:
    """A topic, and one of its consumer groups. From ``await broker.queue``.

    Any number of tasks of one event loop can call it at the same time. What they call at the same
    moment shares a round trip. Arguments, results and errors are those of Queue. If a task is
    cancelled while it calls, Redis may do what was asked all the same.
    """

    def __init__(self, queue: Queue) -> None:
        self._sync = queue
        self._sends = Batcher[_Checked, TopicFull | None](
            self._send_together,
            key=lambda checked: id(checked[1]),
            size=lambda checked: 1,
            runs=_SENDS,
            most=_MESSAGES_A_SEND,
        )

    def __repr__(self) -> str:
        return f"Async{self._sync!r}"

    @property
    def definition(self) -> TopicDefinition:
        """The topic's definition, as last read."""
        return self._sync.definition

    @property
    def slots(self) -> range:
        """All slots of the topic."""
        return self._sync.slots

    send = _awaited(Queue.send)

    async def send_one(
        self, message: Message | bytes | str, *, past_fixed_time: str = "send", **values: Any
    ) -> None:
        """Send a message. For web services, in which many tasks send single messages.

        It goes together with those that other tasks send at the same moment, which takes less of
        both computers. So whether it was new or merged is not told; for that, use send. Arguments
        and errors are those of Queue.send, and key for a keyed topic; an error of the call is
        raised for all of its messages, TopicFull for those for which there was no room.
        """
        if "content" in values:
            raise InvalidMessage("send_one got content twice. Accepted: as its first argument.")
        if "key" in values:
            given = message if isinstance(message, Message) else Message(message)
            message = replace(given, key=values.pop("key"))
        if past_fixed_time == "send" and not is_recording():
            topic, defaults = self._sync.definition, Message(**values)
            try:
                checked = outgoing([message], defaults, topic, now_ms=_refuse)
            except _ClockNeeded:
                values["headers"] = defaults.headers  # an iterator is read only once
            else:
                if full := await self._sends.run((checked, topic)):
                    raise full
                return
        await self.send([message], past_fixed_time=past_fixed_time, **values)

    async def _send_together(self, together: list[_Checked]) -> list[TopicFull | None]:
        merged = _merged(checked for checked, _ in together)
        try:
            await greenlet_spawn(self._sync.send_checked, merged, together[0][1])
        except TopicFull as full:
            counted: Counter[int] = Counter()
            return [_refusal_of(one, counted, full) for one, _ in together]
        return [None] * len(together)

    cancel = _awaited(Queue.cancel)
    accept_again = _awaited(Queue.accept_again)
    move = _awaited(Queue.move)
    find = _awaited(Queue.find)
    requeue = _awaited(Queue.requeue)
    purge = _awaited(Queue.purge)
    expire = _awaited(Queue.expire)
    figures = _awaited(Queue.figures)
    now_ms = _awaited(Queue.now_ms)

    async def pages(
        self, kind: QueueKind | str, slot: int, scores: Bounds = UNBOUNDED
    ) -> AsyncIterator[Page]:
        """Yield one queue of one slot page by page. See Queue.pages."""
        pages = self._sync.pages(kind, slot, scores)
        while (page := await greenlet_spawn(next, pages, None)) is not None:
            yield page


def _refuse() -> NoReturn:
    raise _ClockNeeded


def _refusal_of(one: Outgoing, before: Counter[int], full: TopicFull) -> TopicFull | None:
    """Return the error of a single message, if its slot had no room for it.

    before: how many messages of the call came before it, by slot.
    """
    (slot,) = one.pairs
    before[slot] += 1
    if before[slot] - 1 not in full.refused.get(slot, ()):
        return None
    own = copy(full.others.get(slot, full))
    own.others, own.refused, own.sent = {}, {slot: {0}}, SendResult(0, 0)
    return own


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
        self._sync = batch

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self._sync)

    def __len__(self) -> int:
        return len(self._sync)

    commit = _awaited(Batch.commit)
    rollback = _awaited(Batch.rollback)
    mark_unread = _awaited(Batch.mark_unread)
    renew = _awaited(Batch.renew)


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
        self._is_used = False

    @property
    def _sync(self) -> Consumer:
        if self._opened is None:
            raise ConsumerMisused(
                "This consumer is not open. Use it in an async with statement: "
                "async with broker.consumer(...) as consumer:"
            )
        return self._opened

    async def __aenter__(self) -> Self:
        if self._is_used:
            raise ConsumerMisused("This consumer is open. Make another one with broker.consumer.")
        self._is_used = True
        try:
            self._opened = await greenlet_spawn(self._open_consumer)
        except BaseException:
            self._is_used = False
            raise
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._is_used = False
        await greenlet_spawn(self._sync.__exit__, *error)

    async def batches(
        self, limit: int = DEFAULT_LIMIT, *, wait: bool = True
    ) -> AsyncIterator[AsyncBatch]:
        """Yield batches of up to ``limit`` messages. See Consumer.batches."""
        batches = self._sync.batches(limit, wait=wait)
        while (batch := await greenlet_spawn(next, batches, None)) is not None:
            yield AsyncBatch(batch)

    async def poll(self, limit: int = DEFAULT_LIMIT, *, wait: Duration = 0) -> AsyncBatch:
        """Take up to ``limit`` due messages, after waiting for them. See Consumer.poll."""
        return AsyncBatch(await greenlet_spawn(self._sync.poll, limit, wait=wait))

    close = _awaited(Consumer.close)
    forget = _awaited(Consumer.forget)
