"""The pages of the documentation, and each page's code as one program that is run."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rmq_spark.dev_servers.redis_server import LocalRedis

from .. import ROOT, programs, quick_spark
from .readers import AFTER, BEFORE, ELSEWHERE, IN_A_CLONE, INSTEAD, SERVERS

FILES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("[!.]*/README.md")]
NAMES = sorted({file.relative_to(ROOT).as_posix() for file in FILES})
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
TIMEOUT_S = 540
# What a page may hold. Without a language, or as text, it is an output or a drawing.
RUN = ("python", "sh", "sql")
CHECKED = ("yaml",)  # by tests of their own
SHOWN = ("", "text", "mermaid")
# What pip reads of a clone.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "rmq_spark", "pyspark_rmq", "lua", "jobs")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. line: where its text begins, from 1."""

    language: str
    text: str
    line: int


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(name):
    """All fenced blocks of a page."""
    found, fence, start = [], None, 0
    lines = text_of(name).splitlines()
    for number, line in enumerate(lines, 1):
        mark = re.match(r" *(`{3,}|~{3,})\s*(\S*)", line)
        if fence is None and mark:
            fence, start = mark, number
        elif fence is not None and mark and mark[1].startswith(fence[1]) and not mark[2]:
            text = textwrap.dedent("\n".join(lines[start : number - 1]))
            found.append(Block(fence[2], text, start + 1))
            fence = None
    assert fence is None, f"{name}:{start}: the block has no end"
    return found


def lines_of(block):
    """The lines of a sh block as they stand, those that end in a backslash joined to the next."""
    return re.findall(r"(?:.*\\\n)*.+", block.text)


def command_of(line):
    """A line without its comment, its words one blank apart."""
    return " ".join(re.sub(r"(^|\s)#.*", "", line.replace("\\\n", " ")).split())


def shell_lines():
    """Every command of every page."""
    return {
        command_of(line)
        for name in NAMES
        for block in blocks_of(name)
        if block.language == "sh"
        for line in lines_of(block)
    }


def runs_elsewhere(command):
    """Whether another test runs it, or tries it without doing it, as those of make."""
    return command in ELSEWHERE or is_make(command)


def is_make(command):
    return command.startswith("make ")


def program_of(name):
    """A page as a program; empty where it has nothing that runs."""
    parts = []
    for block in blocks_of(name):
        place = f"{name}:{block.line}"
        known = (*RUN, *CHECKED, *SHOWN)
        assert block.language in known, f"{place}: {block.language} is run by nobody; write {known}"
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
        ["from tests.docs import page_steps", BEFORE.get(name, ""), *parts, AFTER.get(name, "")]
    )
    for old, new in INSTEAD.get(name, {}).items():
        assert old in text_of(name), f"{name} does not hold {old}"
        text = text.replace(old, new)
    return text


def outputs_of(name):
    """The lines that a page shows as printed by the block before them, but for cuts (...)."""
    blocks = [block for block in blocks_of(name) if block.language in (*RUN, "text")]
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
    text = program_of(name)
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
    # A file, not a pipe: what runs on in the background would hold a pipe open.
    with (folder / "printed").open("w+", encoding="utf-8", errors="replace") as printed:
        process = subprocess.Popen(
            [sys.executable, str(folder / "page.py")],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
        printed.seek(0)
        return code, printed.read()


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
