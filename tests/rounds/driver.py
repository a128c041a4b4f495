"""Spark drivers of a round, seen from outside: started, ordered about, watched, killed."""

import contextlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from .. import programs
from ..processes import ended, family
from ..waiting import NotInTime, Patience

START_S = 600.0
SESSION = {
    "spark.master": "local[3,4]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.codegen.wholeStage": "false",
    # Short-lived code is not worth compiling twice, nor 2 cores many collectors.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Program:
    """A driver and its JVM. Its stderr goes to a file, for whoever looks into a failure."""

    def __init__(self, log: Path, settings: dict[str, str] | None = None) -> None:
        self._log = log.open("ab")
        self._lock = threading.Condition()
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            programs.command("rounds.driver_program", json.dumps({**SESSION, **(settings or {})})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=programs.environment(),
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def jvm(self) -> int:
        """Its JVM's process; waits until there is one."""
        return int(self.wait("ready", within_s=START_S)["jvm"])

    def lives(self) -> bool:
        return self._process.poll() is None

    def order(self, do: str, query: str = "", **more: Any) -> None:
        """Has it do something, as soon as it is ready."""
        self.wait("ready", within_s=START_S)
        line = json.dumps({"do": do, "query": query, **more}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            raise NotInTime(f"the driver has ended: it was to {do} {query}") from None

    def wait(
        self,
        event: str,
        query: str = "",
        since: int = 0,
        within_s: float = 300.0,
        text: str = "",
    ) -> dict[str, Any]:
        """The first such event after so many others. Raises NotInTime, also when it has ended."""
        patience = Patience(within_s)
        with self._lock:
            while True:
                for each in self.events[since:]:
                    if (each["event"], each.get("query", "")) == (event, query) and text in str(
                        each
                    ):
                        return each
                if not self.lives() or not patience.lasts():
                    raise NotInTime(f"{event} {query} {text}: the driver did not tell it")
                self._lock.wait(0.2)

    def ask(self, do: str, query: str, within_s: float, **more: Any) -> None:
        """Has it do something, and waits until it has."""
        since = len(self.events)
        self.order(do, query, **more)
        self.wait(do, query, since, within_s)

    def kill(self, wanted: signal.Signals) -> bool:
        """Ends the JVM by a signal, and then what is left of the driver. False if it was over."""
        jvm = self.jvm
        if not self.lives():
            return False
        os.kill(jvm, wanted)
        hit = ended(jvm, 30)
        self.close()
        return hit

    def close(self, patience_s: float = 10.0) -> None:
        """Ends it, if need be by force. What its tasks started ends by itself."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        rest = family(self.pid) if self.lives() else []
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            for pid in rest:
                _kill(pid)
            self._process.wait()
        for pid in rest:
            if not ended(pid, patience_s):
                _kill(pid)
        self._log.close()

    def _listen(self) -> None:
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the launcher talks, too
            with self._lock:
                self.events.append(event)
                self._lock.notify_all()


class Lane:
    """Drivers by name, which are kept as long as nobody kills them."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        self.servers: dict[str, Any] = {}  # of what is under way, to be closed with it
        self.over = False
        self._programs: dict[str, Program] = {}
        self._settings = settings or {}
        self._more: dict[str, dict[str, str]] = {}

    def settings(self, name: str, more: dict[str, str]) -> None:
        """Stops a driver; when it starts again, it has these settings, too."""
        self.close(name)
        self._more[name] = more

    def program(self, name: str) -> Program:
        """The driver, started if there is none."""
        if self.over:
            raise NotInTime("the run was interrupted")
        found = self._programs.get(name)
        if found is None or not found.lives():
            self.close(name)
            log = self.folder / f"{name}.log"
            found = self._programs[name] = Program(
                log, {**self._settings, **self._more.get(name, {})}
            )
        return found

    def close(self, *names: str) -> None:
        for name in names or list(self._programs):
            program = self._programs.pop(name, None)
            if program is not None:
                program.close()

    def abandon(self) -> None:
        """Leaves no process behind, whatever is under way; nothing is started any more."""
        self.over = True
        for program in list(self._programs.values()):
            program.close()
        for server in self.servers.values():
            server.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
