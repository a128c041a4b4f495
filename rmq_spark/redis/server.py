"""A Redis server: runs requests, loads scripts on demand, retries, and types errors."""

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import redis
from redis import exceptions as redis_errors

from rmq_spark import errors
from rmq_spark.protocol.calls import Call, Conversation, Read, Request
from rmq_spark.protocol.packing import in_parts, packed
from rmq_spark.protocol.scripts import Script, scripts_for
from rmq_spark.redis.connection import (
    ConnectionOptions,
    answers_without_login,
    named_in,
    new_client,
    not_accepted,
    renew_after_fork,
    renew_locks,
)
from rmq_spark.redis.failures import is_of_script, is_temporary, root_of, typed_error
from rmq_spark.redis.permissions import Permissions, Role, commands_for, denied_commands, denies
from rmq_spark.redis.routing import Cluster, Command, OneServer, Replication

Calls = Sequence[Call | Read]
# Takes the calls of a pipeline, and the indices of those that have failed. Returns the indices of
# all that must run again, in order.
Widened = Callable[[Calls, Collection[int]], list[int]]
_log = logging.getLogger(__name__)
_T = TypeVar("_T")
# ZMSCORE and ZADD GT are the newest commands in the scripts.
OLDEST_VERSION = (6, 2)
# The first version that reads flags in the first line of a script.
FIRST_WITH_FLAGS = (7, 0)
# The first version with sharded channels for publish and subscribe.
FIRST_WITH_SHARDED_CHANNELS = (7, 0)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
# How often the log says again that calls are repeated.
_TELL_EVERY_S = 60.0
# The only maxmemory-policy that keeps messages, and how often a program in use looks whether it is
# still set.
NO_EVICTION = "noeviction"
POLICY_EVERY_S = 60.0
_warned: set[str] = set()


@dataclass(frozen=True)
class Caller:
    """A thread or a task. number: distinguishes those of one name."""

    kind: str
    name: str
    number: int
    is_alive: Callable[[], bool] = field(compare=False)


def with_reads_behind(calls: Calls, failed: Collection[int]) -> list[int]:
    """Add the reads right behind each call: they show what it has left."""
    found: set[int] = set()
    for at, call in enumerate(calls):
        if at in failed or (at - 1 in found and not isinstance(call, Call)):
            found.add(at)
    return sorted(found)


def with_slot_behind(calls: Calls, failed: Collection[int]) -> list[int]:
    """Add the later calls of the same slot too: each would be undone by one that ran behind it."""
    slots: set[str] = set()
    found: set[int] = set()
    for at, call in enumerate(calls):
        if isinstance(call, Call) and (at in failed or call.keys[0] in slots):
            slots.add(call.keys[0])
            found.add(at)
    return with_reads_behind(calls, found.union(failed))


