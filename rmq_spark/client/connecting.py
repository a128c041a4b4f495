"""How a plain Python program connects to Redis."""

from collections.abc import Mapping
from typing import Any

from rmq_spark.client.broker import Broker
from rmq_spark.errors import InvalidOption
from rmq_spark.transport.connection import ConnectionOptions, parse_connection
from rmq_spark.transport.server import Server


def _text(name: str, value: Any) -> str:
    """Convert an option to text, the form that its parser takes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise InvalidOption(f"{name} is a {type(value).__name__}. Accepted: text, see connect.")


def connect(
    url: str | None = None, *, key_prefix: str = "", patience_s: float | None = None, **options: str
) -> Broker:
    """Connect to Redis from a plain Python program.

    url: ``redis://``, ``rediss://`` or ``unix://``; by default RMQ_REDIS_URL, or else the local
    server. options: the options that begin with ``redis.``, without that prefix, such as
    ``password``, ``socketTimeout="5s"``, ``cluster=True``, ``min_replicas=1``, or
    ``sentinels="host:port,..."`` with ``sentinelMaster``. patience_s: how long to retry a broken
    connection; None for 10 s, or for 25 s if a replica may take over. Raises InvalidOption,
    ServerError.

    Warns if Redis keeps nothing on disk.
    """
    server = Server(connection_from(url, options), patience_s)
    server.warn_if_not_on_disk()
    return Broker(server, key_prefix=key_prefix)


def connection_from(url: str | None, options: Mapping[str, Any]) -> ConnectionOptions:
    """Parse the arguments of connect. Raises InvalidOption."""
    given = {name: _text(name, value) for name, value in options.items()}
    given |= {} if url is None else {"url": url}
    return parse_connection(given)
