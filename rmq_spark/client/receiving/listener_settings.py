"""What a listener calls, and how."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq_spark.client.receiving.callers import (
    Caller,
    LoopCaller,
    ProcessCaller,
    ThreadCaller,
    pickled_for_processes,
)
from rmq_spark.client.receiving.child_process import is_async
from rmq_spark.errors import InvalidOption, quoted
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.parsing import (
    LONGEST_DURATION_MS,
    Duration,
    check_amount,
    duration_text,
    parse_wait_ms,
)
from rmq_spark.topics.verdicts import parse_delay_ms

DEFAULT_WORKERS = 8


def _check_function(function: object) -> None:
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


def place_of(function: object) -> str:
    """Return where a function is, such as shop.billing.bill."""
    module = getattr(function, "__module__", type(function).__module__)
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


@dataclass(frozen=True)
class ListenerSettings:
    """The function of a listener, and how it is called.

    lease_ms: of a claim. timeout_ms: the longest time for a message. delay_ms: the wait before a
    retry; None for the topic's backoff. loop: the event loop of another thread, in which to run a
    coroutine function; None for that of this process. budget: how many messages may be in work at
    the same time, shared with other listeners.
    """

    function: Callable[[Delivered], Any]
    workers: int
    lease_ms: int
    processes: bool = False
    timeout_ms: int | None = None
    delay_ms: int | None = None
    ensemble: EnsembleOptions | None = None
    loop: asyncio.AbstractEventLoop | None = None
    budget: threading.Semaphore | None = None

    @classmethod
    def parse(
        cls,
        function: Callable[[Delivered], Any],
        *,
        visibility_timeout: Duration,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        **others: Any,
    ) -> "ListenerSettings":
        """Parse the times of Broker.listen. Raises InvalidOption."""
        return cls(
            function,
            lease_ms=parse_lease_ms(visibility_timeout),
            timeout_ms=None if timeout is None else _parse_limit_ms("timeout", timeout),
            delay_ms=None if delay is None else parse_delay_ms(delay),
            **others,
        )

    def __post_init__(self) -> None:
        _check_function(self.function)
        check_amount("workers", self.workers)

    @property
    def hanging_after_s(self) -> float | None:
        """The time after which a worker that hangs is given up, unless it can end the call."""
        return None if self.processes or self._is_async else self._timeout_s

    def callers(self, group: str) -> Callable[[], Caller]:
        """Return what opens the caller of a worker. group: the consumer group, for traces."""
        if self.processes:
            pickled = pickled_for_processes(self.function)
            return partial(ProcessCaller, pickled, group, self._timeout_s)
        if self._is_async:
            return partial(LoopCaller, self.function, group, self.loop, self._timeout_s)
        return partial(ThreadCaller, self.function, group)

    @property
    def uses_own_loop(self) -> bool:
        """Whether the function runs in the event loop of this process."""
        return self.loop is None and not self.processes and is_async(self.function)

    @property
    def _is_async(self) -> bool:
        return self.loop is not None or self.uses_own_loop

    @property
    def _timeout_s(self) -> float | None:
        return None if self.timeout_ms is None else self.timeout_ms / 1000


def parse_lease_ms(given: Duration) -> int:
    """Parse a visibility timeout. Raises InvalidOption."""
    return _parse_limit_ms("visibility_timeout", given)


def _parse_limit_ms(name: str, given: Duration) -> int:
    """Parse a limit of time. A lease that is no number to Lua would spoil the record of a claim."""
    limit_ms = parse_wait_ms(name, given)
    if not 1 <= limit_ms <= LONGEST_DURATION_MS:
        accepted = f"1ms to {duration_text(LONGEST_DURATION_MS)}"
        raise InvalidOption(f"{name}={quoted(given)} is not accepted. Accepted: {accepted}.")
    return limit_ms
