"""Moments at which a fault is injected: inside a read, a sink's write or a commit, held open."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..processes import client_of
from ..waiting import wait_until
from .proxy import Proxy, Trap

ENTERED_S = 300.0


class Moment(Protocol):
    """A call or a task that is held in its middle."""

    def wait(self) -> None:
        """Until it is held. Raises NotInTime."""

    def pid(self) -> int | None:
        """The process that is held."""

    def release(self) -> None:
        """Lets it go on; may be called twice."""


class Call:
    """A call of a script, held by the proxy before Redis gets it or before its answer comes."""

    def __init__(self, proxy: Proxy, trap: Trap) -> None:
        self.trap = trap
        proxy.set(trap)

    def wait(self) -> None:
        wanted = ", ".join(sorted(set(self.trap.scripts.values())))
        wait_until(self.trap.sprung.is_set, f"a {self.trap.side} of {wanted}", ENTERED_S)

    def pid(self) -> int | None:
        return client_of(*self.trap.ends)

    def release(self) -> None:
        self.trap.released.set()


class Gate:
    """A task, or a foreachBatch, that halts at a place of the programs (gates.py)."""

    def __init__(self, folder: Path, place: str, action: str = "hold") -> None:
        self._armed, self._inside = folder / f"armed-{place}", folder / f"inside-{place}"
        self._place, self._held = place, {}
        whole = folder / f"new-{place}"
        whole.write_text(action)
        whole.rename(self._armed)

    def wait(self) -> None:
        wait_until(self._inside.exists, f"a task at its {self._place}", ENTERED_S)
        self._held = json.loads(self._inside.read_text())

    def pid(self) -> int | None:
        return int(self._held["pid"])

    @property
    def task(self) -> str:
        return str(self._held["task"])

    def release(self) -> None:
        for file in (self._armed, self._inside):
            file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Places:
    """Where a phase is entered: scripts by which it calls Redis, and gates in the programs.

    sides: of a call, whether it is held before Redis gets it or before its answer comes. then and
    hold: what becomes of it, see Trap. action: what a gate does, "hold" or "fail".
    """

    scripts: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    sides: tuple[str, ...] = ("request", "reply")
    then: str = "pass"
    hold: bool = True
    action: str = "hold"

    def choose(self, dice: random.Random, proxy: Proxy, gates: Path) -> Moment:
        """One of them, armed."""
        chosen = dice.choice(self.scripts + self.gates)
        if chosen in self.gates:
            return Gate(gates, chosen, self.action)
        scripts = {sha: name for sha, name in proxy.known.items() if name == chosen}
        return Call(proxy, Trap(scripts, dice.choice(self.sides), self.then, self.hold))
