"""Processes as Linux shows them under /proc: who lives, whose child and connection is whose."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROC = Path("/proc")
# Marks tests that look processes up there.
NEEDS_PROC = pytest.mark.skipif(not PROC.is_dir(), reason="looks processes up under /proc")


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return _fields(pid)[0] != "Z"
    except OSError:
        return False


def send(pid: int, wanted: signal.Signals, within_s: float = 30.0) -> bool:
    """Sends a signal that ends a process, waits for the end, and tells whether it came of that."""
    if not alive(pid):
        return False
    os.kill(pid, wanted)
    return ended(pid, within_s)


def ended(pid: int, within_s: float) -> bool:
    """Whether it ends within a time."""
    end = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def family(pid: int) -> list[int]:
    """A process and all that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    for each in _pids():
        try:
            children.setdefault(int(_fields(each)[1]), []).append(each)
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def client_of(client_port: int, server_port: int) -> int | None:
    """The process at the client's end of a loopback connection."""
    inode = _inode(client_port, server_port)
    return next((pid for pid in _pids() if inode and _holds(pid, inode)), None)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _fields(pid: int) -> list[str]:
    """State, parent, ...: what follows the name, which may hold anything, in parentheses."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _inode(local: int, remote: int) -> str | None:
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            words = line.split()
            ends = [int(words[at].rpartition(":")[2], 16) for at in (1, 2)]
            if ends == [local, remote]:
                return words[9]
    return None


def _holds(pid: int, inode: str) -> bool:
    try:
        return any(
            os.readlink(entry) == f"socket:[{inode}]" for entry in (PROC / f"{pid}/fd").iterdir()
        )
    except OSError:
        return False
