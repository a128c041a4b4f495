"""The newest redis-server there is: what differs between versions other tests look at."""

import pytest
import servers


@pytest.fixture(scope="session")
def redis_executable():
    found = list(servers.executables().values())
    return found[-1] if found else servers.do_without()
