"""The demo runs as a user starts it: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick_spark

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "jobs"))  # for the package flights


@pytest.fixture(scope="session")
def demo():
    def run(*arguments):
        command = [sys.executable, ROOT / "jobs" / "demo.py", *arguments]
        environment = {**os.environ, **quick_spark.java_variables()}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=240, env=environment, check=False
        )

    return run
