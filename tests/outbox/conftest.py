"""A shop with an outbox, in each kind of database, and one Redis."""

import pytest

from rmq_spark.local.redis import LocalRedis

from .. import mariadb, postgres
from .shop import Shop


@pytest.fixture(scope="session")
def postgresql_server():
    with postgres.Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server():
    with mariadb.MariaDB() as server:
        yield server


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture(scope="session")
def redis_of_outbox():
    with LocalRedis(settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def empty_shop(database, redis_of_outbox):
    shop = Shop(database, redis_of_outbox.url)
    yield shop
    shop.close()


@pytest.fixture
def shop(empty_shop):
    """A shop with a topic Orders and the tables of an outbox."""
    empty_shop.broker.create("Orders", "FixedTime", slot_amount=4)
    empty_shop.outbox().create_tables()
    return empty_shop
