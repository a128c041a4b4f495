"""One Redis for all tests here; every test has topics of its own."""

import signal
from pathlib import Path

import pytest

from rmq_spark.local.redis import LocalRedis

from .driving import Rmq, Run


@pytest.fixture(scope="session")
def redis_server():
    with LocalRedis(settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def rmq(redis_server, request, tmp_path: Path):
    rmq = Rmq(redis_server.url, request.node.originalname, tmp_path)
    yield rmq
    rmq.close()


@pytest.fixture
def alone(tmp_path):
    """The same on a server of this test's own: what others have left at work calls it not."""
    with LocalRedis(settings={"appendonly": "no"}) as server:
        rmq = Rmq(server.url, "alone", tmp_path)
        yield rmq
        rmq.close()


@pytest.fixture(autouse=True)
def _own_signals():
    """A reader that is driven in this process sets a handler; pytest keeps its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _no_thread_left():
    """Readers that a test drives and does not stop would renew leases for ever."""
    yield
    while Run.begun:
        Run.begun.pop().end_threads()


@pytest.fixture(autouse=True)
def _no_query_left(request):
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
