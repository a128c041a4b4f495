"""The event loop of a process, in which listeners run async functions."""

import asyncio
import atexit
import contextlib
import os
import threading

# How long tasks that are left may take to end when the process ends.
_CLOSING_S = 5.0


class OwnLoop:
    """An event loop in a thread of its own, from its first use to the end of the process.

    All listeners share it, because what their functions share belongs to one loop: an HTTP client,
    a pool of connections, a lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs."""
        with self._lock:
            if self._thread is None:
                self._thread = _LoopThread()
                self._thread.start()
            return self._thread.loop

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use another loop from now on: a function blocks this one."""
        with self._lock:
            if self._thread is not None and self._thread.loop is loop:
                self._thread = None

    def forget(self) -> None:
        """Forget the loop, in a copy of its process, where it does not run."""
        self._lock, self._thread = threading.Lock(), None

    def close(self) -> None:
        """Cancel the tasks that are left, and wait for their end."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()


class _LoopThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="rmq-async", daemon=True)
        self._runner = asyncio.Runner()
        self.loop = self._runner.get_loop()
        self._is_closing = False

    def run(self) -> None:
        with self._runner:
            while not self._is_closing:
                # What a task of a function raises so, or its call of stop(), must not end the rest.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self.loop.run_forever()

    def close(self) -> None:
        self._is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(_CLOSING_S)


OWN_LOOP = OwnLoop()
os.register_at_fork(after_in_child=OWN_LOOP.forget)
atexit.register(OWN_LOOP.close)
