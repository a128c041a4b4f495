"""One PostgreSQL, one MariaDB and one Redis for all tests of the jobs."""

import pytest

from rmq_spark.local.redis import LocalRedis

from .. import mariadb, postgres
from .trade import SELECT, Trade


@pytest.fixture(scope="session")
def postgresql_server():
    postgres.driver()
    with postgres.Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server():
    mariadb.driver()
    with mariadb.MariaDB() as server:
        yield server


@pytest.fixture
def database(postgresql_server):
    """The database of a test. A module may choose others."""
    return postgresql_server


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


@pytest.fixture
def to_table(trade):
    """Exports into a table with constraints."""
    trade.sql(
        "CREATE TABLE {t} (id INT PRIMARY KEY, sku VARCHAR(3) CHECK (sku <> 'BAD'))"
        + trade.database.table_options
    )

    def export(*arguments, checkpoint="checkpoint"):
        return trade.export(
            *("--to", "jdbc", "--table", trade.table, "--checkpoint", trade.folder / checkpoint),
            *("--select", SELECT, *arguments),
        )

    return export