class Server:
    """A Redis server that runs the scripts of the queue.

    Threads can share it. In a forked copy of the process, it makes connections of its own.
    """

    def __init__(self, options: ConnectionOptions, patience_s: float | None = None) -> None:
        """Connect. patience_s: how long to retry; None: as long as the options want."""
        is_number = isinstance(patience_s, int | float) and not isinstance(patience_s, bool)
        if patience_s is not None and not (is_number and patience_s >= 0):
            raise errors.InvalidOption.of(
                "patience_s", patience_s, "seconds, a number from 0 on; or None"
            )
        self._options = options
        self._patience_s = options.patience_s if patience_s is None else patience_s
        self.client: Any = None
        self.closed = False
        self._told_s = -math.inf  # when the log last said that a call is repeated
        self._tell = threading.Lock()
        self.repeats = 0  # how often a call was made again: its first answer may have been lost
        self.topics_changed_s = -math.inf  # when this program last changed the definition of one
        _servers.add(self)
        try:
            infos = self._retry(self._first_infos)
        except (TypeError, UnicodeError) as error:  # redis-py raises these when it connects
            raise not_accepted(error, options) from None
        self._nodes = self._route()
        self._replication = (
            Replication(options.min_replicas, options.replica_timeout_ms, options.prefix)
            if options.min_replicas
            else None
        )
        self.version = min(map(_version_of, infos.values()))
        self.policy = NO_EVICTION  # what Redis does when it is full, as last seen
        self._policy_seen_s = time.monotonic()
        for node, info in infos.items():
            self._check(node, info)
        self._scripts = scripts_for(self.version >= FIRST_WITH_FLAGS)
        self._loaded, self._loading = False, self.new_lock()
        self._permissions = Permissions(self._run_on_masters, self.address)

    def __repr__(self) -> str:
        return f"Server({self.address})"

    # AsyncServer does the next five in another way.

    def _route(self) -> OneServer | Cluster:
        return self._masters

    def run_in_thread(self, run: Callable[[], _T]) -> _T:
        """Run what waits for others than Redis, or uses redis-py's blocking client."""
        return run()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def caller(self) -> Caller:
        thread = threading.current_thread()
        return Caller("thread", thread.name, thread.ident or 0, thread.is_alive)

    def new_lock(self) -> AbstractContextManager[Any]:
        """Return a lock that its holder may take again."""
        return threading.RLock()

    @property
    def address(self) -> str:
        return self._options.address

    @property
    def options(self) -> ConnectionOptions:
        return self._options

    @property
    def command_options(self) -> tuple[str, ...]:
        return self._options.command_options

    @property
    def is_cluster(self) -> bool:
        """Whether the server is a Redis Cluster, where all keys of a call have one hash slot."""
        return self._options.cluster

    def close(self) -> None:
        self.closed = True
        self._nodes.close()

    def nodes_of(self, keys: Sequence[str]) -> list[tuple[Any, list[str]]]:
        return self._nodes.clients_of(keys)

    def refresh_nodes(self) -> None:
        """Ask a cluster again which node has which keys, if it can be reached now."""
        self._nodes.refresh()

    def warn_if_not_on_disk(self) -> None:
        """Log a warning, once a process, if the server does not store its data on disk."""
        if self.address in _warned:
            return
        _warned.add(self.address)
        found = self.on_masters(("INFO", "persistence"), ("CONFIG GET", "save"))
        for node, replies in found.items():
            if any(isinstance(reply, Exception) for reply in replies):
                continue  # a user without permission to look can still work
            info, setting = replies
            if not info.get("aof_enabled") and not setting.get("save"):
                _log.warning(
                    "rmq: Redis at %s stores nothing on disk: its messages are lost when it stops. "
                    "Set appendonly yes.",
                    node or self.address,
                )
                return

    def on_masters(self, *commands: tuple[Any, ...]) -> dict[str | None, list[Any]]:
        """Run plain commands without a key on the server, or on each master of its cluster.

        Returns the replies by host and port of the node, redis-py's errors among them. The node is
        None if the server is not a cluster.
        """
        return self.run_in_thread(lambda: self._masters.run_on_masters(commands))

    def infos(self) -> dict[str | None, dict[str, Any]]:
        """Return what each master says about itself, as on_masters does. Raises an RmqError."""
        self.refresh_nodes()
        found: dict[str | None, dict[str, Any]] = self._retry(
            lambda: {node: _sound(info) for node, (info,) in self.on_masters(("INFO",)).items()}
        )
        return found

    def master_of_sentinels(self) -> str | None:
        """Ask the Sentinels for host and port of the master; None without any, or if none knows."""
        if self._options.sentinels is None:
            return None
        try:
            host, port = self.run_in_thread(self.client.connection_pool.get_master_address)
        except redis.RedisError:
            return None
        return f"{host}:{port}"

    def answer_without_login(self) -> list[str | None]:
        """List the masters that answer strangers, at an address that is not loopback."""
        nodes = [node.name for node in self.client.get_primaries()] if self.is_cluster else [None]
        return self.run_in_thread(
            lambda: [node for node in nodes if answers_without_login(self._options.at(node))]
        )

    def find_denied(
        self, key: str = "rmq", role: Role = Role.ALL
    ) -> dict[str | None, frozenset[str]]:
        """Find the commands of the queue that this user may not run, by master as on_masters does.

        key: one that the user's key patterns cover. role: what the user is for.
        """
        found: dict[str | None, frozenset[str]] = self._retry(
            lambda: denied_commands(self._run_on_masters, key, thorough=True)
        )
        needed = commands_for(role, self._scripts.values())
        wait = {} if role is Role.READER else self._denied_wait()
        return {node: denied & needed | wait.get(node, set()) for node, denied in found.items()}

    def _denied_wait(self) -> dict[str | None, set[str]]:
        if self._replication is None:
            return {}
        replies = self.on_masters(("WAIT", 0, 0))
        return {node: {"WAIT"} for node, (reply,) in replies.items() if denies(reply)}

    def command(self, *words: Any) -> Any:
        """Run a plain command that may run twice. Raises an RmqError."""
        return self.commands([words])[0]

    def commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run plain commands that may run twice, in one round trip. Raises an RmqError.

        commands: the words of each; the second word is its key, if there is one.
        """
        self._look_at_policy()
        asked = [Command(str((*words, "")[1]), words) for words in commands]
        replies = self._run_until_answered(asked, lambda left: self._nodes.run(left, None))
        for words, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                raise self._typed(reply, _named(words)) from None
        return replies

    def keys_like(self, pattern: str) -> list[str]:
        """List the keys that match a pattern of SCAN. Looks through all keys of the database."""
        client = self.client
        scan = partial(client.scan_iter, match=pattern, count=1000)
        found = self._retry(lambda: self.run_in_thread(lambda: list(scan())), "SCAN")
        return [key.decode(errors="surrogateescape") for key in found]

    @property
    def script_names(self) -> dict[str, str]:
        """The names of the scripts, by the digest with which Redis calls them."""
        return {script.sha: name for name, script in self._scripts.items()}

    def now_ms(self) -> int:
        seconds, microseconds = self.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def ask(self, request: Request[_T] | Conversation[_T]) -> _T:
        """Run a request, or all of a conversation, for its answer. Raises an RmqError."""
        if isinstance(request, Request):
            last_counts = request.last_counts
            run = partial(self.pipeline, last_counts=True) if last_counts else self.pipeline
            return request.parse(in_parts(request.calls, run, request.calls_a_pipeline))
        answer: Any = None
        try:
            while True:
                answer = self.ask(request.send(answer))
        except StopIteration as end:
            return cast(_T, end.value)

    def ask_once(self, request: Request[Any]) -> None:
        """Run a request that must not run twice, so without a second try. Raises an RmqError."""
        try:
            replies = self._run(request.calls, with_reads_behind)
        except (redis.RedisError, redis_errors.RedisClusterException) as raised:
            replies = [root_of(raised)]
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._typed(reply, "a call") from None

    def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run one script and return its reply. Raises an RmqError for every failure."""
        return self.pipeline([Call(script, keys, args)])[0]

    def pipeline(self, calls: Sequence[Call | Read], last_counts: bool = False) -> list[Any]:
        """Run scripts and reads in one round trip (in a cluster, one a node) for their replies.

        Calls that a broken connection leaves unanswered run again, so each must be safe to run
        twice. The reads behind a call always run after it, also when it runs again: they show what
        it has left. last_counts: as of Request. Raises the first error among the replies, after all
        calls have run.
        """
        self._look_at_policy()
        widened = with_slot_behind if last_counts else with_reads_behind
        replies = self._run_until_answered(calls, partial(self._run, widened=widened), widened)
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, errors.RmqError):
                raise reply
            if isinstance(reply, Exception):
                raise self._explained(call, reply) from None
        return replies

    def _explained(self, call: Call | Read, reply: Exception) -> errors.RmqError:
        if not isinstance(call, Call):
            return self._typed(reply, _named(call))
        if is_of_script(reply):
            script, key = self._scripts[call.script], call.keys[0]
            denial = self._retry(lambda: self._permissions.explain(script, key))
            if denial is not None:
                return cast(errors.RmqError, denial)
        return self._typed(reply, call.script)

    def _run_until_answered(
        self,
        asked: Sequence[_T],
        run: Callable[[Sequence[_T]], list[Any]],
        widened: Callable[[Any, list[int]], list[int]] = lambda _, failed: failed,
    ) -> list[Any]:
        """Run all; run those that fail for now again, with what ``widened`` returns for them."""
        replies: dict[int, Any] = {}

        def run_rest() -> None:
            left = [at for at in range(len(asked)) if at not in replies]
            answers = dict(zip(left, run([asked[at] for at in left]), strict=True))
            failed = [at for at, reply in answers.items() if _failed_for_now(reply)]
            again = set(widened(asked, failed))
            replies.update({at: reply for at, reply in answers.items() if at not in again})
            if failed:
                raise answers[failed[0]]

        self._retry(run_rest)
        return [replies[at] for at in range(len(asked))]

    def _run(self, calls: Sequence[Call | Read], widened: Widened) -> list[Any]:
        if not (self._loaded and self._permissions.are_known):
            with self._loading:  # one at a time, where many begin together
                if not self._loaded:
                    self._load()
                self._check_permitted(calls)
        elif not self._permissions.has_all:
            self._check_permitted(calls)
        replies = self._send(calls)
        missing = [
            at for at, reply in enumerate(replies) if isinstance(reply, redis_errors.NoScriptError)
        ]
        if missing:
            again = widened(calls, missing)
            for at, reply in zip(again, self._loaded_again(calls, again), strict=True):
                replies[at] = reply
        return replies

    def _loaded_again(self, calls: Sequence[Call | Read], again: Sequence[int]) -> list[Any]:
        """Load the scripts again, and run the calls whose script was missing.

        An error is the reply to these calls alone, not to those that have already run.
        """
        try:
            self._load()
            return self._send([calls[at] for at in again])
        except (redis.RedisError, redis_errors.RedisClusterException) as error:
            return [root_of(error)] * len(again)

    def _send(self, calls: Sequence[Call | Read]) -> list[Any]:
        commands = [self._command(call) for call in calls]
        needs_replicas = any(
            self._scripts[call.script].needs_replicas for call in _scripts_of(calls)
        )
        return self._nodes.run(commands, self._replication if needs_replicas else None)

    def _command(self, call: Call | Read) -> Command:
        if not isinstance(call, Call):
            return Command(str(call[1]), call)
        sha = self._scripts[call.script].sha
        words = ["EVALSHA", sha, len(call.keys), *call.keys, *call.args]
        packs = [packed(pairs) for pairs in (call.pairs, call.bodies) if len(pairs)]
        return Command(call.keys[0], words + packs)

    def _load(self) -> None:
        for script in self._scripts.values():
            self._load_one(script)
        self._loaded = True

    def _check_permitted(self, calls: Sequence[Call | Read]) -> None:
        asked = {call.script: call.keys[0] for call in _scripts_of(calls)}
        reads = {str(call[0]) for call in calls if not isinstance(call, Call)}
        for script, key in asked.items():
            self._permissions.check(self._scripts[script], key, reads)

    def _run_on_masters(self, words: Sequence[Sequence[Any]]) -> dict[str | None, list[Any]]:
        return self._nodes.run_on_masters(words)

    def _load_one(self, script: Script) -> None:
        replies = [reply for (reply,) in self.on_masters(("SCRIPT LOAD", script.text)).values()]
        # A master that is down now says later that it lacks the script, and gets it then.
        for reply in [reply for reply in replies if not _failed_for_now(reply)] or replies:
            _sound(reply)

    def _retry(self, run: Callable[[], Any], what: str = "a command") -> Any:
        """Run a function until it succeeds; retry errors that may pass, within the patience.

        After a time-out there is one more try, however short the patience. Raises an RmqError.
        what: the call, for the error.
        """
        begun_s, tries, wait, is_told = time.monotonic(), 0, _FIRST_WAIT_S, False
        while True:
            tries += 1
            try:
                result = run()
            except (redis.RedisError, redis_errors.RedisClusterException) as raised:
                error = root_of(raised)
            else:
                if is_told:
                    past_s, self._told_s = time.monotonic() - begun_s, -math.inf
                    _log.warning(
                        "rmq: Redis at %s answers again after %.1f s", self.address, past_s
                    )
                return result
            # Raise outside the handler: redis-py's error in the traceback may quote a password.
            if not isinstance(error, redis.RedisError | redis_errors.RedisClusterException):
                raise error from None
            past_s = time.monotonic() - begun_s
            # A time-out alone may take longer than the patience, on a connection that has died.
            is_first = tries == 1 and isinstance(error, redis_errors.TimeoutError)
            if not is_temporary(error) or (past_s + wait >= self._patience_s and not is_first):
                raise typed_error(error, what, self._options, tries, past_s)
            # One line for each outage, and one a minute if many calls fail in it.
            if tries == 1 and self._is_to_tell(begun_s):
                is_told = True
                _log.warning(
                    "rmq: retrying Redis at %s for up to %g s: %s",
                    *(self.address, self._patience_s, type(error).__name__),
                )
            self.repeats += 1
            self.pause(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _is_to_tell(self, now_s: float) -> bool:
        """Return whether to log an outage: True in one of several threads, once a minute."""
        if not self._tell.acquire(blocking=False):  # another thread does; or did, before a fork
            return False
        try:
            is_time = now_s > self._told_s + _TELL_EVERY_S
            self._told_s = now_s if is_time else self._told_s
            return is_time
        finally:
            self._tell.release()

    def _first_infos(self) -> dict[str | None, dict[str, Any]]:
        if self.client is None:
            client = self.run_in_thread(lambda: new_client(self._options))
            self._masters = self._blocking_route(client)
            self.client = client
        return self._infos_there()

    def _blocking_route(self, client: Any) -> OneServer | Cluster:
        if self.is_cluster:
            return Cluster(client, named_in(self._options.url))
        return OneServer(client, self.address)

    def _infos_there(self) -> dict[str | None, dict[str, Any]]:
        """Ask all masters, and leave out those that do not answer now, except if none does."""
        replies = {node: info for node, (info,) in self.on_masters(("INFO",)).items()}
        there = {node: info for node, info in replies.items() if not _failed_for_now(info)}
        return {node: _sound(info) for node, info in (there or replies).items()}

    def _check(self, node: str | None, info: dict[str, Any]) -> None:
        at = node or self.address
        if _version_of(info) < OLDEST_VERSION:
            raise errors.ServerUnsuitable(
                f"Redis at {at} has version {info.get('redis_version')}. Use Redis 6.2 "
                "or later, or Valkey."
            )
        if info.get("cluster_enabled") and not self.is_cluster:
            raise errors.ServerUnsuitable(
                f"Redis at {self.address} is part of a Redis Cluster. Set "
                f"{self._options.prefix}cluster=true."
            )
        policy = _policy_of(info)
        if policy != NO_EVICTION:
            error = errors.ServerUnsuitable(
                f"Redis at {at} has maxmemory-policy {policy}: it would evict whole "
                "queues. Set maxmemory-policy noeviction."
            )
            error.node = node or self.master_of_sentinels()
            error.evicts = True
            raise error

    def _look_at_policy(self) -> None:
        """Warn of a policy that evicts keys and was set after the connection was made."""
        if time.monotonic() < self._policy_seen_s + POLICY_EVERY_S:
            return
        self._policy_seen_s = time.monotonic()
        try:
            policies = {node: _policy_of(info) for node, info in self._infos_there().items()}
        except (redis.RedisError, redis_errors.RedisClusterException):
            return  # whoever asks for something gets to know
        evicting = {node: one for node, one in policies.items() if one != NO_EVICTION}
        node, policy = next(iter(evicting.items()), (None, NO_EVICTION))
        if policy not in (self.policy, NO_EVICTION):
            _log.warning(
                "rmq: Redis at %s now has maxmemory-policy %s: when it is full, it evicts whole "
                "queues. Set maxmemory-policy noeviction.",
                *(node or self.address, policy),
            )
        self.policy = policy

    def _typed(self, error: Exception, what: str) -> errors.RmqError:
        return typed_error(error, what, self._options)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _renew_after_fork() -> None:
    for server in list(_servers):
        renew_locks(server)
        if server.client is not None:
            renew_after_fork(server.client)
    _shared.clear()


os.register_at_fork(after_in_child=_renew_after_fork)


def _scripts_of(calls: Sequence[Call | Read]) -> Iterator[Call]:
    return (call for call in calls if isinstance(call, Call))


def _sound(reply: Any) -> Any:
    """Return a reply of redis-py. Raises it if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def _policy_of(info: dict[str, Any]) -> str:
    policy: str = info.get("maxmemory_policy", NO_EVICTION)
    return policy


def _failed_for_now(reply: Any) -> bool:
    return isinstance(reply, Exception) and is_temporary(reply)


def _named(words: Sequence[Any]) -> str:
    """Write a command and its key for errors, without its values, which may be secret."""
    return " ".join(str(word) for word in words[:2])


def _version_of(info: dict[str, Any]) -> tuple[int, int]:
    if "valkey_version" in info:  # every Valkey has the commands of Redis 7.2
        return (7, 2)
    major, minor = str(info.get("redis_version", "0.0")).split(".")[:2]
    return int(major), int(minor)


_shared: dict[tuple[ConnectionOptions, float | None], Server] = {}


def shared_server(options: ConnectionOptions, patience_s: float | None = None) -> Server:
    """Return this process's server for these options, connecting on the first call.

    Spark reuses a worker process for many tasks. A forked copy makes servers of its own: a
    credential provider may have threads, which are not copied.
    """
    key = (options, patience_s)
    if key not in _shared:
        _shared[key] = Server(options, patience_s)
    return _shared[key]
