"""A service with a listener, or a query, seen from outside: started, ended, what it has noted."""

import subprocess
from collections import Counter
from pathlib import Path

from .. import programs, quick_spark
from ..waiting import wait_until

TOPIC = "Orders"
LEASE = "60s"


class Service:
    """A process with a kind of listener or a query, and the file in which it notes what it gets.

    more: the consumer group, and the end of the contents at which the listener's function fails.
    """

    def __init__(
        self, kind: str, url: str, folder: Path, topic: str = TOPIC, more: tuple[str, ...] = ()
    ) -> None:
        self.noted = folder / "noted"
        self.topic = topic
        self._kind, self._url, self._folder, self._more = kind, url, folder, more
        self._started: list[subprocess.Popen[bytes]] = []
        self.noted.touch()

    def start(self, name: str = "service", lease: str = LEASE) -> subprocess.Popen[bytes]:
        line = programs.command(
            *("rounds.service_program", self._kind, self._url, self.topic, name, self.noted),
            *(lease, *self._more),
        )
        more = quick_spark.variables() if self._kind == "query" else {}
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(line, env=programs.environment(**more), stderr=log)
        self._started.append(process)
        return process

    def counts(self) -> Counter[bytes]:
        return Counter(self.noted.read_bytes().split())

    def wait_for_more(self, messages: int = 50) -> None:
        seen = self.counts().total()
        wait_until(lambda: self.counts().total() >= seen + messages, f"{messages} more messages")

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
