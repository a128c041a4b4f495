"""The newest redis-server there is: what differs between versions other tests look at."""

import pytest

from .. import servers


@pytest.fixture(scope="session")
def redis_executable():
    return servers.newest()
