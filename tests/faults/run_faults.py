"""Real faults on real queries: `make faults`. Prints a line a cell and the table at the end."""

import argparse
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

from ..quick_spark import java_options
from .cell import Cell, Lane
from .fallback import FallBackCell
from .fault import SINKS, Fault
from .injections import FAULTS
from .verdict import HEADINGS, Verdict, aligned, markdown

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
    parser.add_argument("--lanes", type=int, default=2, help="cells at the same time; 2")
    parser.add_argument("--markdown", type=Path, help="write the table into this file")
    parser.add_argument("--keep", type=Path, help="keep what the cells leave behind in this folder")
    chosen = parser.parse_args(given)
    if chosen.times < 3:
        parser.error(f"--times={chosen.times}: a fault is injected into 3 phases, so 3 or more.")
    if chosen.messages < 200 * chosen.times:
        parser.error(f"--messages={chosen.messages}: needed are {200 * chosen.times} or more.")
    if chosen.markdown and not has_marks(chosen.markdown):
        parser.error(f"--markdown={chosen.markdown}: needed is a file with {BEGIN} and {END}.")
    if not cells_of(chosen):
        parser.error(f"--sink={' '.join(chosen.sink)}: none of these faults is tried on it.")
    return chosen


def has_marks(page: Path) -> bool:
    """Whether a page has a place for the table."""
    return page.is_file() and [page.read_text().count(mark) for mark in (BEGIN, END)] == [1, 1]


def cells_of(chosen: argparse.Namespace) -> list[tuple[Fault, str]]:
    """The faults and sinks that were asked for."""
    return [
        (fault, sink)
        for fault in FAULTS
        if fault.name in chosen.only
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

        def work(lane: Lane) -> None:
            try:
                while not lane.over:
                    at = places.get_nowait()
                    verdicts[at] = self._cell(lane, *wanted[at])
                    with telling:
                        tell(verdicts[at])
            except queue.Empty:
                pass
            finally:
                lane.close()

        self._in_lanes(work, min(self.lanes, len(wanted)))
        return [verdicts[at] for at in sorted(verdicts)]

    def _in_lanes(self, work: Callable[[Lane], None], lanes: int) -> None:
        made = [Lane(self.folder / f"lane-{number}", self.settings) for number in range(lanes)]
        with ThreadPoolExecutor(lanes) as pool:
            try:
                running = [pool.submit(work, lane) for lane in made]
                for lane_over in as_completed(running):
                    lane_over.result()
            except BaseException:  # interrupted, or a lane failed: none may go on
                for lane in made:
                    lane.abandon()
                raise

    def _cell(self, lane: Lane, fault: Fault, sink: str) -> Verdict:
        place = self.folder / f"{fault.name}-{sink}"
        kind = FallBackCell if fault.past else Cell
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
    if chosen.markdown:
        write_markdown(chosen, [verdict])


def write_markdown(chosen: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    """Replaces what stands between the marks of a file; a cell depends on nothing but its seed."""
    before, rest = chosen.markdown.read_text().split(BEGIN)
    table, after = rest.split(END)
    given = f"--seed {chosen.seed} --messages {chosen.messages} --times {chosen.times}"
    given += " --keyed" * chosen.keyed
    order = [(fault.text, sink) for fault in FAULTS for sink in fault.sinks]
    text = f'{BEGIN}\n`make faults ARGS="{given}"`\n\n{markdown(verdicts, table, order)}\n{END}'
    chosen.markdown.write_text(f"{before}{text}{after}")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = arguments()
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="rmq-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    since = time.monotonic()
    keep = chosen.keep is not None
    faster = {"spark.driver.extraJavaOptions": java_options()}
    chosen_round = Round(
        *(folder, chosen.messages, chosen.times, chosen.seed, chosen.lanes, keep, faster),
        keyed=chosen.keyed,
    )
    verdicts = chosen_round.run(cells_of(chosen), lambda verdict: tell(verdict, chosen))
    seconds = time.monotonic() - since
    say("\n" + aligned([HEADINGS, *(each.cells() for each in verdicts)]))
    failed = [each for each in verdicts if each.faults_found()]
    say(f"{len(verdicts)} cells, {len(failed)} failed, seed {chosen.seed}, {seconds:.0f} s")
    if failed:
        say(f"What the failed cells left behind is in {folder}")
    elif not chosen.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
