"""Blocking code within asyncio: a greenlet that gives way to the event loop while it waits.

The client and the transport are written once, for threads. Within ``run_awaiting``, what they wait
for is awaited instead, so the event loop goes on. ``awaited`` is called at these places only:
commands to Redis (async_routing), pauses, locks, and what runs aside in a thread (async_server).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

import greenlet

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Blocking(greenlet.greenlet):  # type: ignore[misc] # greenlet has no types
    """A greenlet that runs blocking code, and hands what it must wait for to its parent."""


def may_await() -> bool:
    """Return whether this is code within run_awaiting, and not another thread."""
    return isinstance(greenlet.getcurrent(), _Blocking)


def awaited(awaitable: Awaitable[_T]) -> _T:
    """Wait for an awaitable, from blocking code within run_awaiting. Raises what it raises."""
    if not may_await():
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError("This object belongs to rmq_spark.aio. Call it from a coroutine there.")
    return cast(_T, greenlet.getcurrent().parent.switch(awaitable))


async def run_awaiting(function: Callable[_P, _T], *args: _P.args, **keywords: _P.kwargs) -> _T:
    """Run blocking code, which may call awaited. Return its result or raise its error.

    If the task is cancelled, the code gets a CancelledError where it waits.
    """
    current = greenlet.getcurrent()
    blocking = _Blocking(function, current)
    blocking.gr_context = current.gr_context  # the task's context variables, such as its span
    result = blocking.switch(*args, **keywords)
    while not blocking.dead:
        try:
            value: Any = await result
        except BaseException as error:
            result = blocking.throw(error)
        else:
            result = blocking.switch(value)
    return cast(_T, result)


class TaskLock:
    """A lock between tasks, for blocking code within run_awaiting. A task may take it again."""

    def __init__(self) -> None:
        self._owner: asyncio.Task[Any] | None = None
        self._depth = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __enter__(self) -> None:
        me = asyncio.current_task()
        while self._owner not in (None, me):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                awaited(turn)
            except BaseException:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:  # it was ours already
                    self._wake_next()
                raise
        self._owner = me
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
