"""The demo runs as a user starts it: in a process of its own."""

import os
import subprocess
import sys

import pytest

from .. import ROOT, quick_spark


@pytest.fixture(scope="session")
def demo():
    def run(*arguments):
        command = [sys.executable, ROOT / "jobs" / "demo.py", *arguments]
        environment = {**os.environ, **quick_spark.java_variables()}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=240, env=environment, check=False
        )

    return run
