"""Real faults on real queries: `make faults`. Prints a line a cell and the table at the end."""

import argparse
import math
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from ..measured import commit, machine, now
from ..quick_spark import java_options
from ..rounds.driver import Lane
from ..rounds.tables import aligned
from .cell import Cell
from .fallback import FallBackCell
from .fault import CLUSTER, ONE, SINKS, Fault
from .injections import FAULTS
from .redis_cluster import ClusterCell
from .results import Result, Results, as_page, summary, totals
from .verdict import HEADINGS, Verdict

MESSAGES = 100_000
TIMES = 5
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(
        prog="make faults",
        description=f"{__doc__} A cell is one fault on one sink: a producer and a consumer that "
        "work while it is injected.",
        epilog=f"faults: {', '.join(names)}",
    )
    parser.add_argument("--seed", type=int, default=1, help="of all that is random; 1")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="a cell; 100000")
    parser.add_argument("--times", type=int, default=TIMES, help="injections a cell, from 3; 5")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="FAULT", help="of those below"
    )
    parser.add_argument(
        "--sink", nargs="+", choices=SINKS, default=SINKS, metavar="SINK", help=", ".join(SINKS)
    )
    parser.add_argument(
        "--keyed",
        action="store_true",
        help="a keyed topic: the newest payload of each key must arrive, and none behind a newer "
        "one",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="on a Redis Cluster of three masters with a replica each, with the faults for it",
    )
    parser.add_argument("--lanes", type=int, default=2, help="cells at the same time; 2")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="add a line for each cell to this file"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out the cells that passed, as --results says"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="begin no cell later than this; no limit"
    )
    parser.add_argument(
        "--summary", action="store_true", help="run nothing: print what --results adds up to"
    )
    parser.add_argument("--markdown", type=Path, help="write what it adds up to into this page")
    parser.add_argument("--keep", type=Path, help="keep what the cells leave behind in this folder")
    chosen = parser.parse_args(given)
    if chosen.times < 3:
        parser.error(f"--times={chosen.times}: a fault is injected into 3 phases, so 3 or more.")
    if chosen.messages < 200 * chosen.times:
        parser.error(f"--messages={chosen.messages}: needed are {200 * chosen.times} or more.")
    if chosen.markdown and not has_marks(chosen.markdown):
        parser.error(f"--markdown={chosen.markdown}: needed is a file with {BEGIN} and {END}.")
    if chosen.results is None and (chosen.resume or chosen.summary or chosen.markdown):
        parser.error("--resume, --summary, --markdown: needed is the file of --results.")
    if not cells_of(chosen):
        server = server_of(chosen)
        parser.error(
            f"--sink={' '.join(chosen.sink)}: none of these faults is tried on it with {server}."
        )
    return chosen


def has_marks(page: Path) -> bool:
    """Whether a page has a place for the table."""
    return page.is_file() and [page.read_text().count(mark) for mark in (BEGIN, END)] == [1, 1]


def server_of(chosen: argparse.Namespace) -> str:
    """Where Redis runs."""
    return CLUSTER if chosen.cluster else ONE


def cells_of(chosen: argparse.Namespace) -> list[tuple[Fault, str]]:
    """The faults and sinks that were asked for."""
    return [
        (fault, sink)
        for fault in FAULTS
        if fault.name in chosen.only and server_of(chosen) in fault.servers
        for sink in fault.sinks
        if sink in chosen.sink
    ]


