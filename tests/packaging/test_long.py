"""What `make test` leaves to `make test-all`: never the only test of a script or a command."""

import re
import subprocess
import sys

import pytest

from rmq_spark.protocol import scripts

from .. import ROOT
from ..docs.pages import NAMES, program_of
from ..docs.readers import ELSEWHERE


@pytest.fixture(scope="module")
def long():
    """The ids of the tests that are marked long."""
    collect = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "long",
        "-p",
        "no:xdist",
    ]
    done = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def beginning(ids, *texts):
    return [each for each in ids if each.startswith(texts)]


def test_there_are_some(long):
    assert beginning(long, "tests/lua/test_mutants.py::")


@pytest.mark.parametrize("name", sorted(scripts.scripts_for(True)))
def test_every_script_has_tests_that_are_not_long(long, name):
    assert (ROOT / f"tests/lua/test_{name}.py").exists()
    assert beginning(long, f"tests/lua/test_{name}.py::") == []


@pytest.mark.parametrize("folder", ["cli", "client", "metrics", "demo", "transport"])
def test_nothing_about_commands_and_the_client_is_long(long, folder):
    assert beginning(long, f"tests/{folder}/") == []


def test_the_pages_that_one_reads_first_are_not_long(long):
    first = ("README.md", "docs/keys.md")
    assert not any(f"[{page}]" in each for page in first for each in long)


def test_the_pages_run_every_job_or_name_the_test_that_does():
    programs = [*map(program_of, NAMES), *ELSEWHERE]
    demos = {"demo", "cluster_demo"}  # tests/demo runs the one, people the other
    jobs = {job.stem for job in (ROOT / "jobs").glob("*.py")} - demos
    run = {job for each in programs for job in re.findall(r"rmq_spark\.jobs (\w+)", each)}
    assert jobs - run == set()
