"""The demo runs as a user starts it: in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def demo():
    def run(*arguments):
        command = [sys.executable, ROOT / "jobs" / "demo.py", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    return run


@pytest.fixture(scope="session")
def spark():
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.ui.showConsoleProgress", "false")
    builder.config("spark.sql.shuffle.partitions", "2")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    yield session
    session.stop()
