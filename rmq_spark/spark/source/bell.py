"""The wake-ups of a query: they notify its driver that messages of its topics fall due."""

import time
from collections.abc import Iterable

from rmq_spark.client.queue import Queue
from rmq_spark.transport.server import Server
from rmq_spark.transport.wakeups import Wakeups


class TopicsBell:
    """The wake-ups of all slots of some topics. Times are those of time.monotonic."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stores: frozenset[str] = frozenset()
        self._wakeups: Wakeups | None = None

    def listen(self, queues: Iterable[Queue]) -> None:
        """Receive the wake-ups of these topics from now on, and no others."""
        stores = frozenset(queue.keys.store(slot) for queue in queues for slot in queue.slots)
        if stores != self._stores:
            self.close()
            self._stores = stores
            self._wakeups = Wakeups(self._server, stores)

    def close(self) -> None:
        """Receive no more wake-ups."""
        if self._wakeups is not None:
            self._wakeups.close()
            self._wakeups = None
            self._stores = frozenset()

    @property
    def hears_all(self) -> bool:
        """Whether Redis sends the wake-ups of all slots."""
        return self._wakeups is not None and self._wakeups.hears_all

    def wait(self, timeout_s: float) -> None:
        """Sleep until a wake-up comes, at most so long."""
        if self._wakeups is None:
            time.sleep(timeout_s)
        else:
            self._wakeups.wait(timeout_s)

    def first(self) -> float | None:
        """Take the wake-ups that came, and return when the first message falls due; or None."""
        if self._wakeups is None:
            return None
        woken, fresh = self._wakeups.take()
        times = [0.0] if fresh else list(woken.values())
        return min(times, default=None)
