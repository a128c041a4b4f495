"""Wake-ups: how Redis notifies waiting readers that a message falls due (lua/include/wake.lua)."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from redis import exceptions as redis_errors

from rmq_spark.protocol.packing import chunks
from rmq_spark.redis.failures import PERMIT, root_of
from rmq_spark.redis.server import FIRST_WITH_SHARDED_CHANNELS, Server

_log = logging.getLogger(__name__)

# How long a thread reads before it looks whether it is still needed.
_READ_S = 1.0
# A server that is silent for so long is asked whether it is there, and given up after twice that.
_SILENCE_S = 10.0
_RECONNECT_S = 1.0
_MESSAGES = ("message", "smessage")
_SUBSCRIBED = ("subscribe", "ssubscribe")
_UNSUBSCRIBED = ("unsubscribe", "sunsubscribe")


class Notifications:
    """The wake-ups of some stores, which threads receive, one for each node of Redis.

    A wake-up can be missed: while a connection is broken, or from a sender who may not publish. Who
    waits must therefore look into Redis now and then. Any thread can call the methods.
    """

    def __init__(self, server: Server, stores: Iterable[str]) -> None:
        """Listen to stores from now on. server: must stay open until close is called."""
        self._server = server
        self._sharded = server.version >= FIRST_WITH_SHARDED_CHANNELS
        self._changed = threading.Condition()
        # All under the condition. Times are of time.monotonic.
        self._woken: dict[str, float] = {}
        self._fresh: set[str] = set()
        self._deaf = set(stores)
        self._asked: dict[Any, set[str]] = {}  # of the thread of each node, by its client
        self._poked = False
        self._closed = False
        if self._deaf:
            self._start(sorted(self._deaf))

    def close(self) -> None:
        """Stop listening. The threads end within about a second."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def hears_all(self) -> bool:
        """Whether Redis has confirmed every store. If not, who waits must look often."""
        with self._changed:
            return not self._deaf

    def wait(self, timeout_s: float) -> bool:
        """Wait for something to take, a poke, a close, or a timeout. Return if it was a poke."""
        with self._changed:
            self._changed.wait_for(self._has_something, timeout_s)
            poked, self._poked = self._poked, False
            return poked

    def _has_something(self) -> bool:
        return bool(self._woken or self._fresh or self._poked or self._closed)

    def poke(self) -> None:
        """End the wait of a thread, or its next one."""
        with self._changed:
            self._poked = True
            self._changed.notify_all()

    def take(self) -> tuple[dict[str, float], set[str]]:
        """Take what came since the last call.

        Returns the times of time.monotonic at which messages of stores fall due; and the stores
        whose wake-ups are received only since then, so that messages may have come unheard.
        """
        with self._changed:
            woken, self._woken = self._woken, {}
            fresh, self._fresh = self._fresh, set()
            return woken, fresh

    def _start(self, stores: Sequence[str]) -> None:
        threading.Thread(target=self._run, args=(stores,), name="rmq-wakeups", daemon=True).start()

    @property
    def _is_needed(self) -> bool:
        return not self._closed and not self._server.closed

    def _run(self, stores: Iterable[str]) -> None:
        while self._is_needed:
            client = None
            try:
                client = self._spread(list(stores))
                if client is None:
                    return
                self._listen(client)
            except redis_errors.NoPermissionError:
                self._lose(client)
                self._warn_of_refusal()
                return
            except Exception as error:  # redis-py fails in any way if its pool is closed meanwhile
                if self._is_needed:
                    _log.debug("rmq: waiting for wake-ups again: %s", type(root_of(error)).__name__)
            stores = self._lose(client) or stores
            time.sleep(_RECONNECT_S)
            self._server.refresh_nodes()

    def _spread(self, stores: Sequence[str]) -> Any:
        """Give stores to the threads of their nodes. This thread becomes that of one without.

        Returns the client of its node; None if other threads have all stores.
        """
        own = None
        for client, of_node in self._server.nodes_of(stores):
            with self._changed:
                if client in self._asked:
                    self._asked[client].update(of_node)
                elif own is None:
                    own, self._asked[client] = client, set(of_node)
                else:
                    self._start(of_node)
        return own

    def _listen(self, client: Any) -> None:
        """Receive wake-ups until they are no longer needed. Raises the error of a connection."""
        with contextlib.closing(client.pubsub()) as pubsub:
            subscribe = pubsub.ssubscribe if self._sharded else pubsub.subscribe
            asked: set[str] = set()
            confirmed: set[str] = set()
            heard = time.monotonic()
            while self._is_needed:
                with self._changed:
                    more = sorted(self._asked[client] - asked)
                # In a cluster, one command takes only sharded channels of one hash slot.
                for part in chunks(more, 1 if self._server.is_cluster else len(more) or 1):
                    subscribe(*part)
                asked.update(more)
                message = pubsub.get_message(timeout=_READ_S)
                if message is not None:
                    heard = time.monotonic()
                    self._receive(message, confirmed, len(asked))
                elif time.monotonic() - heard > 2 * _SILENCE_S:
                    raise redis_errors.TimeoutError
                elif time.monotonic() - heard > _SILENCE_S:
                    pubsub.ping()

    def _receive(self, message: dict[str, Any], confirmed: set[str], asked: int) -> None:
        """Note a message. confirmed: the stores whose subscription it is, of so many asked for."""
        kind = message["type"]
        if kind in _UNSUBSCRIBED:
            raise redis_errors.ConnectionError  # the slot has moved to another node
        if kind not in (*_MESSAGES, *_SUBSCRIBED):
            return
        store = message["channel"].decode()
        with self._changed:
            if kind in _SUBSCRIBED:
                confirmed.add(store)
                if len(confirmed) == asked:
                    self._fresh |= confirmed & self._deaf
                    self._deaf -= confirmed
            else:
                due = time.monotonic() + int(message["data"]) / 1000
                self._woken[store] = min(due, self._woken.get(store, due))
            self._changed.notify_all()

    def _lose(self, client: Any) -> set[str]:
        """Return the stores of a node whose connection is broken, if any."""
        with self._changed:
            lost = self._asked.pop(client, set())
            self._deaf |= lost
            return lost

    def _warn_of_refusal(self) -> None:
        command = "ssubscribe" if self._sharded else "subscribe"
        _log.warning(
            "rmq: Redis at %s does not permit this user to receive wake-ups (+%s +ping, and & "
            "with the pattern of the keys), so messages are found up to a second later. %s",
            *(self._server.address, command, PERMIT),
        )
