"""Each file in examples/ runs by itself, and prints what its docstring shows."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest

from rmq_spark.client import connect

from .. import ROOT, postgres, programs, quick_spark
from ..texts.page import PAGES

PIPELINES = shutil.which("spark-pipelines", path=Path(sys.executable).parent)
TEXTS = {file.name: file.read_text("utf-8") for file in sorted((ROOT / "examples").glob("*.py"))}


def of_file(name):
    is_long = "import SparkSession" in TEXTS[name]
    return pytest.param(name, marks=[pytest.mark.long] if is_long else [])


def shown(name):
    """What stands in its docstring below the command that starts it."""
    pattern = rf"^    \$ python examples/{name}\n((?:    .+\n)+)"
    return textwrap.dedent(re.search(pattern, TEXTS[name], re.MULTILINE)[1])


def test_the_page_leads_to_each():
    page = PAGES["docs/recipes.md"].text
    assert [name for name in TEXTS if f"](../examples/{name})" not in page] == []


@pytest.mark.parametrize("name", map(of_file, TEXTS))
def test_it_prints_what_it_shows(name, redis_url):
    with connect(redis_url) as broker:
        for topic in re.findall(r'"(Example\.\w+)"', TEXTS[name]):  # as of a run that was killed
            broker.create(topic, "FixedTime", 2)
            broker.queue(topic).send(["left over"], fixed_time=0)
    with postgres.Postgres() if "psycopg" in TEXTS[name] else nullcontext() as database:
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / name],
            env=programs.environment(
                RMQ_REDIS_URL=redis_url,
                **(quick_spark.variables() if "pyspark" in TEXTS[name] else {}),
                **(database.variables if database else {}),
            ),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert (done.returncode, done.stdout) == (0, shown(name)), done.stderr


@pytest.mark.long
@pytest.mark.skipif(not PIPELINES, reason="Spark has pipelines from 4.1 on.")
def test_the_pipeline_reads_one_topic_and_sends_to_another(redis_url, tmp_path):
    folder = shutil.copytree(ROOT / "examples/pipeline", tmp_path / "pipeline")
    spec = folder / "spark-pipeline.yml"
    storage = "file:///tmp/rmq-example-pipeline"
    spec.write_text(spec.read_text().replace(storage, (tmp_path / "storage").as_uri()))
    for command in ([sys.executable, "seed.py"], [PIPELINES, "run"]):
        done = subprocess.run(
            command,
            cwd=folder,
            env=programs.environment(
                RMQ_REDIS_URL=redis_url,
                PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **quick_spark.variables(),
            ),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    with connect(redis_url) as broker:
        assert broker.queue("Example.Orders").figures().counters["committed"] == 1000
        assert broker.queue("Example.Reminders").figures().store.count == 1000
