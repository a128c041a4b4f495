"""The commands of the pages that do not run there: they name what there is."""

import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from .pages import NAMES, ROOT, is_make, shell_lines, text_of
from .readers import ELSEWHERE

MAKE_LINES = sorted(filter(is_make, shell_lines()))


def test_every_line_that_runs_elsewhere_stands_on_a_page():
    assert set(ELSEWHERE) - shell_lines() == set()


@pytest.mark.parametrize("line", ELSEWHERE)
def test_what_runs_elsewhere_runs_in_a_test_that_there_is(line):
    file, _, function = ELSEWHERE[line].partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("line", MAKE_LINES)
def test_make_knows_the_target_and_its_program_the_options(line):
    # The make that runs this test may have been given ARGS of its own.
    environment = {k: v for k, v in os.environ.items() if k not in ("ARGS", "MAKEFLAGS")}
    planned = subprocess.run(
        ["make", "-n", *shlex.split(line)[1:]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    commands = re.findall(r"^\.venv/bin/python ((?:-m )?\S+)(.*)$", planned, re.MULTILINE)
    assert commands
    for program, arguments in commands:
        check_program(shlex.split(program), shlex.split(arguments))


def check_program(program, arguments):
    """Raises unless it is there and takes these arguments."""
    if program == ["-m", "pytest"]:
        named = [argument for argument in arguments if argument.startswith("tests/")]
        assert [path for path in named if not (ROOT / path).exists()] == []
        return
    done = subprocess.run(
        [sys.executable, *program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    options = [argument for argument in arguments if argument.startswith("-")]
    assert [option for option in options if option not in done.stdout] == []


def test_the_extras_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra
        for name in NAMES
        for extras in re.findall(r"(?:rmq-spark|'\.)\[([a-z,]+)\]", text_of(name))
        for extra in extras.split(",")
    }
    assert len(named) >= 4
    assert named - set(project["optional-dependencies"]) == set()
