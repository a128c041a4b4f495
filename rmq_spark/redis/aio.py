"""The Redis server for asyncio, and how the code that is written for threads runs there.

Within ``greenlet_spawn``, what that code waits for is awaited instead, so the event loop goes on.
``await_only`` is called at these places only: commands to Redis, pauses, locks, and what runs in
a thread.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar, cast

import greenlet
import redis.asyncio
from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.event import ClientType

from rmq_spark.errors import ConsumerMisused
from rmq_spark.redis.connection import (
    SILENCE_S,
    ConnectionOptions,
    client_arguments,
    client_of_sentinels,
    follow_tokens,
    named_in,
    on_async_connect,
)
from rmq_spark.redis.failures import is_of_replica
from rmq_spark.redis.routing import Cluster, Command, OneServer, Replication, named
from rmq_spark.redis.server import Caller, Server

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# How many pipelines are on their way to a node at the same time. What is asked meanwhile waits for
# the next one, so that many single calls share a round trip.
PIPELINES = 4
COMMANDS_A_PIPELINE = 1024
# So few items are not shared out: a run of its own would cost more than it gains.
LEAST_SHARE = 8
# Commands of one caller, and how many replicas must have them.
_Asked = tuple[Sequence[Sequence[Any]], Replication | None]
# Consumers that wait for messages take one each.
_MOST_THREADS = 256


class _Blocking(greenlet.greenlet):  # type: ignore[misc] # greenlet has no types
    """A greenlet that runs blocking code, and hands what it must wait for to its parent."""


def may_await() -> bool:
    """Return whether this is code within greenlet_spawn, and not another thread."""
    return isinstance(greenlet.getcurrent(), _Blocking)


def await_only(awaitable: Awaitable[_T]) -> _T:
    """Wait for an awaitable, from blocking code within greenlet_spawn. Raises what it raises."""
    if not may_await():
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError("This object belongs to rmq_spark.aio. Call it from a coroutine there.")
    return cast(_T, greenlet.getcurrent().parent.switch(awaitable))


async def greenlet_spawn(function: Callable[_P, _T], *args: _P.args, **keywords: _P.kwargs) -> _T:
    """Run blocking code, which may call await_only. Return its result or raise its error.

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


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise ConsumerMisused if this is not the event loop that an object belongs to.

    Its futures and connections would wait without end in another one.
    """
    if asyncio.get_running_loop() is not loop:
        state = "has ended" if loop.is_closed() else "is another one"
        raise ConsumerMisused(
            f"This object of rmq_spark.aio was made in an event loop that {state}. Connect in each "
            "event loop, such as at the start of each asyncio.run: await rmq_spark.aio.connect()."
        )


class TaskLock:
    """A lock between tasks, for blocking code within greenlet_spawn. A task may take it again."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner: asyncio.Task[Any] | None = None
        self._depth = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __enter__(self) -> None:
        check_loop(self._loop)
        me = asyncio.current_task()
        while self._owner not in (None, me):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await_only(turn)
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


