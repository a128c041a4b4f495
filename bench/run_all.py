"""Runs every bench and puts their tables onto one page, bench/results/README.md.

Each runs in a process of its own and can be run alone; names choose some of them. Without a name,
all run that need nothing but this checkout.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from measuring import RESULTS

HERE = Path(__file__).parent
BENCHES = (
    *("send", "receive", "latency", "backlog", "idle"),
    *("claims", "keyed", "growth", "each_message", "hops", "table", "services", "console"),
)
# They need what only `make bench-peers` installs, so they run when they are named.
PEERS = ("peers", "beside_kafka", "brokers")


def main() -> int:
    """Runs them one after the other; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"of {', '.join((*BENCHES, *PEERS))}")
    wanted = parser.parse_args().bench or BENCHES
    unknown = sorted(set(wanted) - {*BENCHES, *PEERS})
    if unknown:
        parser.error(f"there is no bench {unknown[0]!r}. Accepted: {', '.join((*BENCHES, *PEERS))}")
    RESULTS.mkdir(exist_ok=True)
    failed = [name for name in wanted if not run(name)]
    write_page()
    print(f"written: {RESULTS / 'README.md'}")
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    return 1 if failed else 0


def run(name: str) -> bool:
    """Runs one, and says so."""
    print(f"\n== {name}", flush=True)
    return subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode == 0


def write_page() -> None:
    """Joins what the benches wrote, now or before."""
    pages = [RESULTS / f"{name}.md" for name in (*BENCHES, *PEERS)]
    tables = [page.read_text().replace("# ", "## ", 1) for page in pages if page.is_file()]
    head = "# Results\n\nWhat `make bench` and `make bench-peers` measured last.\n\n"
    (RESULTS / "README.md").write_text(head + "\n".join(tables))


if __name__ == "__main__":
    sys.exit(main())
