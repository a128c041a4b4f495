"""Routes of commands: to one server, or to the cluster nodes that have their keys.

Both routes return the replies to a list of commands in order, errors among them as values. A failed
command does not hide the replies of the others, and only the caller knows what may run again.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from redis import exceptions as redis_errors
from redis.cluster import PRIMARY, ClusterNode

from rmq_spark.errors import NotReplicated
from rmq_spark.redis.connection import SILENCE_S
from rmq_spark.redis.failures import is_of_replica, of_node, permit
from rmq_spark.redis.permissions import denies

# A hash slot moves once or twice while a command is on its way. More redirections mean that the
# cluster nodes disagree.
REDIRECTIONS = 5
# Each thread that asks several nodes needs one for each further node, also while one node hangs.
_MOST_THREADS = 1024


@dataclass(frozen=True)
class Command:
    """A command, and the key by which to find its cluster node."""

    key: str
    words: Sequence[Any]


@dataclass(frozen=True)
class Replication:
    """How many replicas must confirm a write, and for how long to wait. prefix: of the options."""

    replicas: int
    timeout_ms: int
    prefix: str

    @property
    def words(self) -> tuple[Any, ...]:
        """The command that waits for replicas to confirm the earlier writes of its connection."""
        return ("WAIT", self.replicas, self.timeout_ms)

    def checked(self, replies: Sequence[Any], address: str) -> list[Any]:
        """Return the replies before the one to WAIT; errors, if too few replicas confirmed."""
        *others, acknowledged = replies
        error = self._shortfall(address, acknowledged)
        if error is None:
            return others
        return [reply if isinstance(reply, Exception) else error for reply in others]

    def _shortfall(self, address: str, acknowledged: Any) -> Exception | None:
        if isinstance(acknowledged, Exception) and denies(acknowledged):
            return NotReplicated(
                f"Redis at {address} has written, but nobody knows whether replicas confirmed it: "
                f"this user may not run WAIT. It is safe to repeat. {permit(['wait'])}"
            )
        if isinstance(acknowledged, Exception):
            return acknowledged
        if acknowledged >= self.replicas:
            return None
        return NotReplicated(
            f"Redis at {address} has written, but {acknowledged} of {self.replicas} replicas "
            f"confirmed it within {self.timeout_ms} ms: a failover now could undo the write. It is "
            f"safe to repeat. Check the replicas, lower {self.prefix}minReplicas, or raise "
            f"{self.prefix}replicaTimeout."
        )


def _run(client: Any, words: Sequence[Sequence[Any]]) -> list[Any]:
    """Run one pipeline. The error of a broken connection is the reply to every command."""
    pool = client.connection_pool
    try:
        connection = pool.get_connection()
    except redis_errors.RedisError as error:
        return [error] * len(words)
    try:
        _check_idle(connection)
        connection.send_packed_command(connection.pack_commands(words), check_health=False)
        replies = [_reply(client, connection, each[0]) for each in words]
        if any(map(is_of_replica, replies)):  # its name may lead to the new master by now
            connection.disconnect()
            pool.disconnect(inuse_connections=False)
        return replies
    except redis_errors.RedisError as error:
        connection.disconnect()
        if isinstance(error, redis_errors.TimeoutError):  # the next try gets a new connection
            pool.disconnect(inuse_connections=False)
        return [error] * len(words)
    except BaseException:  # of a signal handler
        # redis-py's own pipeline keeps the connection. The next command would then take a reply
        # that was not read for its own.
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _check_idle(connection: Any) -> None:
    """Replace a connection that was idle and is dead."""
    # redis-py sets this time at each reply, and asks itself only where this module does not run.
    if time.monotonic() <= connection.next_health_check:
        return
    try:
        connection.send_command("PING", check_health=False)
        if connection.can_read(SILENCE_S):
            connection.read_response()
            return
    except redis_errors.RedisError:
        pass
    connection.disconnect()
    connection.connect()


def _reply(client: Any, connection: Any, command: str) -> Any:
    try:
        return client.parse_response(connection, command)
    except redis_errors.ResponseError as error:
        return error


def _run_and_wait(
    client: Any, words: Sequence[Sequence[Any]], replication: Replication | None, address: str
) -> list[Any]:
    if replication is None:
        return _run(client, words)
    return replication.checked(_run(client, [*words, replication.words]), address)


def named(node: Any, replies: list[Any]) -> list[Any]:
    """Note the node of a cluster with the errors among its replies."""
    return [of_node(each, node.name) if isinstance(each, Exception) else each for each in replies]


class OneServer:
    """The route of all commands to one server."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address

    def run(self, commands: Sequence[Command], replication: Replication | None) -> list[Any]:
        words = [command.words for command in commands]
        return _run_and_wait(self._client, words, replication, self._address)

    def run_on_masters(self, words: Sequence[Sequence[Any]]) -> dict[str | None, list[Any]]:
        """Run commands without a key on each master. Returns the replies by node; None: no cluster.

        words: those of each command.
        """
        return {None: self.run([Command("", each) for each in words], None)}

    def clients_of(self, keys: Sequence[str]) -> list[tuple[Any, list[str]]]:
        return [(self._client, list(keys))]

    def refresh(self) -> None:
        """Do nothing: there is one server."""

    def close(self) -> None:
        self._client.close()


class Cluster:
    """The route of each command to the cluster node of its key: one pipeline a node, in parallel.

    Follows redirections to the node that a key has moved to. Returns TRYAGAIN (the keys of a script
    lie on two nodes while their hash slot moves) and connection errors to the caller.
    """

    def __init__(self, client: Any, named: tuple[str, int]) -> None:
        """Prepare. named: the node of the URL. Its name may lead to one that redis-py forgot."""
        self._client = client
        self._named = named
        self._threads: ThreadPoolExecutor | None = None
        self._threads_of = 0  # the process that started them: a fork does not copy threads

    def run(self, commands: Sequence[Command], replication: Replication | None) -> list[Any]:
        """Run commands. Raises the error of redis-py if it knows no cluster node for a key."""
        replies: dict[int, Any] = {}
        asking: dict[int, Any] = {}
        left = list(range(len(commands)))
        for _ in range(REDIRECTIONS):
            replies |= self._run_once(commands, left, asking, replication)
            left = [at for at in left if isinstance(replies[at], redis_errors.AskError)]
            asking = self._followed({at: replies[at] for at in left})
            if not left:
                break
        self._refresh_after(replies.values())
        return [replies[at] for at in range(len(commands))]

    def run_on_masters(self, words: Sequence[Sequence[Any]]) -> dict[str | None, list[Any]]:
        nodes = self._client.get_primaries()
        answers = self._beside_each_other(
            lambda node: self._run_on(node, words, None), [(node,) for node in nodes]
        )
        self._refresh_after(reply for answer in answers for reply in answer)
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}

    def _refresh_after(self, replies: Iterable[Any]) -> None:
        broken = redis_errors.ConnectionError, redis_errors.TimeoutError
        if any(isinstance(reply, broken) for reply in replies):
            self.refresh()  # a replica may have taken over

    def clients_of(self, keys: Sequence[str]) -> list[tuple[Any, list[str]]]:
        by_node: dict[str, tuple[Any, list[str]]] = {}
        for key in keys:
            node = self._node_of(key)
            client = self._client.get_redis_connection(node)
            by_node.setdefault(node.name, (client, []))[1].append(key)
        return list(by_node.values())

    def refresh(self) -> None:
        """Ask which node has which keys. If no node answers now, the next attempt asks."""
        with contextlib.suppress(redis_errors.RedisError, redis_errors.RedisClusterException):
            self._client.nodes_manager.initialize(additional_startup_nodes_info=[self._named])

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._client.close()

    def _run_once(
        self,
        commands: Sequence[Command],
        wanted: Iterable[int],
        asking: dict[int, Any],
        replication: Replication | None,
    ) -> dict[int, Any]:
        by_node: dict[tuple[str, bool], list[int]] = {}
        nodes = {}
        for at in wanted:
            node = asking.get(at) or self._node_of(commands[at].key)
            nodes[node.name] = node
            by_node.setdefault((node.name, at in asking), []).append(at)

        def run(name: str, asks: bool) -> list[Any]:
            words = [commands[at].words for at in by_node[name, asks]]
            if not asks:
                return self._run_on(nodes[name], words, replication)
            both = [each for one in words for each in (("ASKING",), one)]
            return self._run_on(nodes[name], both, replication)[1::2]

        answers = self._beside_each_other(run, list(by_node))
        return {
            at: reply
            for numbers, answer in zip(by_node.values(), answers, strict=True)
            for at, reply in zip(numbers, answer, strict=True)
        }

    def _run_on(
        self, node: Any, words: Sequence[Sequence[Any]], replication: Replication | None
    ) -> list[Any]:
        client = self._client.get_redis_connection(node)
        return named(node, _run_and_wait(client, words, replication, node.name))

    def _beside_each_other(
        self, run: Callable[..., list[Any]], groups: Sequence[tuple[Any, ...]]
    ) -> list[list[Any]]:
        if self._threads is None or self._threads_of != os.getpid():
            self._threads_of = os.getpid()
            self._threads = ThreadPoolExecutor(_MOST_THREADS, "rmq-node")
        running = [self._threads.submit(run, *group) for group in groups[1:]]
        return [*(run(*group) for group in groups[:1]), *(each.result() for each in running)]

    def _node_of(self, key: str) -> Any:
        return self._client.nodes_manager.get_node_from_slot(self._client.keyslot(key))

    def _followed(self, redirected: dict[int, redis_errors.AskError]) -> dict[int, Any]:
        """Store the new nodes of moved hash slots; return the nodes to ask once for moving ones."""
        manager = self._client.nodes_manager
        asking = {}
        for at, error in redirected.items():
            if isinstance(error, redis_errors.MovedError):
                manager.move_slot(error)
                continue
            # A master without hash slots is not listed yet, and lacks the scripts.
            node = ClusterNode(error.host, error.port, PRIMARY)  # type: ignore[no-untyped-call]
            with manager._lock:
                asking[at] = manager.nodes_cache.setdefault(node.name, node)
        return asking
