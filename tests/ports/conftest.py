"""One Kafka broker, one RocketMQ and one Redis for all tests of ports."""

import pytest

from rmq_spark.local.redis import LocalRedis

from .. import kafka_broker
from ..jobs.trade import Trade
from ..rocketmq_broker import RocketMQBroker


@pytest.fixture(scope="session")
def kafka():
    kafka_broker.connector()
    with kafka_broker.KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def rocketmq():
    with RocketMQBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_of_ports():
    with LocalRedis(settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def trade(spark, redis_of_ports, request, tmp_path):
    trade = Trade(spark, None, redis_of_ports.url, request.node.originalname, tmp_path)
    yield trade
    trade.close()
