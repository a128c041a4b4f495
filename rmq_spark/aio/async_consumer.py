"""The consumer for asyncio: take a batch, work, commit."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Self

from rmq_spark.client.receiving.batch import Batch
from rmq_spark.client.receiving.consumer import DEFAULT_LIMIT, Consumer
from rmq_spark.errors import ConsumerMisused
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.durations import Duration
from rmq_spark.transport.awaiting import run_awaiting

_FOREVER = timedelta(days=36500)


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
        return await run_awaiting(self._batch.commit)

    async def rollback(
        self, messages: Iterable[Delivered] | None = None, **delay_and_reason: Any
    ) -> int:
        """Roll back ``messages``, or the whole batch. Return their number."""
        return await run_awaiting(self._batch.rollback, messages, **delay_and_reason)

    async def mark_unread(self) -> None:
        """Mark the batch as unread, so that it costs no retry."""
        await run_awaiting(self._batch.mark_unread)

    async def renew(self) -> None:
        """Renew the lease, for a batch that takes a long time."""
        await run_awaiting(self._batch.renew)


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
        self._opened = await run_awaiting(self._open_consumer)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await run_awaiting(self._consumer.__exit__, *error)

    async def batches(
        self, limit: int = DEFAULT_LIMIT, *, wait: bool = True
    ) -> AsyncIterator[AsyncBatch]:
        """Yield batches of up to ``limit`` messages. See Consumer.batches."""
        while batch := await self.poll(limit, wait=_FOREVER if wait else 0):
            yield batch

    async def poll(self, limit: int = DEFAULT_LIMIT, *, wait: Duration = 0) -> AsyncBatch:
        """Take up to ``limit`` due messages, after waiting for them. See Consumer.poll."""
        return AsyncBatch(await run_awaiting(self._consumer.poll, limit, wait=wait))

    async def close(self) -> None:
        """Close the consumer and give back its uncommitted messages."""
        await run_awaiting(self._consumer.close)

    async def forget(self) -> None:
        """Close the consumer and delete its state in Redis. For a name that is used only once."""
        await run_awaiting(self._consumer.forget)
