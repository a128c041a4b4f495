"""Routes of commands through redis-py's asyncio client, for the blocking code of run_awaiting."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hiredis import pack_command
from redis import exceptions as redis_errors

from rmq_spark.transport.awaiting import awaited, may_await, run_awaiting
from rmq_spark.transport.routing import Cluster, Command, OneServer, Replication

_T = TypeVar("_T")

# How many pipelines are on their way to a node at the same time. What is asked meanwhile waits for
# the next one, so that many single calls share a round trip.
PIPELINES = 4
COMMANDS_A_PIPELINE = 1024


@dataclass(frozen=True)
class _Asked:
    """Commands of one caller, and the future of their replies."""

    words: Sequence[Sequence[Any]]
    replication: Replication | None
    replies: asyncio.Future[list[Any]]


class Gathering:
    """Runs commands on one node. What tasks ask at the same moment goes in one pipeline."""

    def __init__(self, client: Any, address: str) -> None:
        """client: redis-py's asyncio client."""
        self._client = client
        self._address = address
        self._asked: deque[_Asked] = deque()
        self._pipelines: set[asyncio.Task[None]] = set()
        self._is_due = False

    async def run(
        self, words: Sequence[Sequence[Any]], replication: Replication | None
    ) -> list[Any]:
        """Run commands in order. Return their replies, errors among them.

        If the task is cancelled, the commands may run all the same.
        """
        loop = asyncio.get_running_loop()
        asked = _Asked(words, replication, loop.create_future())
        self._asked.append(asked)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._send)
        return await asked.replies

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _send(self) -> None:
        self._is_due = False
        while self._asked and len(self._pipelines) < PIPELINES:
            pipeline = asyncio.get_running_loop().create_task(self._run(self._take()))
            self._pipelines.add(pipeline)
            pipeline.add_done_callback(self._ended)

    def _take(self) -> list[_Asked]:
        """Take what goes in one pipeline: at least what one caller asks."""
        taken = [self._asked.popleft()]
        commands = len(taken[0].words)
        while (
            self._asked
            and self._asked[0].replication == taken[0].replication
            and commands + len(self._asked[0].words) <= COMMANDS_A_PIPELINE
        ):
            taken.append(self._asked.popleft())
            commands += len(taken[-1].words)
        return taken

    def _ended(self, pipeline: asyncio.Task[None]) -> None:
        self._pipelines.discard(pipeline)
        self._send()

    async def _run(self, together: list[_Asked]) -> None:
        words = [each for asked in together for each in asked.words]
        try:
            replies = await self._replies(words, together[0].replication)
        except BaseException as error:
            for asked in together:
                _fail(asked.replies, error)
            return
        at = 0
        for asked in together:
            if not asked.replies.done():
                asked.replies.set_result(replies[at : at + len(asked.words)])
            at += len(asked.words)

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
            packed = [pack_command(tuple(each)) for each in words]
            await connection.send_packed_command(packed, check_health=False)
            return await _replies(connection, len(words))
        except TimeoutError:
            await connection.disconnect()
            return [redis_errors.TimeoutError("Timeout reading from socket")] * len(words)
        except redis_errors.RedisError as error:
            await connection.disconnect()
            return [error] * len(words)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)


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
    """Read a reply, which may be an error of Redis."""
    try:
        return await connection.read_response(timeout=math.inf)
    except redis_errors.ConnectionError:
        raise
    except redis_errors.ResponseError as error:
        return error


def _fail(replies: asyncio.Future[list[Any]], error: BaseException) -> None:
    if replies.done():
        return
    if isinstance(error, asyncio.CancelledError):  # the event loop ends
        replies.cancel()
    else:
        replies.set_exception(error)


class AsyncOneServer(OneServer):
    """The route of all commands to one server."""

    def __init__(self, client: Any, gathering: Gathering, address: str) -> None:
        """client: the blocking one."""
        super().__init__(client, address)
        self._gathering = gathering

    def run(self, commands: Sequence[Command], replication: Replication | None) -> list[Any]:
        """Run commands and return their replies, errors among them."""
        return awaited(self._gathering.run([each.words for each in commands], replication))

    def close(self) -> None:
        """Close the connections."""
        super().close()
        awaited(self._gathering.close())


class AsyncCluster(Cluster):
    """The route of each command to the cluster node of its key."""

    def __init__(
        self,
        client: Any,
        open_node: Callable[[str, int], Gathering],
        aside: Callable[[Callable[[], None]], None],
    ) -> None:
        """client: the blocking one, which knows the nodes. open_node: takes a host and a port.

        aside: runs a function in a thread, and waits for it.
        """
        super().__init__(client)
        self._aside = aside
        self._open_node = open_node
        self._gatherings: dict[str, Gathering] = {}

    def refresh(self) -> None:
        """Ask which node has which keys. If no node answers now, the next attempt asks."""
        if may_await():
            self._aside(super().refresh)
        else:  # a thread that receives wake-ups
            super().refresh()

    def close(self) -> None:
        """Close the connections."""
        super().close()
        for gathering in self._gatherings.values():
            awaited(gathering.close())

    def _run_on(
        self, node: Any, words: Sequence[Sequence[Any]], replication: Replication | None
    ) -> list[Any]:
        if node.name not in self._gatherings:
            self._gatherings[node.name] = self._open_node(node.host, node.port)
        return awaited(self._gatherings[node.name].run(words, replication))

    def _beside_each_other(
        self, run: Callable[..., list[Any]], groups: Sequence[tuple[Any, ...]]
    ) -> list[list[Any]]:
        return awaited(_all_of(run, groups))


async def _all_of(run: Callable[..., _T], groups: Sequence[tuple[Any, ...]]) -> list[_T]:
    return await asyncio.gather(*(run_awaiting(run, *group) for group in groups))
