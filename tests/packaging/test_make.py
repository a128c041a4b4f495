"""`make` where something is missing: one line with the remedy, before anything long."""

import os
import shutil
import subprocess
import sys

import pytest

TOOLS = ("sh", "make", "sed", "awk", "cat", "cksum", "dirname", "rm")
TARGETS = (
    *(
        "demo",
        "cluster-demo",
        "bench",
        "test",
        "test-all",
        "long",
        "rounds",
        "mutants",
        "servers",
    ),
    *(
        "explore",
        "faults",
        "debounce",
        "soak",
        "outbox",
        "ports",
        "ownership-demo",
        "notebooks",
        "docs",
        "site",
    ),
    *("screenshots", "lint", "bench-peers", "audit"),
)


@pytest.fixture
def clone(checkout, tmp_path):
    """What make reads of a checkout, in a folder with a space in its name."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(checkout / name, folder)
    shutil.copytree(checkout / ".ci", folder / ".ci")
    return folder


@pytest.fixture
def path(tmp_path):
    """A folder of programs, with neither Python nor Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def program(path, name, text):
    (path / name).write_text(f"#!/bin/sh\n{text}\n")
    (path / name).chmod(0o755)


def make(clone, path, *arguments, **environ):
    done = subprocess.run(
        ["make", *arguments],
        cwd=clone,
        env={"PATH": str(path), **environ},
        capture_output=True,
        text=True,
    )
    assert not (clone / ".venv").exists()
    return done


def refusal(done):
    """What was said, apart from make's own line about the target."""
    assert done.returncode != 0
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_help_is_the_default_and_lists_every_target(clone, path):
    lines = make(clone, path).stdout.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("make ")] == [
        ["make", target] for target in ("help", *TARGETS)
    ]


def test_help_lists_what_only_test_all_runs(clone, path):
    assert "tests/a/test_slow.py" not in make(clone, path).stdout
    slow = clone / "tests" / "a" / "test_slow.py"
    slow.parent.mkdir(parents=True)
    slow.write_text('"""Slow ones."""\n\n@pytest.mark.long\ndef test_a(): ...\n')
    slow.with_name("test_quick.py").write_text('"""Quick ones."""\n')
    lines = make(clone, path).stdout.splitlines()
    assert [line for line in lines if line.startswith("tests/")] == [
        "tests/a/test_slow.py: Slow ones."
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_without_python_it_says_what_to_install(clone, path, target):
    text = refusal(make(clone, path, target))
    assert text.startswith("Python 3.11 or later is needed; python3 is missing or older.")
    assert "apt-get install python3-venv" in text


def test_a_python_that_is_too_old_is_refused(clone, path):
    program(path, "python3.9", "exit 1")
    text = refusal(make(clone, path, "lint", "PYTHON=python3.9"))
    assert text.startswith("Python 3.11 or later is needed; python3.9 is missing or older.")


def test_an_old_python3_does_not_hide_a_new_one(clone, path):
    program(path, "python3", "exit 1")
    (path / "python3.11").symlink_to(sys.executable)
    assert refusal(make(clone, path, "test")).startswith("Java 17 or later is needed")


@pytest.mark.parametrize("target", ["demo", "test"])
def test_without_java_it_says_what_to_install(clone, path, target):
    (path / "python3").symlink_to(sys.executable)
    text = refusal(make(clone, path, target))
    assert text.startswith("Java 17 or later is needed; java is missing or older.")
    assert "set JAVA_HOME" in text


def test_without_npm_it_says_what_to_install(clone, path):
    (path / "python3").symlink_to(sys.executable)
    program(path, "java", "echo 'openjdk version \"17.0.1\" 2021-10-19' >&2")
    text = refusal(make(clone, path, "bench-peers"))
    assert text.startswith("npm and Node.js are needed; one of them is missing.")
    assert "apt-get install npm" in text


def test_without_maven_it_says_what_to_install(clone, path):
    (path / "python3").symlink_to(sys.executable)
    program(path, "java", "echo 'openjdk version \"17.0.1\" 2021-10-19' >&2")
    program(path, "npm", "")
    program(path, "node", "")
    text = refusal(make(clone, path, "bench-peers"))
    assert text.startswith("Maven is needed; mvn is missing.")
    assert "apt-get install maven" in text


def test_a_linked_environment_is_replaced_and_not_emptied(clone, path, tmp_path):
    """Failed before: the folder that the link led to lost its files."""
    kept = tmp_path / "of another checkout" / "kept"
    kept.parent.mkdir()
    kept.touch()
    (clone / ".venv").symlink_to(kept.parent)
    # Without pip, which the next step then misses.
    without_pip = '[ "$2" != venv ] || set -- "$@" --without-pip'
    program(path, "python3", f'{without_pip}\nexec "{sys.executable}" "$@"')
    done = subprocess.run(
        ["make", "lint"], cwd=clone, env={"PATH": str(path)}, capture_output=True, text=True
    )
    assert "No module named pip" in done.stderr
    assert kept.exists()
    assert not (clone / ".venv").is_symlink()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_an_old_java_is_refused(clone, path, version):
    (path / "python3").symlink_to(sys.executable)
    program(path, "java", f"echo 'openjdk version \"{version}\" 2024-01-16' >&2")
    assert refusal(make(clone, path, "test")).startswith("Java 17 or later is needed; java is")


def test_java_home_goes_before_path(clone, path, tmp_path):
    (path / "python3").symlink_to(sys.executable)
    (path / "java").symlink_to(shutil.which("java"))
    text = refusal(make(clone, path, "test", JAVA_HOME=os.fspath(tmp_path / "none")))
    assert text.startswith(f"Java 17 or later is needed; {tmp_path / 'none'}/bin/java is missing")


def test_a_python_that_makes_no_environments_is_refused(clone, path):
    program(path, "python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    assert refusal(make(clone, path, "lint")).startswith("python3 cannot make virtual environments")
