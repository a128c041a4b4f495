"""The wheel and the sdist in empty environments, with the oldest and the newest packages.

Each Python on PATH is tried (python3.11 and so on), or those that RMQ_PYTHONS names, with colons
between them.
"""

import os
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from .. import ROOT

PYTHONS = ("python3.11", "python3.12", "python3.13")
EXTRAS = ("spark", "zookeeper", "cli")
PROGRAM = ROOT / "tests" / "packaging" / "environment_program.py"

# Older ones are for older Pythons.
NOT_FOR_ALL = dict.fromkeys(("numpy", "pandas"), '; python_version < "3.13"')


def pythons():
    named = os.environ.get("RMQ_PYTHONS")
    return named.split(":") if named else PYTHONS


def runs(python):
    """A name on PATH may be a stub."""
    return (
        shutil.which(python)
        and not subprocess.run([python, "-c", ""], capture_output=True).returncode
    )


def oldest():
    """Lines that pin each direct dependency to the oldest version that is allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    words = [*project["dependencies"], *(word for extra in EXTRAS for word in extras[extra])]
    for requirement in map(Requirement, words):
        [least] = [part.version for part in requirement.specifier if part.operator == ">="]
        marker = NOT_FOR_ALL.get(requirement.name, "")
        yield f"{requirement.name}=={least}{marker}"


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder]
    subprocess.run(hatch, cwd=ROOT, check=True)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture
def try_out(tmp_path, bare_environ, local_redis):
    """Installs a file into an empty environment of a Python; returns what the program prints."""

    def try_(python, file, constraints):
        if not runs(python):
            pytest.skip(f"{python} does not run here")
        venv = tmp_path / "venv"
        subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
        (tmp_path / "constraints.txt").write_text("\n".join(constraints))
        pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "-q", "install"]
        what = ["-c", tmp_path / "constraints.txt", f"{file}[{','.join(EXTRAS)}]"]
        subprocess.run([*pip, *what, "pyspark[connect]"], check=True, env=bare_environ)
        environ = {**bare_environ, "PYSPARK_PYTHON": str(venv / "bin" / "python")}
        done = subprocess.run(
            [venv / "bin" / "python", PROGRAM, local_redis.url],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.stdout, done.stderr

    return try_


PARTS = "plain_python ownership sink source exactly_once each_message job connect"


def assert_all_ok(out, err):
    sys.stdout.write(out)
    _versions, *parts = out.splitlines()
    assert parts == [f"{part} ok" for part in PARTS.split(" ")], err[-5000:]


@pytest.mark.rounds
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("age", ["oldest", "newest"])
def test_all_parts_work_with(age, python, wheel, sdist, try_out):
    file, constraints = (wheel, oldest()) if age == "oldest" else (sdist, ())
    assert_all_ok(*try_out(python, file, constraints))


@pytest.mark.rounds
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("spark", ["4.1", "4.2"])
def test_all_parts_work_with_the_spark_between(spark, python, wheel, try_out):
    assert_all_ok(*try_out(python, wheel, [f"pyspark=={spark}.*"]))
