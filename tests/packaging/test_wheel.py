"""The wheel where nothing else is: plain Python sends, consumes and listens, without Spark."""

import json
import subprocess
import sys
import tarfile
import zipfile

import pytest

PROGRAM = """
import sys
from importlib.util import find_spec

import rmq_spark

assert find_spec("pyspark") is None and find_spec("pyarrow") is None
broker = rmq_spark.connect(sys.argv[1], key_prefix="wheel:")
broker.create("Orders", "FixedTime", 4)
sent = broker.queue("Orders").send(["one", "two", "one"], fixed_time=1)
assert (sent.new, sent.merged) == (2, 1), sent
with broker.consumer("Orders", "billing") as consumer:
    for batch in consumer.batches(wait=False):
        print(*sorted(message.content.decode() for message in batch))
        batch.commit()
assert broker.queue("Orders").figures().counters["committed"] == 2

def bill(message):
    print(message.content.decode(), *message.headers, flush=True)
    listener.stop()

broker.queue("Orders").send(["three"], delay=0, headers={"tenant": "shop"}, time_to_live="1h")
listener = broker.listen("Orders", "billing", bill)
listener.run()
"""


def test_the_scripts_travel_inside(wheel, checkout):
    inside = set(zipfile.ZipFile(wheel).namelist())
    scripts = {file.relative_to(checkout) for file in (checkout / "lua").rglob("*.lua")}
    assert scripts
    assert {f"rmq_spark/{script}" for script in scripts} <= inside


def test_the_pages_of_the_console_travel_along(wheel, checkout):
    inside = set(zipfile.ZipFile(wheel).namelist())
    folder = checkout / "rmq_spark" / "console"
    files = [*folder.glob("templates/*"), *folder.glob("static/*")]
    assert len(files) > 10
    assert {str(file.relative_to(checkout)) for file in files} <= inside


def test_the_module_by_which_spark_finds_the_format_travels_along(wheel):
    assert "pyspark_rmq/__init__.py" in zipfile.ZipFile(wheel).namelist()


def test_the_type_hints_travel_along(wheel):
    assert "rmq_spark/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_the_examples_travel_with_the_sources_alone(wheel, checkout, tmp_path):
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    subprocess.run(hatch, cwd=checkout, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sources:
        inside = {name.partition("/")[2] for name in sources.getnames()}
    examples = {f"examples/{file.name}" for file in (checkout / "examples").glob("*.py")}
    assert examples
    assert examples <= inside
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "examples" in name]


@pytest.fixture
def installed(wheel, new_venv, bare_environ, checkout, tmp_path):
    """Installs the wheel into an empty environment, and returns what runs a program there."""

    def install(extras=""):
        python = new_venv()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "-q"]
        what = ["install", "-c", checkout / "constraints.txt", f"{wheel}{extras}"]
        subprocess.run([*pip, *what], check=True, env=bare_environ)

        def run(program, *words):
            done = subprocess.run(
                [python.with_name(program), *words],
                env=bare_environ,
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )
            return done.returncode, done.stdout, done.stderr

        return run

    return install


def test_without_spark_it_sends_consumes_and_listens(installed, local_redis):
    run = installed()
    told = "one two\nthree ('tenant', b'shop')\n"
    assert run("python", "-c", PROGRAM, local_redis.url) == (0, told, "")


def test_the_command_needs_no_spark(installed, local_redis):
    """Failed before: rmq asked for pyarrow, and named the wrong extra."""
    run = installed("[cli]")
    rmq = ("rmq", "--redis-url", local_redis.url, "--key-prefix", "command:")
    assert run(*rmq, "create", "Orders", "--type", "FixedTime")[0] == 0
    assert run(*rmq, "send", "Orders", "one", "two", "--delay", "0")[0] == 0
    code, out, _ = run(*rmq, "peek", "Orders", "--json")
    assert code == 0
    assert sorted(json.loads(line)["content"] for line in out.splitlines()) == ["one", "two"]
    assert run("rmq", "--help")[0] == 0
    code, _, err = run(*rmq, "job", "report")
    assert (code, err.count("rmq-spark[spark]")) == (2, 1), err


# Names the modules that need Spark.
WITHOUT_SPARK = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("pyspark", "pyarrow", "numpy", "pandas")))
import rmq_spark
for module in pkgutil.walk_packages(rmq_spark.__path__, "rmq_spark."):
    try:
        module.name.endswith("__main__") or importlib.import_module(module.name)
    except ImportError:
        print(module.name)
"""


def test_only_what_runs_in_spark_needs_it():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK], check=True, capture_output=True, text=True
    )
    need = {tuple(name.split(".")[1:3]) for name in done.stdout.split()}
    assert {room for room, *_ in need} == {"spark", "jobs", "inspect", "sql"}
    others = {(room, *name) for room, *name in need if room not in ("spark", "jobs")}
    assert others == {("inspect", "queries"), ("sql", "jdbc")}
