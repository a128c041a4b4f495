"""Child processes that end as a whole: with all that they have started, and with their parent."""

import contextlib
import inspect
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

from rmq_spark.process import STOP_SIGNALS
from rmq_spark.topics.parsing import duration_text
from rmq_spark.topics.reasons import reason_of
from rmq_spark.topics.verdicts import Verdict

# How long a process may take to load its function, unless a message may take longer.
LOADING_S = 60.0
# How often to look whether a process has ended.
_LOOK_EVERY_S = 0.01
_UNKNOWN_CODE = 255
# Gets the number of each process group that begins, and again when it has ended. At the end of its
# input, its parent has ended, so it kills those that are left.
_GUARDIAN = """# rmq-spark: ends the children of a process that is killed
import os, sys
groups = set()
for line in sys.stdin:
    groups ^= {int(line)}
for group in groups:
    for kill in os.killpg, os.kill:  # the process may not have its group yet
        try:
            kill(group, 9)
            break
        except OSError:
            pass
"""


class ChildProcess:
    """A child of this process that leads a process group, or will at once.

    What it starts is in that group and ends with it, even if this process is killed. Only this
    object may wait for the child: until then, no other process or group gets its number, so none is
    killed in its place. Any thread can call the methods.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None
        self._lock = threading.RLock()
        try:
            _guard.watch(pid)
        except BaseException:
            self.kill()
            raise

    def is_alive(self) -> bool:
        """Return whether the process has not ended. If it has, kill what it has left behind."""
        with self._lock:
            if self._exit_code is None and self._has_ended():
                self.kill()
            return self._exit_code is None

    def wait(self, timeout_s: float) -> None:
        ends_s = time.monotonic() + timeout_s
        while self.is_alive() and time.monotonic() < ends_s:
            time.sleep(_LOOK_EVERY_S)

    def kill(self) -> int:
        """Kill the process and all that it has started. Return its exit code; -N for signal N."""
        with self._lock:
            if self._exit_code is None:
                self._has_ended()  # if somebody else has collected it, its number is not its own
            if self._exit_code is None:
                self._kill_group()
                _guard.forget(self.pid)
                self._exit_code = self._collect()
            return self._exit_code

    def _has_ended(self) -> bool:
        """Return whether the process has ended. Until ``kill`` collects it, it has its number."""
        try:
            if hasattr(os, "waitid"):
                options = os.WEXITED | os.WNOHANG | os.WNOWAIT
                return os.waitid(os.P_PID, self.pid, options) is not None
            found, status = os.waitpid(self.pid, os.WNOHANG)  # macOS before Python 3.13
            if not found:
                return False
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            self._exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # the program ignores SIGCHLD, or waits for all of its children
            self._exit_code = _UNKNOWN_CODE
        _guard.forget(self.pid)
        return True

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it does not lead its group yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        except PermissionError:
            pass  # macOS: all of the group have ended

    def _collect(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return _UNKNOWN_CODE


class TimeLimitExceeded(TimeoutError):
    """A function took longer than its timeout. Not TimeoutError, which it may raise itself."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"took longer than {duration_text(round(1000 * timeout_s))}")


def too_long(timeout_s: float | None) -> str:
    """Return the reason of a message whose function took longer than its timeout."""
    return reason_of(TimeLimitExceeded(timeout_s or 0))


def ended_by(exit_code: int) -> str:
    """Return the reason of a message whose function ended its process."""
    return f"ProcessEnded: {how_ended(exit_code)}"


def how_ended(exit_code: int) -> str:
    """Return what ended a process, such as "killed by SIGKILL" or "exit status 3"."""
    if exit_code >= 0:
        return f"exit status {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-exit_code}"


def is_async(function: Any) -> bool:
    """Return whether a call returns a coroutine, as of an object whose ``__call__`` is async."""
    called = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def refuse_unrun(returned: Any, or_else: str = "") -> None:
    """Raise TypeError for what shows that the message is not done.

    A coroutine or generator has not run. A future may not have run, and nobody would see its
    error. A verdict is to be raised.
    """
    if isinstance(returned, Verdict):
        name = type(returned).__name__
        raise TypeError(f"The function returned a {name}. Accepted: to raise it.")
    is_generator = inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    if is_generator or inspect.isawaitable(returned) or isinstance(returned, Future):
        if inspect.iscoroutine(returned):
            returned.close()
        state = "may not have run" if isinstance(returned, Future) else "has not run"
        raise TypeError(
            f"The function returned a {type(returned).__name__}, which {state}. Accepted: a "
            f"function that does its work before it returns{or_else}."
        )


class _Guard:
    """The guardian of this process: one that kills groups when this one has ended, be it killed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._groups: set[int] = set()
        self._pipe: int | None = None

    def watch(self, group: int) -> None:
        with self.lock:
            self._groups.add(group)
            if not self._tell(group):
                self._start()

    def forget(self, group: int) -> None:
        with self.lock:
            self._groups.discard(group)
            self._tell(group)

    def clear(self) -> None:
        """Forget everything, in a forked copy of the process. Its end must not be waited for."""
        if self._pipe is not None:
            os.close(self._pipe)
        self.__init__()  # type: ignore[misc]

    def _tell(self, *groups: int) -> bool:
        if self._pipe is None:
            return False
        try:
            os.write(self._pipe, "".join(f"{group}\n" for group in groups).encode())
        except BrokenPipeError:  # it was killed
            return False
        return True

    def _start(self) -> None:
        theirs, ours = os.pipe()
        try:
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-S", "-c", _GUARDIAN],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 0)],
                setpgroup=0,  # a terminal's Ctrl-C is not for it,
                setsigmask=STOP_SIGNALS,  # nor what a supervisor sends to all
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = ours
        self._tell(*self._groups)


_guard = _Guard()
# Not while the guardian starts: a forked copy would keep its pipe open, unknown to ``clear``.
os.register_at_fork(
    before=lambda: _guard.lock.acquire(),
    after_in_parent=lambda: _guard.lock.release(),
    after_in_child=_guard.clear,
)
