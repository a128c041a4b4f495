"""The Python client for asyncio: the same topics, queues, consumers and listeners, awaited.

Start with ``await connect()``. Needs the package greenlet (``pip install 'rmq-spark[asyncio]'``).

Everything here wraps an object of rmq_spark.client and calls its methods within greenlet_spawn
(rmq_spark.redis.aio), so that what they wait for is awaited.
"""

try:
    from rmq_spark.aio.client import AsyncBatch, AsyncBroker, AsyncConsumer, AsyncQueue, connect
    from rmq_spark.aio.listener import AsyncListener
except ModuleNotFoundError as error:
    if error.name != "greenlet":
        raise
    raise ModuleNotFoundError(
        "rmq_spark.aio needs the package greenlet: pip install 'rmq-spark[asyncio]'",
        name=error.name,
    ) from None

__all__ = ["AsyncBatch", "AsyncBroker", "AsyncConsumer", "AsyncListener", "AsyncQueue", "connect"]
