"""How long the tests of each folder took, for the last lines of a run and a file."""

import json
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any


def by_test(reports: Iterable[Any]) -> dict[str, float]:
    """The seconds of each test, with those of the fixtures that it was the first to need."""
    seconds: Counter[str] = Counter()
    for report in reports:
        if hasattr(report, "duration"):
            seconds[report.nodeid] += report.duration
    return {test: round(taken, 2) for test, taken in seconds.most_common()}


def table(seconds: dict[str, float]) -> list[str]:
    """A line for each folder of tests: how many, their sum, the longest."""
    folders: dict[str, dict[str, float]] = {}
    for test, taken in seconds.items():
        folders.setdefault(test.removeprefix("tests/").partition("/")[0], {})[test] = taken
    return [
        f"{sum(tests.values()):7.0f} s  {len(tests):5} tests  {folder:<12}"
        f"  {max(tests.values()):5.0f} s  {max(tests, key=tests.__getitem__).rpartition('/')[2]}"
        for folder, tests in sorted(folders.items(), key=lambda each: -sum(each[1].values()))
    ]


def write(seconds: dict[str, float], passed: Container[str], file: Path) -> None:
    """Write the seconds of the tests that passed."""
    kept = {test: taken for test, taken in seconds.items() if test in passed}
    file.write_text(json.dumps(kept, indent=0) + "\n")


def read(file: Path) -> dict[str, float]:
    """The seconds of the tests that passed in an earlier run."""
    return json.loads(file.read_text())
