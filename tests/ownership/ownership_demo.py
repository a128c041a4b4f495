"""Queries and services that share a topic's slots by ZooKeeper come, go, die and are cut off.

A live table says who owns what; in the end it is counted whether any two of them worked on one
serial stream at the same time, or out of order, and whether anything was lost.
"""

import argparse
import logging
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from . import changes, streams
from . import round as rounds

COLOURS = ("green", "cyan", "yellow", "magenta", "blue", "red")
LINES_KEPT = 12
PLAIN_EVERY_S = 5.0


class Screen:
    """What is going on, as a table that is drawn anew; lines where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[str] = []
        self.round: rounds.Round | None = None

    def tell(self, line: str) -> None:
        """One thing that happened."""
        self._lines.append(line)
        if not self._console.is_terminal:
            self._console.print(line)

    def __rich__(self) -> Group:
        lines = [Text(line) for line in self._lines[-LINES_KEPT:]]
        return Group(self._table(), *lines)

    def _table(self) -> Table:
        table = Table("reader", "state", "slots", "which", "processed", title="who owns what")
        if self.round is None:
            return table
        owners, done = self.round.owners(), self.round.processed()
        for at, (name, query) in enumerate(self.round.queries.items()):
            own = sorted(slot for slot, owner in owners.items() if owner == name)
            marks = "".join("#" if slot in own else "." for slot in range(rounds.SLOTS))
            row = (name, query.state, str(len(own)), marks, str(done[name]))
            table.add_row(*row, style=COLOURS[at % len(COLOURS)])
        return table


def main() -> int:
    """Runs the round; 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-second", type=float, default=60, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the streams; default: %(default)s")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--short", action="store_true", help="the round of the tests")
    which.add_argument("--services", action="store_true", help="services only, without Spark")
    which.add_argument(
        "--changes", type=int, metavar="N", help="services only, that come and go N times at random"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="add the round of --changes to this file"
    )
    parser.add_argument(
        "--summary", action="store_true", help="run nothing: print what --results adds up to"
    )
    given = parser.parse_args()
    adds_up = given.changes is not None or given.summary
    if (given.results is not None and not adds_up) or (given.summary and given.results is None):
        parser.error("--results goes with --changes or --summary, and --summary with --results.")
    if given.summary:
        sys.stdout.write("\n".join(changes.summary(given.results)) + "\n")
        return 0
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # it loses servers, on purpose
    console = Console()
    screen = Screen(console)
    with rounds.folder() as path:
        round_ = rounds.Round(path, given.per_second, given.seed, tell=screen.tell)
        with round_.running(), shown(console, screen):
            screen.round = round_
            ways = play(round_, given)
            verdict = round_.finish()
            if given.results is not None:
                changes.keep(given.results, round_, ways, verdict)
    console.print(steps_table(round_), verdict_table(verdict))
    return 0 if verdict.holds else 1


def play(round_: rounds.Round, given: argparse.Namespace) -> Counter[str]:
    """The round that was asked for; returns how often who came and went in which way."""
    if given.changes is not None:
        return changes.play(round_, given.changes, given.seed)
    ways = rounds.services if given.services else rounds.full
    (rounds.short if given.short else ways)(round_)
    return Counter()


def shown(console: Console, screen: Screen) -> Live:
    """The screen, live; without a terminal a table every few seconds."""
    if not console.is_terminal:
        threading.Thread(target=_print_tables, args=(console, screen), daemon=True).start()
    return Live(
        screen,
        console=console,
        refresh_per_second=2,
        transient=False,
        auto_refresh=console.is_terminal,
    )


def _print_tables(console: Console, screen: Screen) -> None:
    while True:
        time.sleep(PLAIN_EVERY_S)
        console.print(screen._table())


def steps_table(round_: rounds.Round) -> Table:
    """What happened, and how long it took."""
    table = Table("what happened", "seconds", "messages meanwhile")
    for step in round_.steps:
        table.add_row(step.what, f"{step.seconds:.1f}", str(step.processed))
    return table


def verdict_table(verdict: streams.Verdict) -> Table:
    """The counts."""
    table = Table(*vars(verdict), title="right" if verdict.holds else "WRONG")
    table.add_row(*map(str, vars(verdict).values()))
    return table


if __name__ == "__main__":
    sys.exit(main())
