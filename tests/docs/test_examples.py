"""The examples in README.md and docs/operations.md run as they stand; both name what there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from rmq_spark.cli.app import app
from rmq_spark.local import LocalRedis
from rmq_spark.metrics.queries import QueryMetrics
from rmq_spark.metrics.queues import QueueCollector
from rmq_spark.spark.given import CONNECTION
from rmq_spark.spark.options import SINK_OPTIONS, SOURCE_OPTIONS
from rmq_spark.spark.schemas import SOURCE_SCHEMA, TABLE_SCHEMA
from rmq_spark.spark.table_options import TABLE_OPTIONS
from rmq_spark.spark.write_columns import COLUMNS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
# What the reader of that page has: a session, and a topic in which something died.
BEFORE_OPERATIONS = """
from pyspark.sql import SparkSession
import rmq_spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
broker = rmq_spark.connect()
broker.create("Orders", "FixedTime", 4)
queue = broker.queue("Orders")
for number in range(8):
    died_at = 1 if number < 4 else 4 * 10**12
    queue.server.client.zadd(queue.keys.dead(number % 4), {f"{number} eur": died_at})
"""
AFTER_OPERATIONS = """
store, dead = queue.figures().store, queue.figures().dead
print("stored", store.count, "dead", dead.count)
from rmq_spark.queue.pages import QueueKind
pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
print(sorted(content for page in pages for content in page.contents))
for statement in %r.split(";"):
    if statement.strip():
        print(spark.sql(statement).count())
"""


def test_the_python_blocks_of_the_readme_run(tmp_path):
    blocks = blocks_of(README)
    assert len(blocks) >= 4
    done = run("\n".join(blocks), tmp_path)
    assert "2 1\n" in done.stdout  # what the block says that it prints
    assert '{"order": ' in done.stdout


def blocks_of(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def run(text, folder):
    """Runs a program in a folder, with a Redis of its own."""
    program = folder / "example.py"
    program.write_text(text, encoding="utf-8")
    with LocalRedis() as server:
        environment = {
            **os.environ,
            "RMQ_REDIS_URL": server.url,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_blocks_of_the_operations_page_run(tmp_path):
    blocks = [
        block.replace("start_http_server(9310)", "start_http_server(0)")
        for block in blocks_of(OPERATIONS)
    ]
    (sql,) = blocks_of(OPERATIONS, "sql")
    text = "\n".join([BEFORE_OPERATIONS, *blocks, AFTER_OPERATIONS % sql])
    lines = run(text, tmp_path).stdout.splitlines()
    # Those that died lately came back as they were, all that were dead then were mended and purged.
    assert "stored 8 dead 0" in lines
    mended, again = (
        [f"{n} EUR".encode() for n in range(4)],
        [f"{n} eur".encode() for n in range(4, 8)],
    )
    assert str(sorted(mended + again)) in lines


def test_the_readme_names_every_option_and_column():
    options = {option.name for option in (*SINK_OPTIONS, *SOURCE_OPTIONS)}
    columns = {*COLUMNS, *SOURCE_SCHEMA.fieldNames()}
    assert [name for name in sorted(options | columns) if f"`{name}`" not in README] == []


def test_the_operations_page_names_every_option_column_and_command_of_it():
    wanted = {option.name for option in TABLE_OPTIONS} - {option.name for option in CONNECTION}
    wanted |= set(TABLE_SCHEMA.fieldNames())
    assert [name for name in sorted(wanted) if f"`{name}`" not in OPERATIONS] == []
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert len(commands) >= 18
    assert [name for name in commands if f"`rmq {name}" not in OPERATIONS] == []


def test_the_operations_page_names_every_figure_and_no_other(broker):
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    QueryMetrics(registry)
    broker.create("Orders", "FixedTime", 1)
    there = {family.name for family in registry.collect()}
    named = {
        re.sub(r"_total$", "", name)
        for name in re.findall(r"\brmq_[a-z_]+", OPERATIONS)
        if name not in ("rmq_spark", "rmq_")
    }
    assert named == there
