"""The listener for asyncio: a coroutine function is called for every message."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

from rmq_spark.client.receiving.listener import DEFAULT_GRACE, Listener
from rmq_spark.topics.durations import Duration

# How often the start of a block looks whether the listener has begun.
_BEGINNING_S = 0.005
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class AsyncListener:
    """Calls a coroutine function for every message of a topic. From ``broker.listen``.

    ::

        await broker.listen("Orders", "billing", bill, workers=100).run()

    Or use it in an ``async with`` statement, beside the program's other work. The calls run in the
    event loop; threads beside it take the messages, renew leases and commit.
    """

    def __init__(self, open_listener: Callable[[asyncio.AbstractEventLoop], Listener]) -> None:
        self._open_listener = open_listener
        self._listener: Listener | None = None
        self._running: asyncio.Task[None] | None = None

    async def run(self, *, grace: Duration = DEFAULT_GRACE) -> None:
        """Call the function for messages until ``stop``, SIGTERM or SIGINT, or a cancellation.

        grace: how long a stop waits for messages in work. After that their calls are cancelled, and
        they come again. Raises what Listener.run raises.
        """
        loop = asyncio.get_running_loop()
        with _stopped_by_signals(loop, partial(self.stop, grace)):
            await self._run(await self._open(), grace)

    async def _open(self) -> Listener:
        loop = asyncio.get_running_loop()
        self._listener = await asyncio.to_thread(self._open_listener, loop)
        return self._listener

    async def _run(self, listener: Listener, grace: Duration) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.run_in_executor(None, partial(listener.run, grace=grace))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            listener.stop(grace)
            await ended
            raise

    def stop(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Let ``run`` take nothing more, finish what is in work, and return."""
        if self._listener is not None:
            self._listener.stop(grace)

    async def __aenter__(self) -> Self:
        listener = await self._open()
        self._running = asyncio.create_task(self._run(listener, DEFAULT_GRACE))
        while not (listener.is_running or self._running.done()):
            await asyncio.sleep(_BEGINNING_S)
        if self._running.done():
            await self._running
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._running is None:
            return
        self._running.cancel()
        try:
            await self._running
        except asyncio.CancelledError:
            pass
        except Exception:
            if error is None:
                raise

    @property
    def is_running(self) -> bool:
        """Whether it takes messages: it has begun, and neither a stop nor an error has ended it."""
        return self._listener is not None and self._listener.is_running

    @property
    def succeeded(self) -> int:
        """The number of messages for which the function has succeeded."""
        return 0 if self._listener is None else self._listener.succeeded

    @property
    def failed(self) -> int:
        """The number of messages for which the function has failed."""
        return 0 if self._listener is None else self._listener.failed

    @property
    def left_alone(self) -> int:
        """The number of failed messages whose lease had ended, so that they come again anyway."""
        return 0 if self._listener is None else self._listener.left_alone


@contextmanager
def _stopped_by_signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None]
) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT call a function, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def handle() -> None:
        restore()
        stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        restore()
