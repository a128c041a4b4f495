"""One PostgreSQL and one Redis for all tests of the jobs."""

import pytest

from rmq_spark.dev_servers.redis_server import LocalRedis

from .. import postgres
from .trade import Trade


@pytest.fixture(scope="session")
def database():
    postgres.driver()
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
