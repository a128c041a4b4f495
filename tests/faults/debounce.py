"""Debouncing under fire: two queries update keys, one consumes, and is killed again and again.

Each update moves its key's message to a delay after it. The consumer writes each batch into a
folder of its own, which a replay overwrites, and is killed (-9) inside its reads, writes and
commits while updates come. In the end the last payload of every key must be the last one
delivered. `make debounce` runs it.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ..quick_spark import java_options
from ..rounds.driver import Lane
from ..rounds.tables import aligned
from ..waiting import wait_until
from .cell import DRAIN_S, TOPIC, Cell
from .injections import FAULTS
from .latest import Attempt, Outcome
from .updates import SENDERS, Updates
from .verdict import Verdict

DELAY = "1s"
# Between two kills, at least; fewer if there is nothing left to deliver.
BATCHES = (3, 8)
(DRIVER_KILL,) = (fault for fault in FAULTS if fault.name == "driver-kill")
# However slowly a driver starts, its batch is still its own: so a replay is the same batch.
KILL = replace(DRIVER_KILL, lease="10m")
# Neither is killed, so the second one, too, sends each update once.
GUARANTEES = dict(zip(SENDERS, ("exactlyOnce", "atLeastOnce"), strict=True))


class DebounceRound(Cell):
    """One round. updates: of each key."""

    files = 3
    queries: ClassVar = {**dict.fromkeys(SENDERS, "senders"), "consumer": "consumer"}

    def __init__(self, lane: Lane, folder: Path, seed: str, keys: int, updates: int) -> None:
        super().__init__(lane, KILL, "keyed", folder, seed, keys)
        self.feed: Any = Updates(folder, keys, updates, seed)
        self.updates = keys * updates
        self.outcome: Outcome | None = None

    def play(self, kills: int) -> list[str]:
        """Runs it; returns what is wrong. The counts are in outcome if it came to its end."""
        verdict = self.run(self.updates, kills)
        if self.outcome is None:
            return verdict.troubles
        self.outcome.kills = verdict.injected
        enough = verdict.injected.total() >= kills
        too_few = [] if enough else [f"killed {verdict.injected.total()} times, needed {kills}"]
        return verdict.troubles + too_few + self.outcome.faults_found(self.updates)

    def _job(self, query: str) -> dict[str, Any]:
        if query not in SENDERS:
            return {**super()._job(query), "attempts": str(self._attempts)}
        sending = {
            **{"redis.url": self.url, "topic": TOPIC, "delay": DELAY},
            "deliveryGuarantee": GUARANTEES[query],
        }
        return {
            **{"kind": "producer", "options": sending, "gates": str(self.gates)},
            **{"sends": "key STRING, content STRING", "source": str(self.feed.sources[query])},
            "checkpoint": str(self.folder / f"checkpoint-{query}"),
        }

    @property
    def _attempts(self) -> Path:
        return self.folder / "attempts.jsonl"

    def _one(self, phase: str) -> bool:
        """Lets the consumer make some batches before the next one is to be its last."""
        self.feed.give(self.file)
        wanted = self._made() + self.dice.randint(*BATCHES)
        wait_until(lambda: self._made() >= wanted or self._is_idle(), "some batches", DRAIN_S)
        return super()._one(phase)

    def _made(self) -> int:
        """How many attempts the sink has noted."""
        return len(self._attempts.read_text().splitlines()) if self._attempts.exists() else 0

    def _is_idle(self) -> bool:
        return self.feed.all_laid() and self._empty()

    def _drain(self) -> None:
        wait_until(self.feed.all_laid, "all updates to be in files", DRAIN_S)
        for sender in SENDERS:
            self.lane.program("senders").ask("finish", sender, DRAIN_S)
        super()._drain()

    def _compare(self, verdict: Verdict) -> None:
        counters = self.queue.figures().counters
        counted = (counters["accepted"], counters["merged"], counters["rolledBack"])
        outcome = Outcome(verdict.injected, self.keys, *counted)
        sink: dict[int, Counter[tuple[str, int]]] = {}
        for row in self._rows():
            held = sink.setdefault(row["batch"], Counter())
            held[row["key"], int(row["content"])] += 1
        events = [json.loads(line) for line in self._attempts.read_text().splitlines()]
        attempts = [Attempt(each["batch"], each["rows"]) for each in events]
        outcome.judge(self.feed.keys, self.feed.versions, attempts, sink)
        self.outcome = outcome


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(
        prog="make debounce", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=200, help="%(default)s")
    parser.add_argument("--updates", type=int, default=100, help="of each key; %(default)s")
    parser.add_argument("--kills", type=int, default=10, help="from 3; %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random; %(default)s")
    given = parser.parse_args()
    if given.kills < 3:
        parser.error(f"--kills={given.kills}: it is killed in 3 phases, so 3 or more.")
    if given.keys < 2 or given.updates < 2:
        parser.error("--keys, --updates: 2 or more, for 2 senders and something to merge.")
    folder = Path(tempfile.mkdtemp(prefix="rmq-debounce-"))
    lane = Lane(folder / "lane", {"spark.driver.extraJavaOptions": java_options()})
    round_ = DebounceRound(lane, folder / "round", str(given.seed), given.keys, given.updates)
    try:
        wrong = round_.play(given.kills)
    finally:
        lane.abandon()
    if round_.outcome is not None:
        cells = round_.outcome.cells()
        sys.stdout.write(aligned([[*cells], [*cells.values()]]) + "\n")
    sys.stdout.writelines(f"WRONG: {text}\n" for text in wrong)
    if wrong:
        sys.stdout.write(f"What it left behind is in {folder}\n")
        return 1
    sys.stdout.write("The last payload of every key is the last one delivered.\n")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
