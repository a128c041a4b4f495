"""How a listener calls its function for a message: in a thread, or in the caller's event loop."""

import asyncio
import inspect
import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

from rmq_spark.client.tracing import mark_failed, process_span
from rmq_spark.errors import ConsumerMisused, InvalidOption
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.durations import duration_text
from rmq_spark.topics.reasons import reason_of

# How often a call that waits for an event loop looks whether that has ended.
_LOOK_EVERY_S = 1.0
# After how many looks in a row an event loop that does not run has ended. It may run again for a
# program that calls run_until_complete several times.
_ENDED_AFTER = 10


class Caller(Protocol):
    """Calls a function for messages, one after another."""

    def prepare(self) -> None:
        """Get ready for a call, before the message counts as begun."""
        ...

    def call(self, message: Delivered) -> str | None:
        """Call the function. Return None, or the reason if it has failed."""
        ...

    def give_up(self) -> None:
        """End the call in work, if that is possible. Any thread may call it."""
        ...

    def close(self) -> None:
        """Free what the caller holds."""
        ...


class ThreadCaller:
    """Calls a function or a coroutine function in the current thread, without a limit of time."""

    def __init__(self, function: Callable[[Delivered], Any], group: str) -> None:
        self._function = function
        self._group = group
        self._loop = asyncio.Runner() if inspect.iscoroutinefunction(function) else None
        self._process = os.getpid()

    def prepare(self) -> None:
        """Do nothing."""

    def call(self, message: Delivered) -> str | None:
        """Call the function. Return None, or the reason if it has raised."""
        reason = self._call(message)
        if os.getpid() != self._process:  # the function has forked, and this is the copy
            os._exit(0)
        return reason

    def _call(self, message: Delivered) -> str | None:
        headers = [message.headers]
        with process_span(message.topic, message.slot, headers, group=self._group) as span:
            try:
                if self._loop is not None:
                    self._loop.run(self._function(message))
                else:
                    refuse_unrun(self._function(message))
            except BaseException as error:  # a sys.exit() would leave the slot without a worker
                mark_failed(span, error)
                return reason_of(error)
        return None

    def give_up(self) -> None:
        """Do nothing: Python cannot end a thread."""

    def close(self) -> None:
        """End the event loop of a coroutine function."""
        if self._loop is not None:
            self._loop.close()


class LoopCaller:
    """Calls a coroutine function in an event loop that runs in another thread."""

    def __init__(
        self,
        function: Callable[[Delivered], Any],
        group: str,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float | None,
    ) -> None:
        self._function = function
        self._group = group
        self._loop = loop
        self._timeout_s = timeout_s
        self._in_work: Future[str | None] | None = None

    def prepare(self) -> None:
        """Do nothing."""

    def call(self, message: Delivered) -> str | None:
        """Call the function. Return None, or the reason if it has raised or took too long.

        Raises ConsumerMisused if the event loop has ended, with or without an end of the call.
        """
        called = self._run(message)
        try:
            self._in_work = asyncio.run_coroutine_threadsafe(called, self._loop)
        except RuntimeError:
            called.close()
            raise _loop_ended() from None
        try:
            return self._result(self._in_work)
        except CancelledError:
            return "CancelledError: the call was cancelled"

    def _result(self, in_work: "Future[str | None]") -> str | None:
        looks_without = 0
        while looks_without < _ENDED_AFTER and not self._loop.is_closed():
            try:
                return in_work.result(_LOOK_EVERY_S)
            except TimeoutError:  # not the function's own, which _run returns
                looks_without = 0 if self._loop.is_running() else looks_without + 1
        if in_work.done():
            return in_work.result()
        raise _loop_ended()

    def give_up(self) -> None:
        """Cancel the call in work."""
        if self._in_work is not None:
            self._in_work.cancel()

    def close(self) -> None:
        """Do nothing: the loop belongs to others."""

    async def _run(self, message: Delivered) -> str | None:
        headers = [message.headers]
        with process_span(message.topic, message.slot, headers, group=self._group) as span:
            try:
                await self._call(message)
            except (Exception, SystemExit) as error:
                mark_failed(span, error)
                return reason_of(error)
        return None

    async def _call(self, message: Delivered) -> None:
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                await self._function(message)
        except TimeoutError:
            if timeout.expired():
                raise TimeoutError(too_long(self._timeout_s)) from None
            raise


def _loop_ended() -> ConsumerMisused:
    return ConsumerMisused(
        "The event loop of this listener has ended before the listener. Its messages come again. "
        "Stop the listener first: await its run(), or use it in an async with statement, within "
        "asyncio.run."
    )


def too_long(timeout_s: float | None) -> str:
    """Say that a call took longer than its time."""
    return f"took longer than {duration_text(round(1000 * (timeout_s or 0)))}"


def check_function(function: object) -> None:
    """Raise InvalidOption for what is no function that a listener can call."""
    accepted = "Accepted: a function of one argument, or an async function."
    if not callable(function):
        raise InvalidOption(f"listen got a {type(function).__name__}. {accepted}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"The function of listen is a generator: it would not run. {accepted}")
    try:
        inspect.signature(function).bind("a message")
    except TypeError as error:
        raise InvalidOption(
            f"The function of listen cannot be called with a message ({error}). {accepted}"
        ) from None
    except ValueError:
        pass  # some built-in functions do not tell


def refuse_unrun(returned: Any) -> None:
    """Raise TypeError for a coroutine or generator: it has not run, so the message is not done."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise TypeError(
            f"The function returned a {type(returned).__name__}, which has not run. Accepted: a "
            "function that does its work before it returns, or an async function."
        )
