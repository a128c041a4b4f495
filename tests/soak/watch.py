"""Watches the processes of a soak from outside: memory, threads and files, and who is left over."""

import os
import re
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ..processes import PROC, alive

# Everything that a soak starts, and what that starts, has this in its environment.
MARK = "RMQ_SOAK"
# What a JVM keeps for as long as it has memory (of classes that it has looked into) is no growth:
# so it goes with the garbage.
JAVA_OPTIONS = {"JDK_JAVA_OPTIONS": "-XX:SoftRefLRUPolicyMSPerMB=0"}
# Part of a JDK; a JRE does without, and so does the watch.
JCMD = shutil.which("jcmd") or ""
# Where a JVM makes sockets for such programs, whatever TMPDIR says.
ATTACHED = Path("/tmp")
EVERY_S = 5.0
# Younger processes still warm up: a JVM beside all others on two cores loads classes for minutes
# (seen: 8 MiB a minute and 21 threads more within 7, beside one of 21 that did not grow).
LEAST_LIFE_S = {"java": 900.0, "other": 300.0}
# How often the live heap of a JVM is measured, which collects its garbage.
HEAP_EVERY_S = 60.0
# By how much a process may grow: MiB a minute, on a line through the last two thirds of its life.
MOST_MIB_A_MINUTE = {"java": 6.0, "other": 1.0}
# By how much the most of the last third may exceed the most of the second one.
MOST_MORE_THREADS, MOST_MORE_FILES = 16, 32


@dataclass(frozen=True)
class Sample:
    """A process at one moment.

    at: s since the watch began. memory: MiB that are in RAM; of a JVM, those that its live objects
    take, because it fills its heap with garbage before it collects it.
    """

    at: float
    memory: float
    threads: int
    files: int


@dataclass(frozen=True)
class Life:
    """What was seen of a process that was alive in the end."""

    pid: int
    name: str
    samples: tuple[Sample, ...]

    @property
    def seconds(self) -> float:
        return self.samples[-1].at - self.samples[0].at

    @property
    def settled(self) -> list[Sample]:
        """The last two thirds."""
        since = self.samples[0].at + self.seconds / 3
        return [each for each in self.samples if each.at >= since]

    @property
    def mib_a_minute(self) -> float:
        """The slope of the line that fits the memory of the last two thirds best."""
        points = [(each.at / 60, each.memory) for each in self.settled]
        middle = sum(at for at, _ in points) / len(points)
        spread = sum((at - middle) ** 2 for at, _ in points)
        return sum((at - middle) * memory for at, memory in points) / spread if spread else 0.0

    @property
    def kind(self) -> str:
        return "java" if self.name == "java" else "other"

    @property
    def bound(self) -> float:
        return MOST_MIB_A_MINUTE[self.kind]

    def wrong(self) -> list[str]:
        """What grows."""
        half = len(self.settled) // 2
        before, after = self.settled[:half], self.settled[half:]
        found = []
        if self.mib_a_minute > self.bound:
            found.append(f"memory grows by {self.mib_a_minute:.2f} MiB a minute")
        for name, most in (("threads", MOST_MORE_THREADS), ("files", MOST_MORE_FILES)):
            first, last = (max(getattr(e, name) for e in part) for part in (before, after))
            if last > first + most:
                found.append(f"{name} grow from {first} to {last}")
        return [f"{self.name} ({self.pid}): {each}" for each in found]


class Watch(threading.Thread):
    """A thread that looks at all marked processes but this one every few seconds."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self._mark = f"{MARK}={mark}".encode()
        # By pid and start: the number of a process that has ended is given to another one.
        self._samples: dict[tuple[int, int], list[Sample]] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._heaps: dict[tuple[int, int], tuple[float, float]] = {}
        self._since = time.monotonic()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(EVERY_S):
                self.look()
        except BaseException as error:
            self._error = error

    def look(self) -> None:
        """Takes a sample of each process."""
        at = time.monotonic() - self._since
        for pid in self.marked():
            try:
                sample, process = _sample(pid, at), (pid, started(pid))
                self._names[process] = self._names.get(process) or _name(pid)
            except (OSError, ValueError, KeyError):  # it has ended meanwhile
                continue
            if self._names[process] == "java" and JCMD:
                sample = replace(sample, memory=self._live_heap(process, at))
            self._samples.setdefault(process, []).append(sample)

    def _live_heap(self, process: tuple[int, int], at: float) -> float:
        """The live heap of a JVM in MiB, at most a minute old; 0 before it answers."""
        measured_at, heap = self._heaps.get(process, (-HEAP_EVERY_S, 0.0))
        if at >= measured_at + HEAP_EVERY_S:
            heap = live_heap(process[0]) or heap
            self._heaps[process] = at, heap
        return heap

    def end(self) -> list[Life]:
        """Looks no more. Returns the lives of those that are alive, and old enough to judge.

        Raises what ended the thread before.
        """
        self._over.set()
        self.join()
        for pid, _ in self._heaps:
            if not alive(pid):  # a JVM that was killed leaves the socket that jcmd spoke to
                (ATTACHED / f".java_pid{pid}").unlink(missing_ok=True)
        if self._error is not None:
            raise self._error
        lives = (
            Life(process[0], self._names[process], tuple(samples))
            for process, samples in self._samples.items()
            if alive(process[0]) and started(process[0]) == process[1]
        )
        return [life for life in lives if life.seconds >= LEAST_LIFE_S[life.kind]]

    def marked(self) -> list[int]:
        """The processes that descend from this one, whoever their parent is now."""
        found = []
        for entry in PROC.iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return [pid for pid in found if alive(pid)]


def live_heap(pid: int) -> float | None:
    """What the live objects of a JVM take, in MiB; None if it does not answer, as when stopped."""
    try:
        for command in ("GC.run", "GC.heap_info"):
            done = subprocess.run(
                [JCMD, str(pid), command],
                env={name: value for name, value in os.environ.items() if name != MARK},
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            )
    except (subprocess.SubprocessError, OSError):
        return None
    used = re.findall(r"(?:new|tenured) generation.* used (\d+)K", done.stdout)
    return sum(map(int, used)) / 1024 if used else None


def _sample(pid: int, at: float) -> Sample:
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    memory = int(fields["VmRSS"].split()[0]) / 1024 if "VmRSS" in fields else 0.0
    files = len(os.listdir(PROC / str(pid) / "fd"))
    return Sample(at, memory, int(fields["Threads"]), files)


def started(pid: int) -> int:
    """When a process began, in ticks since the machine did. Raises OSError for one that is gone."""
    behind_name = (PROC / str(pid) / "stat").read_text().rpartition(")")[2]
    return int(behind_name.split()[19])


def _name(pid: int) -> str:
    """The program, or the module that Python runs."""
    words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    if not words[0].strip():  # it is about to end, or has just begun
        raise ValueError("no command line")
    program = Path(words[0].split()[0]).name
    if program.startswith("python"):
        module = words[words.index("-m") + 1] if "-m" in words else Path(words[1]).name
        return module.rpartition(".")[2] if "-m" in words else module
    return program
