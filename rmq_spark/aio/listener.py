"""The listener for asyncio: a coroutine function is called for every message."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Self, TypeVar

from rmq_spark.client.receiving.listener import DEFAULT_GRACE, HAS_RUN, Counts, Listener
from rmq_spark.errors import ConsumerMisused
from rmq_spark.process import stopped_by_signals
from rmq_spark.topics.parsing import Duration

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How often the start of a block looks whether the listener has begun.
_BEGINNING_S = 0.005


class AsyncListener(Counts):
    """Calls a coroutine function for every message of a topic. From ``broker.listen``.

    ::

        await broker.listen("Orders", "billing", bill, workers=100).run()

    Or use it in an ``async with`` statement, beside the program's other work. The calls run in the
    event loop; threads beside it take the messages, renew leases and commit.
    """

    def __init__(self, open_listener: Callable[[asyncio.AbstractEventLoop], Listener]) -> None:
        self._open_listener = open_listener
        self._listener: Listener | None = None
        self._is_used = False
        self._running: asyncio.Task[None] | None = None
        self._stop_asked: Duration | None = None  # the grace of a stop before it was open

    async def run(self, *, grace: Duration = DEFAULT_GRACE) -> None:
        """Call the function for messages until ``stop``, SIGTERM or SIGINT, or a cancellation.

        grace: how long a stop waits for running calls. After that their calls are cancelled, and
        they are redelivered. Raises what Listener.run raises.
        """
        loop = asyncio.get_running_loop()

        def stop(_: int) -> None:
            loop.call_soon_threadsafe(self.stop, grace)

        with stopped_by_signals(stop, is_over=loop.is_closed):
            await self._run(await self._open(), grace)

    async def _open(self) -> Listener:
        if self._is_used:
            raise ConsumerMisused(HAS_RUN)
        self._is_used = True
        loop = asyncio.get_running_loop()
        try:
            listener = await _in_a_thread(partial(self._open_listener, loop), "that opens", loop)
        except BaseException:
            self._is_used = False
            raise
        self._listener = listener
        if self._stop_asked is not None:
            listener.stop(self._stop_asked)
        return listener

    async def _run(self, listener: Listener, grace: Duration) -> None:
        loop = asyncio.get_running_loop()
        ended = _in_a_thread(partial(listener.run, grace=grace), listener.name, loop)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            if self._stop_asked is None:  # else with a grace of its own
                listener.stop(grace)
            await ended
            raise

    def stop(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Let ``run`` take nothing more, finish what is in progress, and return."""
        self._stop_asked = grace
        if self._listener is not None:
            self._listener.stop(grace)

    async def __aenter__(self) -> Self:
        listener = await self._open()
        running = self._running = asyncio.create_task(self._run(listener, DEFAULT_GRACE))
        try:
            while not (listener.is_running or running.done()):
                await asyncio.sleep(_BEGINNING_S)
        except asyncio.CancelledError:  # the block is not entered, so nothing would end it
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise
        if running.done():
            await running
        running.add_done_callback(partial(_tell_end, listener))
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.wait([self._running])
        if error is None and not self._running.cancelled():
            await self._running

    @property
    def is_running(self) -> bool:
        """Whether it takes messages: it has begun, and neither a stop nor an error has ended it."""
        return self._listener is not None and self._listener.is_running

    @property
    def is_ready(self) -> bool:
        """Whether it takes messages, and Redis answers it."""
        return self._listener is not None and self._listener.is_ready

    @property
    def is_stuck(self) -> bool:
        """Whether it hangs or has ended by an error. See Listener.is_stuck."""
        return self._listener is not None and self._listener.is_stuck

    @property
    def opened(self) -> Listener | None:
        """The listener that reads the topic; None before ``run`` or the block has opened it."""
        return self._listener

    @property
    def _counting(self) -> Listener | None:
        return self._listener


def _tell_end(listener: Listener, running: "asyncio.Task[None]") -> None:
    """Log the error that has ended a listener, because its block may go on for long."""
    if not running.cancelled() and (error := running.exception()) is not None:
        _log.error("rmq: listener %s has ended: %s", listener, error)


def _in_a_thread(
    work: Callable[[], T], which: str, loop: asyncio.AbstractEventLoop
) -> "asyncio.Future[T]":
    """Do a listener's blocking work in a thread of its own. Return a future of the result.

    The loop's default threads may all be busy. A program whose event loop has ended need not wait
    for the thread to exit. which: names the listener if its work fails after that.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            if not loop.is_closed() and done.set_running_or_notify_cancel():
                done.set_exception(error)
            else:  # nobody waits for it
                _log.error("rmq: listener %s has ended: %s", which, error)
        else:
            if not loop.is_closed() and done.set_running_or_notify_cancel():
                done.set_result(result)

    threading.Thread(target=run, name="rmq-listener", daemon=True).start()
    return asyncio.wrap_future(done, loop=loop)
