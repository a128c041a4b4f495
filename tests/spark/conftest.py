"""One SparkSession and one Redis for all tests here; every test has topics of its own."""

import os
import signal
import sys
from pathlib import Path

import pytest

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

from driving import Rmq
from pyspark.sql import SparkSession

from rmq_spark.local import LocalRedis


@pytest.fixture(scope="session")
def spark():
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmq-spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "10ms")
        # Short-lived code is not worth compiling twice, nor 2 cores many collectors.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def redis_server():
    with LocalRedis(settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def rmq(redis_server, request, tmp_path: Path):
    rmq = Rmq(redis_server.url, request.node.originalname, tmp_path)
    yield rmq
    rmq.close()


@pytest.fixture(autouse=True)
def _own_signals():
    """A reader that is driven in this process sets a handler; pytest keeps its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _no_query_left(request):
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
