"""Faults on one server: what depends on its version, tests/lua and tests/client try."""

import pytest

from .. import servers


@pytest.fixture(scope="session")
def redis_executable():
    return servers.newest()
