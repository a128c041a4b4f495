"""The connection of the console to ZooKeeper, made when an exclusive topic is looked at."""

import threading
import time
from typing import TYPE_CHECKING, Any

from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving.owned_slots import topic_in_zookeeper
from rmq_spark.errors import InvalidOption, OwnershipError
from rmq_spark.ownership.ensemble import EnsembleOptions

if TYPE_CHECKING:
    from rmq_spark.ownership.owners_seen import MemberSeen

# Pages that ask within this time share an answer.
MEMBERS_S = 3.0
# A ZooKeeper that did not answer is not asked again for so long: each attempt makes a page wait.
REST_S = 20.0


class LastingEnsemble:
    """A ZooKeeper that many requests share."""

    def __init__(self, options: EnsembleOptions) -> None:
        self.options = options
        self._client: Any = None
        self._failed: tuple[float, OwnershipError] | None = None
        self._known: dict[str, tuple[float, list[MemberSeen]]] = {}
        self._lock = threading.Lock()

    def members(self, queue: Queue) -> "list[MemberSeen]":
        """Return the members of a topic. Raises OwnershipError, InvalidOption."""
        topic = topic_in_zookeeper(queue)
        with self._lock:
            read_s, members = self._known.get(topic, (0.0, []))
            if read_s and time.monotonic() - read_s < MEMBERS_S:
                return members
            if self._failed and time.monotonic() - self._failed[0] < REST_S:
                raise self._failed[1]
            try:
                members = self._read(topic)
            except OwnershipError as error:
                self._failed = time.monotonic(), error
                raise
            self._known[topic] = time.monotonic(), members
            return members

    def _read(self, topic: str) -> "list[MemberSeen]":
        try:
            from rmq_spark.ownership.owners_seen import members_seen
            from rmq_spark.ownership.zookeeper import new_client
        except ModuleNotFoundError as error:
            raise InvalidOption(
                f"zookeeper.hosts needs the package {error.name}: "
                "pip install 'rmq-spark[zookeeper]'"
            ) from None
        if self._client is None:
            self._client = new_client(self.options)
        return members_seen(self._client, self.options, topic)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._client is not None:
                self._client.stop()
                self._client.close()
