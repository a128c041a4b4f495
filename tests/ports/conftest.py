"""One Kafka broker and one Redis for all tests of ports."""

import pytest

from rmq_spark.dev_servers.redis_server import LocalRedis

from .. import kafka_broker
from ..jobs.trade import Trade


@pytest.fixture(scope="session")
def kafka():
    kafka_broker.connector()
    with kafka_broker.KafkaBroker() as broker:
        yield broker
