"""Spark 4.2 with the connector of Delta Lake, which has no build for the Spark of the tests."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .. import missing
from ..jars import KEPT, jars

VERSION = "4.2.1"
POM = Path(__file__).parent / "delta_pom.xml"
INSTALLED_S = 900
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # 50 tasks for a small log take seconds
}


def connector() -> str:
    """Return the jars of the connector, for spark.jars."""
    return ",".join(jars(POM, "connector"))


def settings() -> dict[str, str]:
    """Return the settings of a Spark that knows Delta Lake."""
    return {"spark.jars": connector(), **SETTINGS}


def options() -> list[str]:
    """Return the settings as options of a job."""
    return [part for pair in settings().items() for part in ("--conf", "=".join(pair))]


def variables() -> dict[str, str]:
    """Return variables with which a Python finds PySpark 4.2. The first call installs it."""
    folder = KEPT / f"pyspark-{VERSION}"
    KEPT.mkdir(exist_ok=True)
    with (KEPT / "pyspark-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of pytest may want it
        if not folder.exists():
            _install(folder)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _install(folder: Path) -> None:
    """Install PySpark, whole or not at all. Everything else comes from this environment."""
    with tempfile.TemporaryDirectory(dir=KEPT) as unfinished:
        into = Path(unfinished, "pyspark")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", into]
        done = subprocess.run(
            [*command, f"pyspark=={VERSION}"], capture_output=True, text=True, timeout=INSTALLED_S
        )
        if done.returncode:
            missing.do_without(f"PySpark {VERSION}, which pip did not install", done.stderr[-500:])
        into.rename(folder)
