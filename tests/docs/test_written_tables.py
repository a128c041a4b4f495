"""The tables of docs/reference.md that `make docs` writes are as it would write them now."""

import shutil
import subprocess
import sys

import pytest

from .pages import ROOT

PROGRAM = ROOT / "docs" / "write_tables.py"
REMEDY = "are stale. Run: make docs"


@pytest.fixture
def page(tmp_path):
    return shutil.copy(ROOT / "docs" / "reference.md", tmp_path / "reference.md")


def write_tables(*arguments):
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True)


def test_the_tables_are_not_stale():
    done = write_tables("--check")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("here", "stale"),
    [
        ("| `pollInterval` | `100ms` |", "| `pollInterval` | `1s` |"),
        ("| `keyPrefix` | |", "| `prefixOfKeys` | |"),
        ("Number of tasks |", "The tasks |"),
        ("| `--times`, `-n` | whole number, 1 and more |", "| `--times` | whole number |"),
        ("### rmq purge", "### rmq drop"),
    ],
)
def test_a_stale_table_is_found_and_written_anew(page, here, stale):
    text = page.read_text(encoding="utf-8")
    assert text.count(here) == 1
    page.write_text(text.replace(here, stale), encoding="utf-8")
    found = write_tables("--check", page)
    assert (found.returncode, REMEDY in found.stderr) == (1, True)
    assert stale in page.read_text(encoding="utf-8")
    assert write_tables(page).returncode == 0
    assert page.read_text(encoding="utf-8") == text


def test_a_table_that_nobody_writes_is_an_error(page):
    page.write_text("<!-- generated: tabel -->\n<!-- end -->\n", encoding="utf-8")
    done = write_tables(page)
    assert (done.returncode, "'tabel'" in done.stderr) == (1, True)
