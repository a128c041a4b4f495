"""What the user of a connection may do: a script without a permission would stop half-way."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any

from redis import exceptions as redis_errors

from rmq_spark.errors import ServerRefused
from rmq_spark.protocol.scripts import Effect, Script
from rmq_spark.redis.failures import permit

# Runs commands on each master, as those of the module routing do.
OnMasters = Callable[[Sequence[Sequence[Any]]], dict[str | None, list[Any]]]
# Stands for the key itself among the arguments below.
_KEY = "the key"
# The commands of the scripts, with arguments that change nothing when the key does not exist.
# RPUSH has no such arguments; no script calls it after it has removed a message.
_HARMLESS: dict[str, tuple[str, ...]] = {
    "EXISTS": (),
    "HDEL": ("",),
    "HEXISTS": ("",),
    "HGET": ("",),
    "HGETALL": (),
    "HINCRBY": ("", "no number"),
    "HKEYS": (),
    "HMGET": ("",),
    "HSTRLEN": ("",),
    "HSET": ("", "", "a field without value"),
    "INFO": (),
    "LLEN": (),
    "LPOP": ("0",),
    "PERSIST": (),
    "PEXPIRE": ("no number",),
    "RENAME": (_KEY,),
    "TYPE": (),
    "UNLINK": (),
    "ZADD": ("no number", ""),
    "ZCARD": (),
    "ZCOUNT": ("1", "0"),
    "ZINTER": ("no number", ""),
    "ZMSCORE": ("",),
    "ZRANGE": ("1", "0"),
    "ZRANGEBYSCORE": ("1", "0"),
    "ZRANGESTORE": (_KEY, "no number", ""),
    "ZRANK": ("",),
    "ZREM": ("",),
    "ZREMRANGEBYRANK": ("1", "0"),
    "ZUNIONSTORE": ("no number", ""),
}
_LOAD = ("SCRIPT", "LOAD", "return 1")
# Those that only topics with a limit need; a script calls them before it writes.
_BEFORE_WRITES: dict[str, tuple[str, ...]] = {"HLEN": (), "HRANDFIELD": (), "ZRANDMEMBER": ()}
# Of functions within lua/include/limits.lua, which a script that reads includes but does not call.
_WRITES_OF_LIMITS = frozenset({"PEXPIRE", "ZADD", "ZREM"})
# Those by which queues, claims and definitions are read without a script.
_WITHOUT_SCRIPT = frozenset({"HGET", "HGETALL", "HKEYS", "HMGET", "INFO", "TIME", "ZCARD"})
_SENDS = frozenset({"send_at", "send_first", "send_last"})


class Role(StrEnum):
    """What a user of Redis is for: everything, only sending, or only looking."""

    ALL = "all"
    SENDER = "sender"
    READER = "reader"


def denied_commands(
    run: OnMasters, key: str, *, thorough: bool = False
) -> dict[str | None, frozenset[str]]:
    """Find the commands of the scripts that this user may not run, by master of a cluster.

    A master looks at permissions first, and only then says that it does not have a key. key: one of
    the scripts: the user's key patterns must cover the keys of the probe. thorough: whether to ask
    also for what only topics with a limit need, and for scripts at all. A master that does not
    answer is left out: a script may go to another one. If none answers, raises the error of a
    broken connection.
    """
    probe = f"{key}:permitted"
    probed = {**_HARMLESS, **(_BEFORE_WRITES if thorough else {})}
    words = [
        (command, probe, *(probe if word is _KEY else word for word in arguments))
        for command, arguments in probed.items()
    ]
    of_scripts: dict[str, tuple[str, ...]] = {}
    if thorough:
        of_scripts = {"EVALSHA": ("EVALSHA", "0" * 40, "1", probe), "SCRIPT|LOAD": _LOAD}
    found = run([*words, *of_scripts.values(), ("TIME",)])
    asked = [*probed, *of_scripts, "TIME"]
    denied = {}
    for node, replies in found.items():
        broken = redis_errors.ConnectionError, redis_errors.TimeoutError
        error = next((reply for reply in replies if isinstance(reply, broken)), None)
        if error is None:
            answers = zip(asked, replies, strict=True)
            denied[node] = frozenset(name for name, reply in answers if denies(reply))
    if not denied and error is not None:
        raise error
    return denied


def denies(reply: Any) -> bool:
    # Only a denied command counts, not a denied key: scripts read all their keys before they write.
    return isinstance(reply, redis_errors.NoPermissionError) and "to run the" in str(reply)


@cache
def commands_of(script: str) -> frozenset[str]:
    """Return the commands of a script's text, without those that only limits need."""
    return _words_of(script) & {*_HARMLESS, "TIME"}


