"""Every command of rmq once, on topics that hold much."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import httpx
from console import OPEN_PAGES, OTHER_PAGES
from stalled_scripts import BURIED, FULL, GONE
from storing import store_waiting

from rmq_spark.cli.read import MESSAGES_AT_ONCE
from rmq_spark.client import Broker
from rmq_spark.process import NOTHING_FOUND

# These commands hold no Redis of ours.
ELSEWHERE = {
    "local": "starts a Redis of its own",
    "scheduler": "calls the script occur",
    "size": "asks no Redis",
}
SENT, SHOWN, CANCELLED, CONSUMED = 20_000, 20_000, 1000, 100_000
LISTENS_S = 3.0
# From here on, slots are not used by the scripts.
FIRST_SLOT = 32

Arguments = Sequence[str]


class Commands:
    """Runs commands against one Redis, each in a process of its own, as a shell does."""

    def __init__(self, broker: Broker, url: str) -> None:
        self._broker = broker
        self._command = [sys.executable, "-m", "rmq_spark.cli", "--redis-url", url]

    def prepare(self, name: str, number: int) -> None:
        """Store a topic to delete, of one slot as full as those of Full."""
        if name == "delete":
            full = self._broker.queue(FULL)
            self._broker.create(GONE, "FixedTime", 1)
            held = full.server.client.zcard(full.keys.store(0))
            store_waiting(self._broker.queue(GONE), 0, held, full.now_ms())

    def all(self, number: int) -> dict[str, Callable[[], None]]:
        """What to run for each command, in this order. number: of the round."""
        slot = FIRST_SLOT + number
        new = f"New{number}"
        simple: dict[str, list[Arguments]] = {
            "topics": [["topics"]],
            "show": [["show", FULL]],
            "due": [["due", FULL]],
            "doctor": [["doctor", "--no-spark"]],
            "top": [["top", "--times", "2", "--interval", "200ms"]],
            "peek": [["peek", FULL, "-n", str(SHOWN), "--queue", "store,retry,prepare,dead"]],
            "dead": [["dead", FULL, "-n", str(SHOWN)]],
            "create": [["create", new, "--type", "FixedTime"]],
            "alter": [
                ["alter", new, "--retries", "3", "--add-group", "audit"],
                ["alter", new, "--remove-group", "audit", "--drop"],
            ],
            "pause": [["pause", FULL]],
            "hold": [["hold", FULL, "1h"]],
            "resume": [["resume", FULL]],
            "lower-epochs": [["lower-epochs", FULL]],
            "schedule": [["schedule", new, FULL, "x", "--every", "1h"]],
            "schedules": [["schedules"]],
            "unschedule": [["unschedule", new]],
            "find": [["find", FULL, *lines(number)[:1]]],
            "move": [["move", FULL, *lines(number)[:CANCELLED], "--delay", "1h"]],
            "cancel": [["cancel", FULL, *lines(number)[:CANCELLED]]],
            "consume": [
                ["consume", FULL, "-n", str(MESSAGES_AT_ONCE)],
                ["consume", FULL, "-n", str(CONSUMED), "--commit"],
            ],
            "requeue": [["requeue", FULL, "--all", "--slots", str(slot)]],
            "purge": [
                ["purge", FULL, "--all", "--yes", "--queue", kind, "--slots", str(slot + 8)]
                for kind in ("store", "dead")
            ],
            "expire": [["expire", FULL], ["expire", BURIED]],
        }
        return {
            "send": lambda: self._run(["send", FULL, "--delay", "1h"], "\n".join(lines(number))),
            **{name: partial(self._run_all, each) for name, each in simple.items()},
            "listen": lambda: self._listen(number),
            "console": lambda: self._serve(["console", "--port", "0"], PAGES),
            "metrics": lambda: self._serve(["metrics", "--port", "0"], [""]),
            "delete": lambda: self._run(["delete", GONE, "--yes"]),
            "job": lambda: self._run(
                ["job", "requeue_dead", "--topic", FULL, "--slots", str(slot + 16)]
            ),
        }

    def _run_all(self, each: Sequence[Arguments]) -> None:
        for arguments in each:
            self._run(arguments)

    def _run(self, arguments: Arguments, text: str = "") -> None:
        done = subprocess.run(
            [*self._command, *arguments], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, NOTHING_FOUND):
            raise SystemExit(f"rmq {' '.join(arguments)[:80]}: {done.stdout[-500:]}{done.stderr}")

    def _listen(self, number: int) -> None:
        """Call a function that does nothing, for some seconds after it was called first."""
        words = ["listen", FULL, "builtins:id", "--name", f"listener{number}"]
        before = self._claimed()
        process = subprocess.Popen([*self._command, *words], stderr=subprocess.DEVNULL)
        while self._claimed() == before and process.poll() is None:
            time.sleep(0.1)
        time.sleep(LISTENS_S)
        end(process)

    def _claimed(self) -> int:
        """How many messages were claimed so far."""
        return self._broker.queue(FULL).figures().counters["claimed"]

    def _serve(self, arguments: Arguments, pages: Sequence[str]) -> None:
        """Look at all pages that a command serves."""
        process = subprocess.Popen([*self._command, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            address = str(process.stdout.readline()).strip().rstrip("/") if process.stdout else ""
            for page in pages:
                httpx.get(f"{address}{page}", timeout=60).raise_for_status()
        finally:
            end(process)


def lines(number: int) -> list[str]:
    """The messages that are sent in a round."""
    first = number * SENT
    return [f"message of a line {line:016d}" for line in range(first, first + SENT)]


PAGES = [page.replace("T0", FULL) for page in (*OPEN_PAGES, *OTHER_PAGES)]


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """End a program as a service manager does."""
    process.send_signal(signal.SIGTERM)
    if process.wait(60):
        raise SystemExit(f"{process.args} ended with {process.returncode}")
