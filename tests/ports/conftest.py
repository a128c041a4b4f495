"""One Kafka broker and one Redis for all tests of ports."""

import pytest

from .. import kafka_broker


@pytest.fixture(scope="session")
def kafka():
    kafka_broker.connector()
    with kafka_broker.KafkaBroker() as broker:
        yield broker
