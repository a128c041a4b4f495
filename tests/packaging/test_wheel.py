"""The wheel where nothing else is: plain Python sends and consumes, without Spark."""

import subprocess
import sys
import tarfile
import zipfile

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


def test_without_spark_it_sends_and_consumes(
    wheel, new_venv, local_redis, checkout, bare_environ, tmp_path
):
    python = new_venv()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "-q"]
    install = ["install", "-c", checkout / "constraints.txt", wheel]
    subprocess.run([*pip, *install], check=True, env=bare_environ)
    done = subprocess.run(
        [python, "-c", PROGRAM, local_redis.url],
        env=bare_environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two\n", "")
