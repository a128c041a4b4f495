"""The queue of one topic, for asyncio."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from rmq_spark.aio.gathered_sends import ClockNeeded, GatheredSends
from rmq_spark.client.messages import Message
from rmq_spark.client.queue import Contents, Queue
from rmq_spark.client.tracing import is_recording
from rmq_spark.protocol.claims import Figures
from rmq_spark.protocol.pages import Page, QueueKind
from rmq_spark.protocol.sending import SendResult
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.transport.awaiting import run_awaiting


class AsyncQueue:
    """A topic, and one of its consumer groups. From ``await broker.queue``.

    Any number of tasks of one event loop can call it at the same time. What they call at the same
    moment shares a round trip. Arguments, results and errors are those of Queue. If a task is
    cancelled while it calls, Redis may do what was asked all the same.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._gathered = GatheredSends(queue)

    def __repr__(self) -> str:
        return f"Async{self._queue!r}"

    @property
    def definition(self) -> TopicDefinition:
        """The topic's definition, as last read."""
        return self._queue.definition

    async def send(self, messages: Iterable[Message | bytes | str], **values: Any) -> SendResult:
        """Send messages. See Queue.send."""
        return await run_awaiting(self._queue.send, messages, **values)

    async def send_one(
        self, message: Message | bytes | str, *, past_fixed_time: str = "send", **values: Any
    ) -> None:
        """Send a message. For web services, in which many tasks send single messages.

        It goes together with those that other tasks send at the same moment, which takes less of
        both computers. So whether it was new or merged is not told; for that, use send. Arguments
        and errors are those of Queue.send; an error of the call is raised for all of its messages.
        """
        if past_fixed_time == "send" and not is_recording():
            try:
                await self._gathered.send(message, Message(**values))
            except ClockNeeded:
                pass
            else:
                return
        await self.send([message], past_fixed_time=past_fixed_time, **values)

    async def cancel(self, contents: Contents, **slot_basis: Any) -> int:
        """Remove contents that no consumer of this group has claimed yet. See Queue.cancel."""
        return await run_awaiting(self._queue.cancel, contents, **slot_basis)

    async def requeue(self, contents: Contents, **values: Any) -> int:
        """Requeue contents from the dead queue as first deliveries. See Queue.requeue."""
        return await run_awaiting(self._queue.requeue, contents, **values)

    async def purge(
        self, contents: Contents, kind: QueueKind | str = QueueKind.DEAD, **slot_basis: Any
    ) -> int:
        """Delete contents from one queue for good. See Queue.purge."""
        return await run_awaiting(self._queue.purge, contents, kind, **slot_basis)

    async def expire(self) -> int:
        """Give back all claims whose lease has expired. See Queue.expire."""
        return await run_awaiting(self._queue.expire)

    async def figures(self) -> Figures:
        """Return the sizes of all queues and the counters, summed up over all slots."""
        return await run_awaiting(self._queue.figures)

    async def pages(self, kind: QueueKind | str, slot: int) -> AsyncIterator[Page]:
        """Yield one queue of one slot page by page. See Queue.pages."""
        pages = self._queue.pages(kind, slot)
        while (page := await run_awaiting(next, pages, None)) is not None:
            yield page

    async def now_ms(self) -> int:
        """Return Redis' time in ms since 1970."""
        return await run_awaiting(self._queue.now_ms)
