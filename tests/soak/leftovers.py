"""What a soak must not leave over: each function returns a text for what it finds."""

import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from pathlib import Path

import redis

from ..processes import PROC, alive

# What ends, ends within it.
ENDS_S = 30.0
# An outbox keeps its rounds, as it may rest for months.
OF_AN_OUTBOX = "sink:outbox-"


def processes(pids: Iterable[int]) -> list[str]:
    """Those that do not end by themselves; they are killed."""
    left = [pid for pid in pids if not _ends(lambda pid=pid: not alive(pid))]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"{len(left)} processes are left over"] * bool(left)


def connections(client: redis.Redis) -> list[str]:
    """Connections to Redis that do not belong to this process."""

    def others() -> list[str]:
        ports = _ports_of(os.getpid())
        addresses = [each["addr"] for each in client.client_list()]
        return [each for each in addresses if int(each.rpartition(":")[2]) not in ports]

    _ends(lambda: not others())
    left = others()
    return [f"{len(left)} connections are left over"] * bool(left)


def keys(client: redis.Redis) -> list[str]:
    """Keys that stay; what sinks know of their batches goes by itself a while after the last."""
    without_expiry = (key for key in client.scan_iter(count=1000) if client.ttl(key) == -1)
    left = sorted(key for key in without_expiry if not key.startswith(OF_AN_OUTBOX))
    return [f"{len(left)} keys are left over: {left[:5]}"] * bool(left)


def threads(before: Set[threading.Thread]) -> list[str]:
    """Threads of this process that were not there before."""
    _ends(lambda: not set(threading.enumerate()) - before)
    names = sorted(each.name for each in set(threading.enumerate()) - before)
    return [f"{len(names)} threads are left over: {names}"] * bool(names)


def files() -> list[str]:
    """Our files and folders among the temporary ones."""
    left = sorted(each.name for each in Path(tempfile.gettempdir()).glob("rmq-*"))
    return [f"files are left over: {left}"] * bool(left)


def _ends(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + ENDS_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
    return holds()


def _ports_of(pid: int) -> set[int]:
    """The local ports of a process's TCP connections."""
    sockets = set()
    for entry in (PROC / str(pid) / "fd").iterdir():
        with suppress(OSError):
            if found := re.match(r"socket:\[(\d+)\]", os.readlink(entry)):
                sockets.add(found[1])
    lines = (PROC / "net" / "tcp").read_text().splitlines()[1:]
    words = [line.split() for line in lines]
    return {int(each[1].rpartition(":")[2], 16) for each in words if each[9] in sockets}
