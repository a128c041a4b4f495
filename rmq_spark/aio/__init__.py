"""The Python client for asyncio: the same topics, queues, consumers and listeners, awaited.

Start with ``await connect()``. Needs the package greenlet (``pip install 'rmq-spark[asyncio]'``).

Everything here wraps an object of rmq_spark.client and calls its methods within run_awaiting
(rmq_spark.transport.awaiting), so that what they wait for is awaited.
"""

from rmq_spark.aio.async_broker import AsyncBroker, connect
from rmq_spark.aio.async_consumer import AsyncBatch, AsyncConsumer
from rmq_spark.aio.async_listener import AsyncListener
from rmq_spark.aio.async_queue import AsyncQueue

__all__ = ["AsyncBatch", "AsyncBroker", "AsyncConsumer", "AsyncListener", "AsyncQueue", "connect"]
