"""A broker for asyncio, beside the blocking one of the test."""

import pytest

from rmq_spark import aio


@pytest.fixture
def connected(redis_url, broker):
    """Connect a broker for asyncio that sees the topics of ``broker``."""

    async def connect(**options):
        return await aio.connect(redis_url, key_prefix=broker.key_prefix, **options)

    return connect


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 4, max_retries=1)
    return broker.queue("T")
