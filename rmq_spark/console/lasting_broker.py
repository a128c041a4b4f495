"""The connection of the console to Redis, which is made when it is needed, and made again."""

import threading
from collections.abc import Callable

from rmq_spark.client.broker import Broker


class LastingBroker:
    """A broker that many requests share. connect: connects to Redis."""

    def __init__(self, connect: Callable[[], Broker]) -> None:
        self._connect = connect
        self._broker: Broker | None = None
        self._lock = threading.Lock()

    def get(self) -> Broker:
        """Return the broker, connected at the first call that succeeds. Raises ServerError."""
        with self._lock:
            if self._broker is None:
                self._broker = self._connect()
            return self._broker

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._broker is not None:
                self._broker.close()
