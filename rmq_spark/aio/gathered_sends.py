"""Single messages of many tasks, sent together."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from rmq_spark.client.messages import Message, Outgoing, outgoing
from rmq_spark.client.queue import Queue
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.transport.awaiting import run_awaiting

# How many sends of a queue are on their way at the same time. What comes meanwhile goes with the
# next one: it waits less than a round trip.
_SENDS = 2
_MESSAGES_A_SEND = 1000


class ClockNeeded(Exception):
    """The time of a message depends on Redis' clock, which only a call can read."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A checked message, the definition that it was checked for, and the future of its caller."""

    checked: Outgoing
    topic: TopicDefinition
    sent: asyncio.Future[None]


class GatheredSends:
    """Sends what tasks ask for at the same moment in one call. For one queue and event loop."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: deque[_Waiting] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_due = False

    async def send(self, message: Message | bytes | str, defaults: Message) -> None:
        """Send a message. Raises ClockNeeded, InvalidMessage, and other errors of Queue.send."""
        topic = self._queue.definition
        checked = outgoing([message], defaults, topic, now_ms=_refuse)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(checked, topic, loop.create_future())
        self._waiting.append(waiting)
        if not self._is_due and len(self._under_way) < _SENDS:
            self._is_due = True
            loop.call_soon(self._send)
        await waiting.sent

    def _send(self) -> None:
        self._is_due = False
        if not self._waiting:
            return
        together = [self._waiting.popleft()]
        while self._waiting and self._waiting[0].topic is together[0].topic:
            together.append(self._waiting.popleft())
            if len(together) == _MESSAGES_A_SEND:
                break
        task = asyncio.get_running_loop().create_task(self._run(together))
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not self._is_due:
            self._send()

    async def _run(self, together: list[_Waiting]) -> None:
        try:
            merged = _merged(waiting.checked for waiting in together)
            await run_awaiting(self._queue._send_checked, merged, together[0].topic)
        except BaseException as error:
            for waiting in together:
                _fail(waiting.sent, error)
        else:
            for waiting in together:
                if not waiting.sent.done():  # else its task was cancelled
                    waiting.sent.set_result(None)


def _refuse() -> NoReturn:
    raise ClockNeeded


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


def _fail(sent: asyncio.Future[None], error: BaseException) -> None:
    if sent.done():
        return
    if isinstance(error, asyncio.CancelledError):  # the event loop ends
        sent.cancel()
    else:
        sent.set_exception(error)
