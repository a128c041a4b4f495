"""The event loop of a process, in which listeners run async functions."""

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# How often the loop shows that it comes round, and how long it may not before it counts as blocked.
_TICK_S, BLOCKED_AFTER_S = 0.5, 2.0
_MOST_THREADS = 1000


class _Threads(ThreadPoolExecutor):
    """Threads for the calls of asyncio.to_thread, up to _MOST_THREADS; further calls wait.

    Python's own serves some six calls at the same time, those of all listeners together, and waits
    for its threads at the end of the process, however long they take.
    """

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        with self._turn:
            if self._running == _MOST_THREADS:
                self._waiting.append(run)
                return future
            self._running += 1
        thread = threading.Thread(target=self._work, args=(run,), name="rmq-thread", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            with self._turn:
                self._running -= 1
                if not self._running:
                    raise
                self._waiting.append(run)
        return future

    def _work(self, run: Callable[[], None] | None) -> None:
        while run is not None:
            run()
            with self._turn:
                run = self._waiting.popleft() if self._waiting else None
                self._running -= run is None


class OwnLoop:
    """An event loop in a thread of its own, from its first use to the end of the process.

    All listeners share it, because what their functions share belongs to one loop: an HTTP client,
    a pool of connections, a lock.
    """

    def __init__(self) -> None:
        self._begin = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticked_s = 0.0

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs."""
        with self._begin:
            if self._loop is None:
                self._loop = loop = asyncio.new_event_loop()
                loop.set_default_executor(_Threads())
                self._ticked_s = time.monotonic()
                loop.call_soon(self._tick, loop)
                # A daemon: messages of calls that still run are redelivered, as after a kill.
                threading.Thread(target=_run, args=(loop,), name="rmq-async", daemon=True).start()
            return self._loop

    @property
    def silent_s(self) -> float:
        """How long the loop has not come round, because a function blocks it."""
        return time.monotonic() - self._ticked_s if self._loop is not None else 0.0

    def forget(self) -> None:
        """Forget the loop, in a copy of its process, where it does not run."""
        self._begin, self._loop = threading.Lock(), None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticked_s = time.monotonic()
        loop.call_later(_TICK_S, self._tick, loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        # What a task of a function raises so, or its call of stop(), must not end the rest.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


OWN_LOOP = OwnLoop()
os.register_at_fork(after_in_child=OWN_LOOP.forget)
