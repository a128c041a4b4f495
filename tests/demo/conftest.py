"""The demo runs as a user starts it: in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def demo():
    def run(*arguments):
        command = [sys.executable, ROOT / "jobs" / "demo.py", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    return run
