"""Programs of the tests: Python processes of their own that import from the checkout."""

import os
import sys

from . import ROOT


def command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module below tests, such as ``faults.run_faults``."""
    return [sys.executable, "-m", f"tests.{module}", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, the paths that a program and its Spark need, and more.

    Spark's workers, too, find the modules of the checkout.
    """
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }
