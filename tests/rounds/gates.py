"""Gates in the programs: places where a task or a driver halts, or fails, when it is told to.

``armed-<place>`` is what the test lays down; who comes by takes it away, so that exactly one does,
writes ``inside-<place>`` and goes on when that is removed.
"""

import json
import os
import time
from pathlib import Path

from pyspark import TaskContext

# A gate that nobody opens must not hang a query for ever.
LONGEST_HOLD_S = 300.0


def pass_gate(folder: str, place: str) -> None:
    """In the programs: halts here, or fails, if the test has asked for it."""
    taken = Path(folder) / f"taken-{place}.{os.getpid()}"
    try:
        os.rename(Path(folder) / f"armed-{place}", taken)
    except FileNotFoundError:
        return
    action = taken.read_text()
    taken.write_text(json.dumps({"pid": os.getpid(), "task": _task()}))
    inside = Path(folder) / f"inside-{place}"
    os.rename(taken, inside)
    if action == "fail":
        raise ValueError(f"a task that fails at {place}, its first time")
    _wait_while_there(inside)


def note_attempt(folder: str) -> None:
    """Leaves a mark where a task's attempt is not its first one."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        (Path(folder) / f"again-{_task()}").touch()


def _task() -> str:
    context = TaskContext.get()
    return "driver" if context is None else f"{context.stageId()}-{context.partitionId()}"


def _wait_while_there(file: Path) -> None:
    end = time.monotonic() + LONGEST_HOLD_S
    while file.exists() and time.monotonic() < end:
        time.sleep(0.02)
