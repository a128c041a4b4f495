"""Fixtures of folders whose tests run on the newest server alone: what differs between versions
other tests look at.
"""

import os

import pytest

from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.server import Server

from . import servers


def url_of(executable):
    """Yield the address of a server that many tests share, and end it."""
    handed = os.environ.get(servers.HANDED)
    if handed:
        yield handed.split(" ")[1]
        return
    with servers.local(executable) as started:
        yield started.url


def server_at(url):
    """Yield one connection for all of them, and close it."""
    with_patience = Server(parse_connection({"url": url}), patience_s=2)
    yield with_patience
    with_patience.close()


def fixtures():
    """What the conftest of such a folder assigns to redis_executable, redis_url and server.

    All three: with the first alone, pytest would hand out a redis_url that it has made already,
    on whichever server tests of other folders ran before.
    """

    @pytest.fixture(scope="session")
    def redis_executable():
        return servers.newest()

    @pytest.fixture(scope="session")
    def redis_url(redis_executable):
        yield from url_of(redis_executable)

    @pytest.fixture(scope="session")
    def server(redis_url):
        yield from server_at(redis_url)

    return redis_executable, redis_url, server
