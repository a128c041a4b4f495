"""How fast other programs send and receive, told by what Redis holds for them.

The rule is the same for all: what counts is the time from the first change of what Redis holds to
the last, so no program's start counts, nor how many processes it takes.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import redis

FOLDER = Path(__file__).parent / "peers"
LOOK_EVERY_S = 0.01
# Without a change for so long the programs are stuck.
PATIENCE_S = 60.0
END_WITHIN_S = 60.0
# One call and at one moment, as messages go from key to key.
HELD = """
local held, size = 0, {list = 'LLEN', zset = 'ZCARD', hash = 'HLEN'}
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if size[kind] then held = held + redis.call(size[kind], key) end
end
return held
"""


@dataclass(frozen=True)
class Crew:
    """A program and how many of it run at once. endless: it must be told to end."""

    command: tuple[str, ...]
    processes: int = 1
    endless: bool = False

    def __str__(self) -> str:
        words = " ".join(Path(word).name for word in self.command)
        return f"{self.processes} x `{words}`"


@dataclass(frozen=True)
class Peer:
    """Another queue. keys: what holds its messages from their sending until they are done.

    messages: how many a round. senders, workers: the crews of which the best is measured.
    """

    name: str
    messages: int
    keys: tuple[str, ...]
    senders: tuple[Crew, ...]
    workers: tuple[Crew, ...]


class Watcher:
    """Runs peers' programs on a Redis server of which nothing is kept."""

    def __init__(self, port: int, contents: Path) -> None:
        self._port = port
        self._contents = contents
        self._client = redis.Redis(port=port)

    def send(self, peer: Peer, crew: Crew) -> float:
        """Messages a second into an empty server."""
        self._client.flushdb()
        return self._speed(peer, crew, peer.messages)

    def receive(self, peer: Peer, crew: Crew) -> float:
        """Messages a second of those that were sent. Each must have been worked on."""
        speed = self._speed(peer, crew, 0)
        done = int(self._client.get("peer_done") or 0)
        if done != peer.messages:
            raise SystemExit(f"{peer.name}: {done} of {peer.messages} messages were worked on")
        return speed

    def _speed(self, peer: Peer, crew: Crew, until: int) -> float:
        with tempfile.TemporaryFile() as log, self._running(crew, log) as running:
            held = self._client.register_script(HELD)
            first = last = int(held(keys=peer.keys))
            began_at, began, changed = 0.0, first, time.perf_counter()
            while last != until:
                time.sleep(LOOK_EVERY_S)
                now, seen = time.perf_counter(), int(held(keys=peer.keys))
                if seen != last:
                    last, changed = seen, now
                if began == first != seen:
                    began_at, began = now, seen
                if now - changed > PATIENCE_S or _failed(running):
                    raise SystemExit(f"{peer.name}: {crew} stopped at {seen}:\n{_tail(log)}")
        if began == until:
            raise SystemExit(f"{peer.name}: {peer.messages} messages are too few to be timed")
        return abs(until - began) / (changed - began_at)

    @contextmanager
    def _running(self, crew: Crew, log: IO[bytes]) -> Iterator[list[subprocess.Popen[bytes]]]:
        """The crew's processes, which have ended afterwards."""
        running: list[subprocess.Popen[bytes]] = []
        try:
            for part in range(crew.processes):
                told = {"PORT": self._port, "CONTENTS": self._contents}
                told |= {"PART": part, "PARTS": crew.processes}
                environ = {f"PEER_{name}": str(value) for name, value in told.items()}
                program = subprocess.Popen(
                    crew.command,
                    cwd=FOLDER,
                    env=os.environ | environ,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # so that what it started itself can be ended with it
                )
                running.append(program)
            yield running
            for program in running:
                if crew.endless:
                    program.terminate()
                program.wait(END_WITHIN_S)
        finally:
            for program in running:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
                    program.wait()


def _failed(running: "list[subprocess.Popen[bytes]]") -> bool:
    return any(program.poll() for program in running)


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-2000:].decode(errors="replace")
