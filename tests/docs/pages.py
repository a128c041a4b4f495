"""Each page's code as one program that is run."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path

from rmq_spark.local.redis import LocalRedis

from .. import ROOT, programs, quick_spark
from ..texts.page import PAGES, Unreadable, command_of, lines_of
from .readers import AFTER, BEFORE, ELSEWHERE, IN_A_CLONE, INSTEAD, SERVERS

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
TIMEOUT_S = 540
# What a page may hold. Without a language, or as text, it is an output or a drawing.
RUN = ("python", "sh", "sql")
CHECKED = ("yaml",)  # by tests of their own
SHOWN = ("", "text", "mermaid")
# What pip and the pages read of a clone.
SOURCES = (
    *("pyproject.toml", "README.md", "LICENSE", "rmq_spark", "pyspark_rmq", "lua", "jobs"),
    "examples",
)


def runs_elsewhere(command):
    """Whether another test runs it, or tries it without doing it, as those of make."""
    return command in ELSEWHERE or command.startswith("make ")


def program_of(page):
    """A page as a program; empty where it has nothing that runs."""
    parts = []
    for block in page.blocks:
        place = f"{page.name}:{block.line}"
        known = (*RUN, *CHECKED, *SHOWN)
        if block.language not in known:
            raise Unreadable(f"{place}: nobody runs a block of {block.language}. Write {known}")
        if block.language == "python":
            parts.append(f"# {place}\n{block.text}")
        elif block.language == "sql":
            parts.append(f"# {place}\npage_steps.run_sql({block.text!r})")
        elif block.language == "sh":
            lines = [line for line in lines_of(block) if not runs_elsewhere(command_of(line))]
            if any(map(command_of, lines)):
                parts.append(f"# {place}\npage_steps.run_shell({chr(10).join(lines)!r})")
    if not parts:
        return ""
    text = "\n\n".join(
        [
            "from tests.docs import page_steps",
            *(BEFORE.get(page.name, ""), *parts, AFTER.get(page.name, "")),
        ]
    )
    for old, new in INSTEAD.get(page.name, {}).items():
        if old not in page.text:
            raise Unreadable(f"{page.name}: lacks {old}. Change INSTEAD in tests/docs/readers.py")
        text = text.replace(old, new)
    return text


def outputs_of(name):
    """The lines that a page shows as printed by the block before them, but for cuts (...)."""
    blocks = PAGES[name].blocks_of(*RUN, "text")
    shown = [
        block.text
        for before, block in pairwise(blocks)
        if block.language == "text" and before.language != "text"
    ]
    lines = "\n".join(text for text in shown if not text.startswith("$ ")).splitlines()
    return [line for line in map(comparable, lines) if line and line != "..."]


def comparable(line):
    """A line without what differs from run to run: times, ids, places, the widths of columns."""
    line = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)?", "<time>", line)
    line = re.sub(r"\b[0-9a-f]{32}\b", "<id>", line)
    line = re.sub(r"\([^()\s]+:\d+\)", "(<place>)", line)
    return " ".join(line.split())


def run_page(name, folder):
    """Runs a page in a folder of its own, with a Redis of its own. Returns what it printed."""
    text = program_of(PAGES[name])
    if not text:
        return ""
    work = folder / "work"
    work.mkdir()
    if name in IN_A_CLONE:
        copy_sources(work)
    (folder / "page.py").write_text(text, encoding="utf-8")
    # The one that the page would start: an older one could not be its replica.
    executable = shutil.which("redis-server", path=PATH)
    with LocalRedis(executable) as redis, SERVERS.get(name, nullcontext)() as more:
        code, printed = run(folder, work, {"RMQ_REDIS_URL": redis.url, **(more or {})})
    assert code == 0, printed
    return printed


def run(folder, work, addresses):
    """Runs the program; ends whatever it has started. Returns its code and what it printed."""
    environment = {
        **programs.environment(PATH=PATH),
        **quick_spark.variables(),
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say: with the packages that are there
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **addresses,
    }
    # Files, not pipes: what runs on in the background would hold a pipe open. Two, so that no log
    # comes between the words of a printed line.
    text = {"encoding": "utf-8", "errors": "replace"}
    with (
        (folder / "printed").open("w+", **text) as printed,
        (folder / "logged").open("w+", **text) as logged,
    ):
        process = subprocess.Popen(
            [sys.executable, str(folder / "page.py")],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=logged,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
        printed.seek(0)
        logged.seek(0)
        return code, printed.read() + logged.read()


def end_group(process):
    """Kills a program and all that it has left running."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def copy_sources(folder):
    for name in SOURCES:
        if (ROOT / name).is_dir():
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=without)
        else:
            shutil.copy(ROOT / name, folder)
