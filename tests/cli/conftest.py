"""The command on a Redis that all tests here share; each has a key prefix of its own."""

import pytest

from .. import servers
from .running import Rmq


@pytest.fixture(scope="session")
def redis_executable():
    return servers.newest()


@pytest.fixture
def rmq(redis_url, server):
    return Rmq(redis_url, server)
