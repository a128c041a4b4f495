"""Runs what depends on the server on each Redis and Valkey server given: `make servers`.

Prints a table of versions and of tests that passed, failed and were skipped.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from . import ROOT, servers
from .rounds.tables import markdown

FOLDERS = ("lua", "client", "security", "cluster")
HEADINGS = ("server", "version", "passed", "failed", "skipped")
VERSION = re.compile(r"(\w+) server v=(\S+)")


def version_of(executable: str) -> tuple[str, str]:
    """Ask an executable for its name, such as Valkey, and its version. Raises ValueError."""
    try:
        told = subprocess.run([executable, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise ValueError(f"{executable!r} cannot be run: {error.strerror}") from None
    found = VERSION.match(told.stdout)
    if not found:
        raise ValueError(f"{executable!r} is no redis-server or valkey-server.")
    return found[1], found[2]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make servers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--server",
        action="append",
        metavar="PATH",
        help="a redis-server or valkey-server, as often as you like; those that the tests find",
    )
    parser.add_argument(
        "--tests", nargs="+", default=FOLDERS, help=f"folders of tests; {' '.join(FOLDERS)}"
    )
    parser.add_argument("--all", action="store_true", help="also the long tests' share of a turn")
    parser.add_argument("--turn", type=int, default=0, help="which share; make takes the commit's")
    parser.add_argument("-n", type=int, default=2, help="processes; 2")
    chosen = parser.parse_args(given)
    chosen.server = chosen.server or list(servers.executables().values())
    try:
        chosen.versions = [version_of(server) for server in chosen.server]
    except ValueError as error:
        parser.error(f"--server: {error}")
    for folder in chosen.tests:
        if not (ROOT / "tests" / folder).exists():
            parser.error(f"--tests={folder}: there is no such folder below tests.")
    return chosen


def test(server: str, chosen: argparse.Namespace) -> Counter[str]:
    """Run the tests on a server; failures are printed. Returns how many ended how."""
    marks = f"{'' if chosen.all else 'not long and '}not rounds"
    with tempfile.TemporaryDirectory(prefix="rmq-servers-") as folder:
        report = Path(folder) / "report.xml"
        paths = [str(ROOT / "tests" / each) for each in chosen.tests]
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", str(chosen.n), "-m", marks),
                *("--dist", "worksteal", "--tb", "short", f"--junitxml={report}"),
                *("--turn", str(chosen.turn), *paths),
            ],
            cwd=ROOT,
            env=environment(server),
        )
        return count(report)


def environment(server: str) -> dict[str, str]:
    """The variables of a run on a server. A link stays one: Debian's program acts by its name."""
    return {**os.environ, servers.GIVEN: str(Path(server).absolute())}


def count(report: Path) -> Counter[str]:
    """Count outcomes in a report of pytest. A run that ended without one counts as failed."""
    if not report.exists():
        return Counter(failed=1)
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {each.tag for each in case}
        bad = ends & {"failure", "error"}
        found["failed" if bad else "skipped" if "skipped" in ends else "passed"] += 1
    return found


def main() -> int:
    chosen = arguments()
    rows, failed = [], 0
    for server, (name, version) in zip(chosen.server, chosen.versions, strict=True):
        sys.stdout.write(f"{name} {version}: {server}\n")
        sys.stdout.flush()
        outcome = test(server, chosen)
        failed += outcome["failed"]
        rows.append([name, version, *(str(outcome[each]) for each in HEADINGS[2:])])
        sys.stdout.write(f"{markdown([HEADINGS, *rows])}\n")
        sys.stdout.flush()
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
