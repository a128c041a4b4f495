"""What long rounds leave behind: lines in a file that adds up, and where they were run."""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyspark

from . import ROOT


def append(file: Path, what: dict[str, Any]) -> None:
    """Append a line of JSON. Several runs may append to the same file."""
    cut_off = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
    with file.open("a", encoding="utf-8") as lines:
        lines.write("\n" * cut_off + json.dumps(what) + "\n")


def lines_of(file: Path) -> Iterator[dict[str, Any]]:
    """Read the lines in their order. One that was cut off by a kill counts as missing."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def now() -> str:
    """Return the date and time in UTC, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def commit() -> str:
    """Return the commit of the checkout, with a + if its files differ from it."""
    changed = bool(_git("status", "--porcelain", "--untracked-files=no", ":!*.jsonl", ":!docs"))
    return _git("rev-parse", "--short=7", "HEAD") + "+" * changed


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or ("unknown" if done.returncode else "")


def machine() -> str:
    """Describe the machine without naming it."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, Spark {pyspark.__version__}"
    )
