"""Calling scripts on a Redis server: loaded on demand, repeated within bounds, errors typed."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import redis
from redis import exceptions as failures

from rmq_spark import errors
from rmq_spark.protocol.calls import BoundedRequest, Call, Request
from rmq_spark.protocol.chunks import in_parts
from rmq_spark.protocol.messagepack import packed
from rmq_spark.protocol.scripts import Script, scripts_for
from rmq_spark.transport.acl import commands_of, denied_commands
from rmq_spark.transport.connection import ConnectionOptions, new_client, not_accepted
from rmq_spark.transport.failures import PERMIT, passes, root_of, typed_error
from rmq_spark.transport.routing import Cluster, Command, OneServer, Replication

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# ZMSCORE and ZADD GT are the newest commands the scripts use.
OLDEST_VERSION = (6, 2)
FIRST_WITH_FLAGS = (7, 0)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0


class Server:
    """A Redis server that runs the queue's scripts. Threads may share it; forks may not."""

    def __init__(self, options: ConnectionOptions, patience_s: float | None = None) -> None:
        """patience_s: how long a broken connection is tried again; None: as the options say."""
        self._options = options
        self._patience_s = options.patience_s if patience_s is None else patience_s
        self.client: Any = None
        try:
            info = self._repeated(self._first_info)
        except (TypeError, UnicodeError) as error:  # redis-py finds these when it connects
            raise not_accepted(error) from None
        self._nodes: OneServer | Cluster = (
            Cluster(self.client) if options.cluster else OneServer(self.client, self.address)
        )
        self._replication = (
            Replication(options.min_replicas, options.replica_timeout_ms)
            if options.min_replicas
            else None
        )
        self.version = _version_of(info)
        self._check(info)
        self._scripts = scripts_for(self.version >= FIRST_WITH_FLAGS)
        self._loaded = False
        self._denied: frozenset[str] | None = None  # not asked yet

    def __repr__(self) -> str:
        return f"Server({self.address})"

    @property
    def address(self) -> str:
        """Where it is, without credentials."""
        return self._options.address

    @property
    def is_cluster(self) -> bool:
        """Whether a call may only touch keys of one hash slot."""
        return self._options.cluster

    def close(self) -> None:
        """Closes the connections."""
        self._nodes.close()

    def warn_if_volatile(self) -> None:
        """Warns, once a process, of a server that forgets everything when it ends."""
        if self.address in _warned or self._options.cluster:
            return
        _warned.add(self.address)
        try:
            append_only = self.client.info("persistence").get("aof_enabled")
            saves = self.client.config_get("save").get("save")
        except redis.RedisError:
            return  # a user who may not look is not kept from working
        if not append_only and not saves:
            _log.warning(
                "rmq: Redis at %s keeps nothing on disk: its messages are lost when it ends. "
                "Set appendonly yes.",
                self.address,
            )

    def denied(self, key: str = "rmq") -> frozenset[str]:
        """The commands of the scripts that this user may not run. Raises ServerError."""
        return self._repeated(lambda: denied_commands(self._asked_once, key))  # type: ignore[no-any-return]

    def command(self, *words: Any) -> Any:
        """Runs a plain command that may run twice."""
        return self._repeated(lambda: self.client.execute_command(*words), _named(words))

    def commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Runs plain commands, a key behind each name, that may run twice; in one round trip."""
        asked = [Command(str(words[1]), words) for words in commands]
        replies = self._answered(asked, lambda left: self._nodes.run(left, None))
        for words, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                raise self._typed(reply, _named(words)) from None
        return replies

    def now_ms(self) -> int:
        """Return the server's time, ms since 1970."""
        seconds, microseconds = self.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def ask(self, request: Request[_T] | BoundedRequest[_T]) -> _T:
        """Run a request and return its answer. Raises an RmqError for every failure."""
        if isinstance(request, BoundedRequest):
            return request.read(self._until_done(request))
        replies = in_parts(request.calls, self.pipeline, request.a_pipeline)
        return request.read(replies + in_parts(request.reads, self.commands, request.a_pipeline))

    def _until_done(self, request: BoundedRequest[Any]) -> list[list[Any]]:
        """Return the replies to each call, which is repeated until it has no more to do."""
        replies: list[list[Any]] = [[] for _ in request.calls]
        left = list(range(len(request.calls)))
        while left:
            calls = [request.calls[at] for at in left]
            for at, reply in zip(
                left, in_parts(calls, self.pipeline, request.a_pipeline), strict=True
            ):
                replies[at].append(reply)
            left = [at for at in left if replies[at][-1][request.more]]
        return replies

    def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Runs one script. Raises an RmqError for every failure."""
        return self.pipeline([Call(script, keys, args)])[0]

    def pipeline(self, calls: Sequence[Call]) -> list[Any]:
        """Runs scripts in one round trip (in a cluster, one a node) and returns their replies.

        What a broken connection leaves unanswered is called again, so each must be one that may run
        twice. Raises the first error that any of them answered, after all have run.
        """
        replies = self._answered(calls, self._run)
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, errors.RmqError):
                raise reply
            if isinstance(reply, Exception):
                raise self._typed(reply, call.script) from None
        return replies

    def _answered(self, asked: Sequence[_T], run: Callable[[Sequence[_T]], list[Any]]) -> list[Any]:
        """The replies of all; what fails for now is run again without what is answered."""
        replies: dict[int, Any] = {}

        def run_rest() -> None:
            left = [at for at in range(len(asked)) if at not in replies]
            answers = dict(zip(left, run([asked[at] for at in left]), strict=True))
            passing = {at: reply for at, reply in answers.items() if _is_passing(reply)}
            replies.update({at: answers[at] for at in answers.keys() - passing.keys()})
            for error in passing.values():
                raise error

        self._repeated(run_rest)
        return [replies[at] for at in range(len(asked))]

    def _run(self, calls: Sequence[Call]) -> list[Any]:
        if not self._loaded:
            self._load()
        self._check_permitted(calls)
        replies = self._send(calls)
        missing = [
            at for at, reply in enumerate(replies) if isinstance(reply, failures.NoScriptError)
        ]
        if missing:
            for at, reply in zip(missing, self._loaded_again(calls, missing), strict=True):
                replies[at] = reply
        return replies

    def _loaded_again(self, calls: Sequence[Call], missing: Sequence[int]) -> list[Any]:
        """The replies of those whose script was forgotten; what fails is their reply alone."""
        try:
            self._load()
            return self._send([calls[at] for at in missing])
        except (redis.RedisError, failures.RedisClusterException) as error:
            return [root_of(error)] * len(missing)

    def _send(self, calls: Sequence[Call]) -> list[Any]:
        commands = [Command(call.keys[0], self._words(call)) for call in calls]
        lasting = any(self._scripts[call.script].must_last for call in calls)
        return self._nodes.run(commands, self._replication if lasting else None)

    def _words(self, call: Call) -> list[Any]:
        sha = self._scripts[call.script].sha
        words = ["EVALSHA", sha, len(call.keys), *call.keys, *call.args]
        return [*words, packed(call.pairs)] if len(call.pairs) else words

    def _load(self) -> None:
        for script in self._scripts.values():
            self._load_one(script)
        self._loaded = True

    def _check_permitted(self, calls: Sequence[Call]) -> None:
        if self._denied is None:
            self._denied = denied_commands(self._asked_once, calls[0].keys[0])
        if not self._denied:
            return
        for script in {call.script for call in calls}:
            missing = self._denied & commands_of(self._scripts[script].text)
            if missing:
                self._denied = None  # it may be given them while this process lives
                raise errors.ServerRefused(
                    f"Redis at {self.address} does not permit this user "
                    f"{', '.join(sorted(missing))}, without which {script} would stop half-way. "
                    f"{PERMIT}"
                )

    def _asked_once(self, commands: Sequence[Command]) -> list[Any]:
        return self._nodes.run(commands, None)

    def _load_one(self, script: Script) -> None:
        self.client.script_load(script.text)

    def _repeated(self, run: Callable[[], Any], what: str = "a command") -> Any:
        """Runs it until the connection holds, no longer than the patience."""
        end, wait = time.monotonic() + self._patience_s, _FIRST_WAIT_S
        while True:
            try:
                return run()
            except (redis.RedisError, failures.RedisClusterException) as raised:
                error = root_of(raised)
            # Raised from here, ours has no error of redis-py behind it, which may quote a password.
            if not isinstance(error, redis.RedisError | failures.RedisClusterException):
                raise error from None
            if not passes(error) or time.monotonic() + wait >= end:
                raise self._typed(error, what)
            if wait == _FIRST_WAIT_S:  # one line for an outage, however often it is tried
                _log.warning(
                    "trying Redis at %s for %g s: %s",
                    *(self.address, self._patience_s, type(error).__name__),
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _first_info(self) -> dict[str, Any]:
        if self.client is None:
            self.client = new_client(self._options)
        return self._info()

    def _info(self) -> dict[str, Any]:
        if self._options.cluster:
            node = self.client.get_random_primary_node()
            return cast(dict[str, Any], self.client.info(target_nodes=node))
        return cast(dict[str, Any], self.client.info())

    def _check(self, info: dict[str, Any]) -> None:
        if self.version < OLDEST_VERSION:
            raise errors.ServerUnsuitable(
                f"Redis at {self.address} is version {info.get('redis_version')}; needed: 6.2 or "
                "later, or Valkey."
            )
        if info.get("cluster_enabled") and not self.is_cluster:
            raise errors.ServerUnsuitable(
                f"Redis at {self.address} is a node of a Redis Cluster. Set redis.cluster=true."
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise errors.ServerUnsuitable(
                f"Redis at {self.address} has maxmemory-policy {policy}: it would evict whole "
                "queues. Set maxmemory-policy noeviction."
            )

    def _typed(self, error: Exception, what: str) -> errors.RmqError:
        """Return the error that says what failed; ``what`` was called."""
        return typed_error(error, what, self._options, self._patience_s)


def _is_passing(reply: Any) -> bool:
    return isinstance(reply, Exception) and passes(reply)


def _named(words: Sequence[Any]) -> str:
    """A command and its key; its values are nobody's business."""
    return " ".join(str(word) for word in words[:2])


def _version_of(info: dict[str, Any]) -> tuple[int, int]:
    if "valkey_version" in info:  # all of Valkey knows what Redis 7.2 did
        return (7, 2)
    major, minor = str(info.get("redis_version", "0.0")).split(".")[:2]
    return int(major), int(minor)


_warned: set[str] = set()
_servers: dict[tuple[int, ConnectionOptions, float | None], Server] = {}


def shared_server(options: ConnectionOptions, patience_s: float | None = None) -> Server:
    """This process's server for these options: Spark reuses worker processes for many tasks.

    The process id is part of the name because connections do not survive a fork.
    """
    key = (os.getpid(), options, patience_s)
    if key not in _servers:
        _servers[key] = Server(options, patience_s)
    return _servers[key]
