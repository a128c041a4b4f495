"""The command on a Redis that all tests here share; each has a key prefix of its own."""

import pytest
import servers
from running import Rmq


@pytest.fixture(scope="session")
def redis_executable():
    """The newest redis-server there is: what differs between versions other tests look at."""
    found = list(servers.executables().values())
    return found[-1] if found else servers.do_without()


@pytest.fixture
def rmq(redis_url, server):
    return Rmq(redis_url, server)