def _words_of(script: str) -> frozenset[str]:
    return frozenset(re.findall(r"'([A-Z]+)'", script))


def commands_for(role: Role, scripts: Iterable[Script]) -> frozenset[str]:
    """Return the commands that a role needs, of those that are probed. scripts: all."""
    known = {*_HARMLESS, *_BEFORE_WRITES, "TIME"}
    calls = frozenset({"EVALSHA", "SCRIPT|LOAD"})
    if role is Role.ALL:
        return calls | known
    if role is Role.SENDER:
        sends = [commands_of(script.text) for script in scripts if script.name in _SENDS]
        return calls.union({"HGET", "INFO"}, *sends)
    texts = [script.text for script in scripts if script.effect is Effect.READS]
    return calls | (_WITHOUT_SCRIPT.union(*map(_words_of, texts)) & (known - _WRITES_OF_LIMITS))


class Permissions:
    """The commands of the scripts that a server's user may run; asked for when first needed.

    address: the server's.
    """

    def __init__(self, run: OnMasters, address: str) -> None:
        self._run = run
        self._address = address
        self._denied: dict[str | None, frozenset[str]] | None = None  # None: not asked yet

    @property
    def are_known(self) -> bool:
        return self._denied is not None

    @property
    def has_all(self) -> bool:
        """Whether the user is known to have all of them."""
        return self._denied is not None and not any(self._denied.values())

    def check(self, script: Script, key: str, reads: Collection[str]) -> None:
        """Raise ServerRefused if a script, or a read behind it, is denied a command.

        key: one of the script's keys. reads: the commands that read.
        """
        if script.effect is Effect.READS:  # it can stop anywhere
            return
        denied = self._denied
        if denied is None:
            denied = self._denied = denied_commands(self._run, key)
        node, missing = _first_lack(denied, commands_of(script.text).union(reads))
        if missing:
            self._denied = None  # ask again next time: the user may get the permission
            raise self._refused(
                node,
                f"{', '.join(sorted(missing))}, without which the script {script.name} would stop "
                f"half-way. {permit(missing)}",
            )

    def explain(self, script: Script, key: str) -> ServerRefused | None:
        """Make the error for a script that was denied a command; None if it lacks none.

        Newer servers name the first such command, older ones none.
        """
        denied = denied_commands(self._run, key, thorough=True)
        node, missing = _first_lack(denied, _words_of(script.text))
        if not missing:
            return None
        return self._refused(
            node,
            f"{', '.join(sorted(missing))}, which the script {script.name} needs. "
            f"{permit(missing)}",
        )

    def _refused(self, node: str | None, what: str) -> ServerRefused:
        error = ServerRefused(f"Redis at {node or self._address} does not permit this user {what}")
        error.node = node
        return error


def _first_lack(
    denied: Mapping[str | None, frozenset[str]], needed: Collection[str]
) -> tuple[str | None, frozenset[str]]:
    """Return the first master that denies what is needed, and that; else None and nothing."""
    lacks = ((node, found.intersection(needed)) for node, found in denied.items())
    return next(((node, missing) for node, missing in lacks if missing), (None, frozenset()))
