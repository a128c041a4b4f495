"""Runs every bench and puts their tables onto one page, bench/results/README.md.

Each runs in a process of its own and can be run alone; names choose some of them, and options
behind the names are passed on to these. Without a name, all run that need neither much time nor
anything but this checkout.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from measuring import RESULTS

HERE = Path(__file__).parent
BENCHES = (
    *("send", "receive", "latency", "backlog", "idle"),
    *(
        "claims",
        "keyed",
        "growth",
        "each_message",
        "hops",
        "table",
        "services",
        "plain",
        "console",
        "fairness",
    ),
)
# They take much time or memory, so they run when they are named.
LARGE = ("planning_scale", "burst", "stalls", "hundred_million")
# They need what only `make bench-peers` installs, so they run when they are named.
PEERS = ("peers", "beside_kafka", "brokers")
ALL = (*BENCHES, *LARGE, *PEERS)


def main() -> int:
    """Runs them one after the other; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"of {', '.join(ALL)}")
    words = sys.argv[1:]
    first_option = next((at for at, word in enumerate(words) if is_passed_on(word)), len(words))
    options = words[first_option:]
    wanted = parser.parse_args(words[:first_option]).bench
    unknown = sorted(set(wanted) - {*ALL})
    if unknown:
        parser.error(f"there is no bench {unknown[0]!r}. Accepted: {', '.join(ALL)}")
    if options and not wanted:
        parser.error(f"{options[0]} is an option of a bench: name the bench before it")
    RESULTS.mkdir(exist_ok=True)
    failed = [name for name in wanted or BENCHES if not run(name, options)]
    write_page()
    print(f"written: {RESULTS / 'README.md'}")
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    return 1 if failed else 0


def is_passed_on(word: str) -> bool:
    """Whether a word of the command line is an option for the benches."""
    return word.startswith("-") and word not in ("-h", "--help")


def run(name: str, options: list[str]) -> bool:
    """Runs one, and says so."""
    print(f"\n== {name}", flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), *options]
    return subprocess.run(command, check=False).returncode == 0


def write_page() -> None:
    """Joins what the benches wrote, now or before."""
    pages = [RESULTS / f"{name}.md" for name in ALL]
    tables = [page.read_text().replace("# ", "## ", 1) for page in pages if page.is_file()]
    head = "# Results\n\nWhat `make bench` and `make bench-peers` measured last.\n\n"
    (RESULTS / "README.md").write_text(head + "\n".join(tables))


if __name__ == "__main__":
    sys.exit(main())
