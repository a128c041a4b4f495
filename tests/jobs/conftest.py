"""One Spark with the JDBC driver, one PostgreSQL and one Redis for all tests of the jobs."""

import os
import sys

import pytest

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

import postgres
from pyspark.sql import SparkSession
from trade import Trade

from rmq_spark.local import LocalRedis


@pytest.fixture(scope="session")
def spark():
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmq-spark jobs")
        .config("spark.jars", postgres.driver())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "10ms")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def database():
    with postgres.Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_of_jobs():
    with LocalRedis(settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def trade(spark, database, redis_of_jobs, request, tmp_path, monkeypatch):
    for name in ("RMQ_JDBC_URL", "RMQ_JDBC_USER", "RMQ_JDBC_PASSWORD"):
        monkeypatch.setenv(name, database.environment[name])
    trade = Trade(spark, database, redis_of_jobs.url, request.node.originalname, tmp_path)
    yield trade
    trade.close()
