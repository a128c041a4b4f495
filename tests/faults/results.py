"""Results of cells in a file that adds up over runs, and the table that is made of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..measured import append, lines_of
from ..rounds.tables import markdown
from .fault import CLUSTER, ONE
from .verdict import PHASES, Verdict

HEADINGS = (
    *("fault", "promise", ONE, f"{ONE}, keys", CLUSTER, f"{CLUSTER}, keys", "read/write/commit"),
    *("delivered", "lost", "unexpected", "overtaken", "duplicated", "cells", "failed"),
)


@dataclass(frozen=True)
class Result:
    """A cell that has ended: how it was run, when, on which code and machine, and what it found.

    server: ONE or CLUSTER. times: the injections that were asked for.
    """

    date: str
    commit: str
    machine: str
    server: str
    keyed: bool
    seed: int
    messages: int
    times: int
    verdict: Verdict

    @property
    def cell(self) -> tuple[object, ...]:
        """What tells cells apart, whenever and on whichever code they were run."""
        return (
            *(self.verdict.fault, self.verdict.sink, self.server, self.keyed),
            *(self.seed, self.messages, self.times),
        )


class Results:
    """A file with a line for each cell; a line that was cut off by a kill counts as missing."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def add(self, result: Result) -> None:
        """Append a result. Several runs may append to the same file."""
        append(self.file, {**vars(result), "verdict": vars(result.verdict)})

    def read(self) -> list[Result]:
        """Read all results in the order in which they were added."""
        return list(map(_parsed, lines_of(self.file)))

    def passed(self) -> set[tuple[object, ...]]:
        """List the cells that need not be run again."""
        return {each.cell for each in self.read() if not each.verdict.faults_found()}


def _parsed(found: dict[str, Any]) -> Result:
    verdict = found.pop("verdict")
    injected = Counter(verdict.pop("injected"))
    return Result(**found, verdict=Verdict(**verdict, injected=injected))


# -- the table


def summary(results: Sequence[Result], order: Sequence[str]) -> list[list[str]]:
    """Make a row for each fault, in this order, and one for their sum; headings come first."""
    kinds = [[each for each in results if each.verdict.fault == text] for text in order]
    rows = [_row(text, kind) for text, kind in zip(order, kinds, strict=True) if kind]
    return [list(HEADINGS), *rows, _row("all", results, promise="")]


def _row(name: str, results: Sequence[Result], promise: str | None = None) -> list[str]:
    verdicts = [each.verdict for each in results]
    phases = sum((verdict.injected for verdict in verdicts), Counter())
    found = [sum(getattr(v, name) for v in verdicts) for name in _FIGURES]
    failed = sum(bool(verdict.faults_found()) for verdict in verdicts)
    return [
        *(name, verdicts[0].promise if promise is None else promise),
        *(str(_injections(results, place)) for place in _PLACES),
        "/".join(str(phases[phase]) for phase in PHASES),
        *(str(figure) for figure in (*found, len(results), failed)),
    ]


_PLACES = [(server, keyed) for server in (ONE, CLUSTER) for keyed in (False, True)]
_FIGURES = ("delivered", "lost", "unexpected", "overtaken", "duplicated")


def _injections(results: Sequence[Result], place: tuple[str, bool]) -> int:
    here = [each.verdict for each in results if (each.server, each.keyed) == place]
    return sum(verdict.injected.total() for verdict in here)


def totals(results: Sequence[Result]) -> list[str]:
    """Say in lines of text what the results add up to, and which cells failed."""

    def by(text: Callable[[Result], str]) -> str:
        sums: Counter[str] = Counter()
        for each in results:
            sums[text(each)] += each.verdict.injected.total()
        return ", ".join(f"{name} {count}" for name, count in sums.most_common())

    everything = sum(_injections(results, place) for place in _PLACES)
    kinds = len({each.verdict.fault for each in results})
    lines = [
        f"{everything} injections of {kinds} kinds in {len(results)} cells.",
        f"By sink: {by(lambda each: each.verdict.sink)}.",
        f"By topic: {by(lambda each: 'with keys' if each.keyed else 'without keys')}.",
        f"By server: {by(lambda each: each.server)}.",
        f"By commit: {by(lambda each: each.commit)}. By seed: {by(lambda each: str(each.seed))}.",
        f"By machine: {by(lambda each: each.machine)}.",
    ]
    return lines + [text for each in results for text in _failure(each)]


def _failure(result: Result) -> list[str]:
    wrong = result.verdict.faults_found()
    if not wrong:
        return []
    where = f"{result.verdict.fault}, {result.verdict.sink}, {result.server}"
    keys = ", keys" * result.keyed
    return [f"Failed on {result.date}, {result.commit}: {where}{keys}: {'; '.join(wrong)[:300]}"]


def as_page(results: Sequence[Result], order: Sequence[str]) -> str:
    """Write the table and the totals for a page of the docs."""
    lines = "\n".join(f"- {line}" for line in totals(results))
    return f"{markdown(summary(results, order))}\n\n{lines}"
