"""The permissions of a Redis user, checked before a script runs as that user.

If Redis refuses a command in the middle of a script, the script's earlier writes stay: a message
already removed from one queue is then in no other. (A user without ZADD lost every message that it
claimed.)
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions as redis_errors

from rmq_spark.transport.routing import Command

# Stands for the key itself among the arguments below.
_KEY = "the key"
# The commands of the scripts, with arguments that change nothing when the key does not exist.
# RPUSH and HSETNX have no such arguments; no script calls them after it has removed a message.
_HARMLESS: dict[str, tuple[str, ...]] = {
    "EXISTS": (),
    "HDEL": ("",),
    "HEXISTS": ("",),
    "HGET": ("",),
    "HGETALL": (),
    "HINCRBY": ("", "no number"),
    "HKEYS": (),
    "HSTRLEN": ("",),
    "HSET": ("", "", "a field without value"),
    "INFO": (),
    "LLEN": (),
    "LPOP": ("0",),
    "PERSIST": (),
    "PEXPIRE": ("no number",),
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


def denied_commands(run: Callable[[Sequence[Command]], list[Any]], key: str) -> frozenset[str]:
    """Find the commands of the scripts that this user may not run.

    run: runs commands and returns their replies, errors among them. key: a key of the scripts: the
    user's key patterns must cover the keys of the probe. Raises the error of a broken connection.
    """
    probe = f"{key}:permitted"
    words = [
        (command, probe, *(probe if word is _KEY else word for word in arguments))
        for command, arguments in _HARMLESS.items()
    ]
    replies = run([Command(probe, each) for each in (*words, ("TIME",))])
    for reply in replies:
        if isinstance(reply, redis_errors.ConnectionError | redis_errors.TimeoutError):
            raise reply
    asked = zip([*_HARMLESS, "TIME"], replies, strict=True)
    return frozenset(command for command, reply in asked if _denies(reply))


def _denies(reply: Any) -> bool:
    # Only a denied command counts, not a denied key: scripts read all their keys before they write.
    return isinstance(reply, redis_errors.NoPermissionError) and "to run the" in str(reply)


def commands_of(script: str) -> frozenset[str]:
    """List the commands that a script's text calls."""
    return frozenset(re.findall(r"'([A-Z]+)'", script)) & {*_HARMLESS, "TIME"}
