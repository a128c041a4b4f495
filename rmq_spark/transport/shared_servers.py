"""Servers that all code of a process shares, because Spark reuses a worker for many tasks."""

import os

from rmq_spark.transport.connection import ConnectionOptions
from rmq_spark.transport.server import Server

_servers: dict[tuple[int, ConnectionOptions, float | None], Server] = {}


def shared_server(options: ConnectionOptions, patience_s: float | None = None) -> Server:
    """Return this process's server for these options, connecting on the first call.

    Spark reuses a worker process for many tasks. The process id is part of the key because
    connections do not survive a fork.
    """
    key = (os.getpid(), options, patience_s)
    if key not in _servers:
        _servers[key] = Server(options, patience_s)
    return _servers[key]
