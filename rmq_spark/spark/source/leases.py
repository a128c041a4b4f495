"""Lease renewal: a thread in the driver's reader process that keeps the claims of a run alive."""

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from rmq_spark.client.queue import Queue
from rmq_spark.errors import Fenced, RmqError, ServerUnavailable
from rmq_spark.process import UnfailingLog
from rmq_spark.protocol import claiming
from rmq_spark.protocol.calls import Request, all_of
from rmq_spark.redis.server import Server
from rmq_spark.spark.options import SourceOptions

_log = UnfailingLog(__name__)

# The longest wait after a round in which Redis could not be reached.
AGAIN_S = 1.0


@dataclass(frozen=True)
class _Held:
    """The claims of one batch in one topic. since: when it began, in monotonic seconds."""

    seq: int
    queue: Queue
    slots: frozenset[int]
    since: float


class LeaseTimer:
    """The thread that renews the leases of one run, every third of the lease.

    It renews the claims of a batch while the batch is in progress, and then until the next trigger:
    only that shows that Spark has finished the batch. It stops renewing a batch that is older than
    maxProcessingTime. The thread ends by itself when a newer run has taken over. Any other failure
    is logged, and the thread tries again after the next third of the lease, or within a second
    if Redis could not be reached: some topics may have missed the moment when it came back.
    """

    def __init__(self, options: SourceOptions, consumer: str, run: int, committed: int) -> None:
        self._options = options
        self._committed = committed
        self._consumer = consumer
        self._run = run
        self._held: list[_Held] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._wait_s = options.lease_ms / 3000
        self._thread: threading.Thread | None = None

    def hold(self, seq: int, queue: Queue, slots: Iterable[int]) -> None:
        with self._lock:
            self._held.append(_Held(seq, queue, frozenset(slots), time.monotonic()))
        if (self._thread is None or not self._thread.is_alive()) and not self._ended.is_set():
            self._thread = threading.Thread(target=self._renew_until_ended, daemon=True)
            self._thread.start()

    def let_go(self, seq: int) -> None:
        with self._lock:
            self._held = [held for held in self._held if held.seq > seq]
            self._committed = max(self._committed, seq)

    def slots(self) -> dict[str, frozenset[int]]:
        """Return the slots of all held batches by topic, including batches that are too old."""
        with self._lock:
            return {name: slots for name, (_, slots) in _by_topic(self._held).items()}

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _renew_until_ended(self) -> None:
        server: Server | None = None
        while not self._ended.wait(self._wait_s):
            try:
                server = self._renew_all(server)
            except Fenced as error:
                _log.warning(
                    "rmq: the leases of consumer %s are no longer renewed: %s",
                    self._consumer,
                    error,
                )
                break
        _close(server)

    def _renew_all(self, server: Server | None) -> Server | None:
        """Renew the leases in every topic, even if that fails in one.

        Takes the connection of the last call, and returns that of the next; None for a new one. Not
        the reader's, which may be in the middle of a reply.
        """
        held = list(self._to_renew().values())
        self._wait_s = self._options.lease_ms / 3000
        # All at once: over a slow link, a thousand topics one after another take longer than a
        # lease. One by one only if that fails.
        groups = [held] if held else []
        while groups:
            topics = groups.pop()
            try:
                server = server or Server(self._options.connection, self._options.patience_s)
                server.ask(all_of(self._renewal(*topic) for topic in topics))
            except Fenced:
                raise
            except Exception as error:  # if the thread died, a healthy query would lose its claims
                _log.warning(
                    "rmq: could not renew the leases of %s: %s: %s",
                    self._consumer,
                    type(error).__name__,
                    error,
                )
                if isinstance(error, ServerUnavailable):
                    self._wait_s = min(AGAIN_S, self._wait_s)
                if isinstance(error, ServerUnavailable) or not isinstance(error, RmqError):
                    _close(server)
                    server = None
                if len(topics) > 1:  # the node of another topic may answer
                    groups = [[topic] for topic in topics]
        return server

    def _renewal(self, queue: Queue, slots: Iterable[int]) -> Request[dict[int, int]]:
        terms = self._consumer, self._run, self._options.lease_ms
        return claiming.renew(queue.queues, sorted(slots), *terms, since=self._committed)

    def _to_renew(self) -> dict[str, tuple[Queue, frozenset[int]]]:
        longest = self._options.max_processing_ms
        since = -float("inf") if longest is None else time.monotonic() - longest / 1000
        with self._lock:
            return _by_topic(held for held in self._held if held.since >= since)


def _by_topic(held: Iterable[_Held]) -> dict[str, tuple[Queue, frozenset[int]]]:
    found: dict[str, tuple[Queue, frozenset[int]]] = {}
    for one in held:
        name = one.queue.definition.name
        _, slots = found.get(name, (one.queue, frozenset()))
        found[name] = one.queue, slots | one.slots
    return found


def _close(server: Server | None) -> None:
    if server is not None:
        with contextlib.suppress(Exception):
            server.close()
