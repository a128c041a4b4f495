"""A Spark driver of its own: runs the queries it is told to, and starts one again when it fails.

Orders come as JSON lines on stdin, what happens is told as JSON lines on stdout. When its JVM is
gone the program ends: whoever started it starts it again.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from .queries import COLUMNS, start

BEFORE_NEXT_START_S = 0.2
# Of an error's text, which holds Spark's stack traces.
ERROR_CHARACTERS = 6000


def say(**event: Any) -> None:
    """Tells one thing, whole, whichever thread it comes from."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Kept(threading.Thread):
    """A query that is started again whenever it fails, as a supervisor would."""

    def __init__(self, spark: SparkSession, name: str, job: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._spark, self._name, self._job = spark, name, job
        self._query: Any = None
        self._over = False

    def run(self) -> None:
        # Spark finds a sink written in Python through the session that is active in the thread.
        java = SparkSession._get_j_spark_session_class(self._spark._jvm)
        java.setActiveSession(self._spark._jsparkSession)
        while not self._over:
            try:
                self._query = start(self._spark, self._job)
                say(event="started", query=self._name)
                self._query.awaitTermination()
            except (StreamingQueryException, AnalysisException) as error:
                text = str(error)[:ERROR_CHARACTERS]
                say(event="failed", query=self._name, error=text)
            except Exception as error:  # the JVM is gone
                traceback.print_exc()
                say(event="ends", error=f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS])
                os._exit(3)
            time.sleep(BEFORE_NEXT_START_S)

    def finish(self) -> None:
        """Works off what there is, then stops."""
        while not self._worked_off():
            time.sleep(BEFORE_NEXT_START_S)
        self.stop()

    def _worked_off(self) -> bool:
        query = self._query
        if query is None:  # it is starting
            return False
        try:
            query.processAllAvailable()
            return query.exception() is None
        except StreamingQueryException:
            return False

    def stop(self) -> None:
        self._over = True
        while self.is_alive():
            if self._query is not None:
                with contextlib.suppress(StreamingQueryException):
                    self._query.stop()
            self.join(1)


def collect(spark: SparkSession, out: str, into: str) -> None:
    """What a sink holds, as Spark reads it, in one file."""
    found = [each for each in Path(out).glob("*") if each.name != "_spark_metadata"]
    if found:
        frame = spark.read.parquet(out)
        folders = [name for name in ("batch",) if name in frame.columns]
        pq.write_table(frame.select(*COLUMNS, *folders).toArrow(), into)


def obey(spark: SparkSession, queries: dict[str, Kept], order: dict[str, Any]) -> None:
    """Does what one line asks for."""
    name = order["query"]
    if order["do"] == "start":
        queries[name] = Kept(spark, name, order["job"])
        queries[name].start()
        return
    if order["do"] == "collect":
        collect(spark, order["out"], order["into"])
    elif order["do"] == "finish":
        queries.pop(name).finish()
    else:
        queries.pop(name).stop()
    say(event=order["do"], query=name)


def session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    spark = session(json.loads(sys.argv[1]))
    say(event="ready", query="", jvm=spark.sparkContext._gateway.proc.pid)
    queries: dict[str, Kept] = {}
    for line in sys.stdin:
        obey(spark, queries, json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
