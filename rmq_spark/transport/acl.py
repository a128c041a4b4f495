"""What a Redis user may run, asked before a script runs as that user.

A script that is refused a command half-way keeps its writes: what it had taken out of one queue is
in no other then. (Seen: a user without ZADD lost every message that it claimed.)
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions as failures

from rmq_spark.transport.routing import Command

# The scripts' commands with arguments that make no key and change nothing of one that is not there.
# RPUSH and HSETNX have no such arguments; no script calls them after it has removed anything.
_HARMLESS: dict[str, tuple[str, ...]] = {
    "EXISTS": (),
    "HDEL": ("",),
    "HEXISTS": ("",),
    "HGET": ("",),
    "HGETALL": (),
    "HINCRBY": ("", "no number"),
    "HKEYS": (),
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
    "ZMSCORE": ("",),
    "ZRANGE": ("1", "0"),
    "ZRANGEBYSCORE": ("1", "0"),
    "ZRANK": ("",),
    "ZREM": ("",),
    "ZREMRANGEBYRANK": ("1", "0"),
    "ZREMRANGEBYSCORE": ("1", "0"),
    "ZREVRANGE": ("1", "0"),
}


def denied_commands(run: Callable[[Sequence[Command]], list[Any]], key: str) -> frozenset[str]:
    """The commands of the scripts that this user may not run.

    run: answers commands, errors as values. key: one that scripts are called with, so that the
    user's key patterns cover what is asked for. Raises what is no answer to all of them.
    """
    probe = f"{key}:permitted"
    words = [(command, probe, *arguments) for command, arguments in _HARMLESS.items()]
    replies = run([Command(probe, each) for each in (*words, ("TIME",))])
    for reply in replies:
        if isinstance(reply, failures.ConnectionError | failures.TimeoutError):
            raise reply
    asked = zip([*_HARMLESS, "TIME"], replies, strict=True)
    return frozenset(command for command, reply in asked if _denies(reply))


def _denies(reply: Any) -> bool:
    # A key that is denied is not meant: scripts look at all their keys before they write.
    return isinstance(reply, failures.NoPermissionError) and "to run the" in str(reply)


def commands_of(script: str) -> frozenset[str]:
    """The commands that stand in a script's text."""
    return frozenset(re.findall(r"'([A-Z]+)'", script)) & {*_HARMLESS, "TIME"}
