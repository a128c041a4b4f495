"""What a listener does with messages: its function, how it is called, and for how long."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq_spark.client.receiving.callers import Caller, LoopCaller, ThreadCaller, check_function
from rmq_spark.client.receiving.child_process import ProcessCaller, pickled_for_processes
from rmq_spark.errors import InvalidOption
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.parsers import check_amount

DEFAULT_WORKERS = 8


@dataclass(frozen=True)
class ListenerSettings:
    """The function of a listener, and how it is called. Raises InvalidOption.

    workers: how many messages are in work at the same time. processes: whether the function runs in
    child processes. lease_ms: the lease of a claim. timeout_ms: the longest time for a message;
    None for no limit. delay_ms: the wait before the retry of a message; None for the topic's
    backoff. ensemble: the ZooKeeper through which to own slots. loop: the event loop of another
    thread, in which to run a coroutine function; None for one in each worker.
    """

    function: Callable[[Delivered], Any]
    workers: int
    lease_ms: int
    processes: bool = False
    timeout_ms: int | None = None
    delay_ms: int | None = None
    ensemble: EnsembleOptions | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        check_function(self.function)
        check_amount("workers", self.workers)
        if self.timeout_ms == 0:
            raise InvalidOption("timeout=0 is not accepted. Accepted: 1ms or more.")

    @property
    def hanging_after_s(self) -> float | None:
        """The time after which a worker that hangs is given up, unless it can end the call."""
        ends_calls = self.processes or self.loop is not None
        return None if ends_calls else self._timeout_s

    def callers(self, group: str) -> Callable[[], Caller]:
        """Return what opens the caller of a worker. group: the consumer group, for traces.

        Raises InvalidOption for a function that other processes cannot import.
        """
        if self.processes:
            pickled = pickled_for_processes(self.function)
            return partial(ProcessCaller, pickled, group, self._timeout_s)
        if self.loop is not None:
            return partial(LoopCaller, self.function, group, self.loop, self._timeout_s)
        return partial(ThreadCaller, self.function, group)

    @property
    def _timeout_s(self) -> float | None:
        return None if self.timeout_ms is None else self.timeout_ms / 1000
