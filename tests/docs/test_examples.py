"""The examples in README.md run as they stand, one after another."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rmq_spark.local import LocalRedis
from rmq_spark.spark.options import SINK_OPTIONS, SOURCE_OPTIONS
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.write_columns import COLUMNS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_blocks_of_the_readme_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    with LocalRedis() as server:
        environment = {
            **os.environ,
            "RMQ_REDIS_URL": server.url,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 1\n" in done.stdout  # what the block says that it prints
    assert '{"order": ' in done.stdout


def test_the_readme_names_every_option_and_column():
    options = {option.name for option in (*SINK_OPTIONS, *SOURCE_OPTIONS)}
    columns = {*COLUMNS, *SOURCE_SCHEMA.fieldNames()}
    assert [name for name in sorted(options | columns) if f"`{name}`" not in README] == []
