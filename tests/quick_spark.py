"""Settings with which Spark starts in half the time, for tests that start it often."""

import fcntl
import functools
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path

import pyspark

# Short-lived code is not worth compiling twice, nor 2 cores many collectors.
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}
# Uses what most programs use, so that the archive has their classes.
PROGRAM = """
import sys
from pyspark.sql import SparkSession
options, folder = sys.argv[1:]
builder = SparkSession.builder.config("spark.driver.extraJavaOptions", options).master("local[2]")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
spark.createDataFrame([(1, "x")], "id INT, name STRING").write.parquet(f"{folder}/in")
rows = spark.readStream.schema("id INT, name STRING").parquet(f"{folder}/in").selectExpr("name")
query = rows.writeStream.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True)
query.start(f"{folder}/out", format="parquet").awaitTermination()
assert spark.read.parquet(f"{folder}/out").where("name = 'x'").count() == 1
spark.stop()
"""
# Writing it takes long on a machine that has much else to do.
WRITTEN_S = 600


@functools.cache
def java_options() -> str:
    """Options of the JVM, with an archive of Spark's classes, which is written at the first call.

    It is kept in the virtual environment. A JVM of another kind starts all the same, without it.
    """
    java = subprocess.run(["java", "-version"], check=True, capture_output=True).stderr
    kind = hashlib.sha256(java + pyspark.__version__.encode()).hexdigest()[:12]
    # Nowhere where others could put one: a JVM believes what is in it.
    kept = os.access(sys.prefix, os.W_OK)
    folder = Path(sys.prefix) if kept else Path(tempfile.mkdtemp(prefix="rmq-quick-spark-"))
    archive = folder / f"spark-{kind}.jsa"
    if not archive.exists():
        _write(archive)
    # A JVM that misses its archive starts all the same.
    return f"{PLAIN} -XX:SharedArchiveFile={archive}"


def _write(archive: Path) -> None:
    """Whole, or not at all: another process may be at it, or the machine be too busy."""
    with ExitStack() as ends:
        lock = ends.enter_context(archive.with_suffix(".lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        folder = ends.enter_context(tempfile.TemporaryDirectory(dir=archive.parent))
        written = Path(folder) / "spark.jsa"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"{PLAIN} -XX:ArchiveClassesAtExit={written}", folder],
            capture_output=True,
            text=True,
            timeout=WRITTEN_S,
        )
        if written.exists():
            written.replace(archive)
        else:
            warnings.warn(f"Spark starts without an archive: {done.stderr[-2000:]}", stacklevel=1)


def variables() -> dict[str, str]:
    """What makes a program's Spark one of two cores, without pages, and with these options.

    No SPARK_CONF_DIR: with a folder in its class path a JVM uses no archive.
    """
    settings = {**SETTINGS, "spark.driver.extraJavaOptions": java_options()}
    given = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    return {"PYSPARK_SUBMIT_ARGS": shlex.join([*given, "pyspark-shell"])}


def java_variables() -> dict[str, str]:
    """For programs that say themselves where their Spark runs: these options alone."""
    return {"SPARK_SUBMIT_OPTS": f"{java_options()} -Dspark.ui.enabled=false"}
