"""The command on a Redis that all tests here share; each has a key prefix of its own."""

import pytest

from .. import on_newest
from .running import Rmq

redis_executable, redis_url, server = on_newest.fixtures()


@pytest.fixture
def rmq(redis_url, server):
    return Rmq(redis_url, server)