class Batcher(Generic[_Item, _Result]):
    """Runs items of several callers together. For one event loop.

    What is asked while ``runs`` runs are under way waits for the next one, so that many single
    calls share a round trip. Each run takes its share of all items, so that one is prepared while
    Redis works on another.
    """

    def __init__(
        self,
        run: Callable[[list[_Item]], Awaitable[list[_Result]]],
        key: Callable[[_Item], Hashable],
        size: Callable[[_Item], int],
        *,
        runs: int,
        most: int,
    ) -> None:
        """Prepare.

        run: returns a result for each of some items. key: equal for items that may go together.
        most: the largest size of a run of more than one item.
        """
        self._loop = asyncio.get_running_loop()
        self._run_items, self._key, self._size = run, key, size
        self._runs, self._most = runs, most
        self._waiting: deque[tuple[_Item, asyncio.Future[_Result]]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_due = False
        self._asked = 0  # the size of all items that wait or run

    async def run(self, item: _Item) -> _Result:
        """Run an item. If the task is cancelled, it may run all the same."""
        check_loop(self._loop)
        result: asyncio.Future[_Result] = self._loop.create_future()
        self._waiting.append((item, result))
        self._asked += self._size(item)
        if not self._is_due and len(self._under_way) < self._runs:
            self._is_due = True
            self._loop.call_soon(self._start)
        return await result

    def _start(self) -> None:
        self._is_due = False
        while self._waiting and len(self._under_way) < self._runs:
            together, size = self._take()
            task = self._loop.create_task(self._run(together))
            self._under_way.add(task)
            task.add_done_callback(partial(self._ended, size))

    def _ended(self, size: int, task: asyncio.Task[None]) -> None:
        self._asked -= size
        self._under_way.discard(task)
        self._start()

    def _take(self) -> tuple[list[tuple[_Item, asyncio.Future[_Result]]], int]:
        """Return items that may go together, and their size."""
        share = min(self._most, max(LEAST_SHARE, math.ceil(self._asked / self._runs)))
        taken = [self._waiting.popleft()]
        key, size = self._key(taken[0][0]), self._size(taken[0][0])
        while self._waiting and self._key(self._waiting[0][0]) == key:
            more = self._size(self._waiting[0][0])
            if size + more > share:
                break
            size += more
            taken.append(self._waiting.popleft())
        return taken, size

    async def _run(self, together: list[tuple[_Item, asyncio.Future[_Result]]]) -> None:
        try:
            results = await self._run_items([item for item, _ in together])
        except BaseException as error:
            for _, result in together:
                if result.done():  # its task was cancelled
                    continue
                if isinstance(error, asyncio.CancelledError):  # the event loop ends
                    result.cancel()
                else:
                    result.set_exception(error)
            return
        for (_, result), value in zip(together, results, strict=True):
            if not result.done():
                result.set_result(value)


class Node:
    """Runs commands on one node. What tasks ask at the same moment goes in one pipeline."""

    def __init__(self, client: Any, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._address = address
        self._batcher = Batcher[_Asked, list[Any]](
            self._run,
            key=lambda asked: asked[1],
            size=lambda asked: len(asked[0]),
            runs=PIPELINES,
            most=COMMANDS_A_PIPELINE,
        )

    async def run(
        self, words: Sequence[Sequence[Any]], replication: Replication | None
    ) -> list[Any]:
        """Run commands in order. If the task is cancelled, they may run all the same."""
        return await self._batcher.run((words, replication))

    async def close(self) -> None:
        check_loop(self._loop)
        await self._client.aclose()

    async def _run(self, together: list[_Asked]) -> list[list[Any]]:
        words = [each for asked, _ in together for each in asked]
        replies = iter(await self._replies(words, together[0][1]))
        return [list(islice(replies, len(asked))) for asked, _ in together]

    async def _replies(
        self, words: list[Sequence[Any]], replication: Replication | None
    ) -> list[Any]:
        if replication is None:
            return await self._pipeline(words)
        return replication.checked(await self._pipeline([*words, replication.words]), self._address)

    async def _pipeline(self, words: list[Sequence[Any]]) -> list[Any]:
        """Run one pipeline. The error of a broken connection is the reply to every command.

        redis-py's own pipeline packs each argument, and times each reply, in Python.
        """
        pool = self._client.connection_pool
        try:
            connection = await pool.get_connection()
        except redis_errors.RedisError as error:
            return [error] * len(words)
        try:
            await _check_idle(connection)
            packed = [pack_command(tuple(each)) for each in words]
            await connection.send_packed_command(packed, check_health=False)
            replies = await _replies(connection, len(words))
            if any(map(is_of_replica, replies)):  # its name may lead to the new master by now
                await connection.disconnect()
                await pool.disconnect(inuse_connections=False)
            return replies
        except TimeoutError:
            await connection.disconnect()
            await pool.disconnect(inuse_connections=False)  # the next try gets a new connection
            return [redis_errors.TimeoutError("Timeout reading from socket")] * len(words)
        except redis_errors.RedisError as error:
            await connection.disconnect()
            return [error] * len(words)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)


async def _check_idle(connection: Any) -> None:
    """Replace a connection that was idle and is dead."""
    if asyncio.get_running_loop().time() <= connection.next_health_check:
        return
    try:
        await connection.send_command("PING", check_health=False)
        if await connection.read_response(timeout=SILENCE_S) is not None:  # None: in vain
            return
    except redis_errors.RedisError:
        pass
    await connection.disconnect()
    await connection.connect()


async def _replies(connection: Any, number: int) -> list[Any]:
    """Read replies. Raises TimeoutError if none comes for the socket timeout, or half of it."""
    now, limit_s = asyncio.get_running_loop().time, connection.socket_timeout
    replies = []
    async with asyncio.timeout(limit_s) as limit:
        for _ in range(number):
            replies.append(await _reply(connection))
            at, ends = now(), limit.when()
            if ends is not None and ends - at < limit_s / 2:  # each is a call of the event loop
                limit.reschedule(at + limit_s)
    return replies


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response(timeout=math.inf)
    except redis_errors.ConnectionError:
        raise
    except redis_errors.ResponseError as error:
        return error


class AsyncOneServer(OneServer):
    """The route of all commands to one server."""

    def __init__(self, client: Any, node: Node, address: str) -> None:
        super().__init__(client, address)
        self._node = node

    def run(self, commands: Sequence[Command], replication: Replication | None) -> list[Any]:
        replies = await_only(self._node.run([each.words for each in commands], replication))
        if any(map(is_of_replica, replies)):  # scripts are loaded by the blocking client
            self._client.connection_pool.disconnect(inuse_connections=False)
        return replies

    def close(self) -> None:
        super().close()
        await_only(self._node.close())


class AsyncCluster(Cluster):
    """The route of each command to the cluster node of its key."""

    def __init__(
        self,
        client: Any,
        named: tuple[str, int],
        open_node: Callable[[str, int], Node],
        run_in_thread: Callable[[Callable[[], None]], None],
    ) -> None:
        """Prepare. open_node: takes host and port. run_in_thread: runs a function, and waits."""
        super().__init__(client, named)
        self._run_in_thread = run_in_thread
        self._open_node = open_node
        self._nodes: dict[str, Node] = {}

    def refresh(self) -> None:
        if not may_await():  # a thread that receives wake-ups
            super().refresh()
            return
        self._run_in_thread(super().refresh)
        gone = self._nodes.keys() - self._client.nodes_manager.nodes_cache
        for node in [self._nodes.pop(name) for name in gone]:
            with suppress(redis_errors.RedisError):
                await_only(node._client.connection_pool.disconnect(inuse_connections=False))

    def close(self) -> None:
        super().close()
        for node in self._nodes.values():
            await_only(node.close())

    def _run_on(
        self, node: Any, words: Sequence[Sequence[Any]], replication: Replication | None
    ) -> list[Any]:
        if node.name not in self._nodes:
            self._nodes[node.name] = self._open_node(node.host, node.port)
        return named(node, await_only(self._nodes[node.name].run(words, replication)))

    def _beside_each_other(
        self, run: Callable[..., list[Any]], groups: Sequence[tuple[Any, ...]]
    ) -> list[list[Any]]:
        return await_only(_all_of(run, groups))


async def _all_of(run: Callable[..., _T], groups: Sequence[tuple[Any, ...]]) -> list[_T]:
    return await asyncio.gather(*(greenlet_spawn(run, *group) for group in groups))


class AsyncServer(Server):
    """A server whose methods are called within greenlet_spawn, in one event loop.

    Commands go through redis-py's asyncio client. Its blocking client, in threads, loads scripts,
    knows the nodes of a cluster, and receives wake-ups.
    """

    def __init__(self, options: ConnectionOptions, patience_s: float | None = None) -> None:
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "rmq-aside")
        self._loop = asyncio.get_running_loop()
        super().__init__(options, patience_s)

    def run_in_thread(self, run: Callable[[], _T]) -> _T:
        check_loop(self._loop)
        self._check_open()
        return await_only(self._loop.run_in_executor(self._threads, run))

    def pause(self, seconds: float) -> None:
        await_only(asyncio.sleep(seconds))

    def _retry(self, run: Callable[[], Any], what: str = "a command") -> Any:
        self._check_open()
        return super()._retry(run, what)

    def _check_open(self) -> None:
        if self.closed:
            raise ConsumerMisused(
                f"This connection to Redis at {self.address} is closed. Connect again: await "
                "rmq_spark.aio.connect()."
            )

    def caller(self) -> Caller:
        task = asyncio.current_task()
        if task is None:
            return super().caller()
        return Caller("task", task.get_name(), id(task), lambda: not task.done())

    def new_lock(self) -> AbstractContextManager[Any]:
        return TaskLock()

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._masters.close()
        super().close()  # last: it raises in another event loop

    def _route(self) -> OneServer | Cluster:
        if self.is_cluster:
            named = named_in(self._options.url)
            return AsyncCluster(self.client, named, self._open_node, self.run_in_thread)
        return AsyncOneServer(self.client, Node(self._new_client(), self.address), self.address)

    def _open_node(self, host: str, port: int) -> Node:
        of_url = {**parse_url(self._options.url), "host": host, "port": port}
        pool = redis.asyncio.ConnectionPool(**{**of_url, **self._arguments()})
        client = redis.asyncio.Redis.from_pool(pool)
        return Node(follow_tokens(client, ClientType.ASYNC, self._options), f"{host}:{port}")

    def _new_client(self) -> Any:
        sentinels = self._options.sentinels
        if sentinels is None:
            client: Any = redis.asyncio.Redis.from_url(self._options.url, **self._arguments())
        else:
            client = client_of_sentinels(Sentinel, sentinels, self._arguments())
        return follow_tokens(client, ClientType.ASYNC, self._options)

    def _arguments(self) -> dict[str, Any]:
        own = {"retry": Retry(NoBackoff(), 0), "redis_connect_func": on_async_connect}
        return own | client_arguments(self._options)