@dataclass(frozen=True)
class Round:
    """How each cell is run, and where it leaves what it needs."""

    folder: Path
    messages: int = MESSAGES
    times: int = TIMES
    seed: int = 1
    lanes: int = 2
    keep: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    keyed: bool = False
    minutes: float | None = None  # after which no cell begins
    cluster: bool = False

    def run(
        self,
        wanted: Sequence[tuple[Fault, str]],
        tell: Callable[[Verdict], None] = lambda verdict: None,
    ) -> list[Verdict]:
        """The verdicts on some faults and sinks, in their order; tell gets each when it is over."""
        places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for at in range(len(wanted)):
            places.put(at)
        verdicts: dict[int, Verdict] = {}
        telling = threading.Lock()
        until = math.inf if self.minutes is None else time.monotonic() + 60 * self.minutes

        def work(lane: Lane) -> None:
            try:
                while not lane.over and time.monotonic() < until:
                    at = places.get_nowait()
                    verdict = self._cell(lane, *wanted[at])
                    if not lane.over:  # else it was interrupted
                        verdicts[at] = verdict
                        with telling:
                            tell(verdict)
            except queue.Empty:
                pass
            finally:
                lane.close()

        self._in_lanes(work, min(self.lanes, len(wanted)))
        return [verdicts[at] for at in sorted(verdicts)]

    def _in_lanes(self, work: Callable[[Lane], None], lanes: int) -> None:
        made = [Lane(self.folder / f"lane-{number}", self.settings) for number in range(lanes)]
        pool = ThreadPoolExecutor(lanes)
        try:
            running = [pool.submit(work, lane) for lane in made]
            for lane_over in as_completed(running):
                lane_over.result()
        except BaseException:  # interrupted, or a lane failed: none may go on
            for lane in made:
                lane.abandon()
            raise
        finally:
            pool.shutdown(wait=False)

    def _cell(self, lane: Lane, fault: Fault, sink: str) -> Verdict:
        place = self.folder / f"{fault.name}-{sink}"
        alone = FallBackCell if fault.past else Cell
        kind = ClusterCell if self.cluster else alone
        file = self.messages // (2 * self.times)
        keys = max(kind.keys_for(file), fault.least_keys) if self.keyed else 0
        cell = kind(lane, fault, sink, place, f"{self.seed} {fault.name} {sink}", keys)
        verdict = cell.run(self.messages, self.times)
        if not verdict.faults_found() and not self.keep:
            shutil.rmtree(place, ignore_errors=True)
        return verdict


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tell(verdict: Verdict, chosen: argparse.Namespace) -> None:
    """A cell that is over."""
    lines = ["  ".join([*verdict.cells(), f"{verdict.seconds:.0f} s"]), *verdict.faults_found()]
    say("\n    ".join(lines))
    if chosen.results:
        Results(chosen.results).add(result_of(verdict, chosen))
    if chosen.markdown:
        write_markdown(chosen)


def result_of(verdict: Verdict, chosen: argparse.Namespace) -> Result:
    return Result(
        *(now(), commit(), machine(), server_of(chosen), chosen.keyed),
        *(chosen.seed, chosen.messages, chosen.times, verdict),
    )


def missing(chosen: argparse.Namespace) -> list[tuple[Fault, str]]:
    """The cells to run: all that were asked for, or those that have not passed yet."""
    if not chosen.resume:
        return cells_of(chosen)
    passed = Results(chosen.results).passed()

    def cell(fault: Fault, sink: str) -> tuple[object, ...]:
        verdict = Verdict(fault.text, sink, fault.lease, fault.promise)
        return result_of(verdict, chosen).cell

    return [each for each in cells_of(chosen) if cell(*each) not in passed]


def write_markdown(chosen: argparse.Namespace) -> None:
    """Replaces what stands between the marks of a page."""
    before, rest = chosen.markdown.read_text().split(BEGIN)
    _, after = rest.split(END)
    table = as_page(Results(chosen.results).read(), [fault.text for fault in FAULTS])
    chosen.markdown.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def summarize(chosen: argparse.Namespace) -> int:
    """Prints what the file of results adds up to; 1 if a cell failed."""
    results = Results(chosen.results).read()
    say(aligned(summary(results, [fault.text for fault in FAULTS])))
    say("\n" + "\n".join(totals(results)))
    if chosen.markdown:
        write_markdown(chosen)
    return any(each.verdict.faults_found() for each in results)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = arguments()
    if chosen.summary:
        return summarize(chosen)
    wanted = missing(chosen)
    if not wanted:
        say("All of these cells have passed.")
        return 0
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="rmq-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    since = time.monotonic()
    keep = chosen.keep is not None
    faster = {"spark.driver.extraJavaOptions": java_options()}
    chosen_round = Round(
        *(folder, chosen.messages, chosen.times, chosen.seed, chosen.lanes, keep, faster),
        keyed=chosen.keyed,
        minutes=chosen.minutes,
        cluster=chosen.cluster,
    )
    try:
        verdicts = chosen_round.run(wanted, lambda verdict: tell(verdict, chosen))
    except (KeyboardInterrupt, SystemExit):
        say("Interrupted; --resume goes on.")
        os._exit(1)  # a lane may wait for minutes for what does not come any more
    seconds = time.monotonic() - since
    say("\n" + aligned([HEADINGS, *(each.cells() for each in verdicts)]))
    failed = [each for each in verdicts if each.faults_found()]
    rest = f", {len(wanted) - len(verdicts)} not begun" if len(verdicts) < len(wanted) else ""
    count = f"{len(verdicts)} cells, {len(failed)} failed{rest}"
    say(f"{count}, seed {chosen.seed}, {seconds:.0f} s")
    if failed:
        say(f"What the failed cells left behind is in {folder}")
    elif not chosen.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
