"""Consoles on a Redis that all tests here share; each has a key prefix of its own."""

import uuid

import pytest

from rmq_spark.client import Broker

from .. import on_newest
from .browsers import launched
from .site import running
from .stocked import stock

redis_executable, redis_url, server = on_newest.fixtures()


@pytest.fixture
def new_site(redis_url):
    """Starts consoles on databases of their own; they end with the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def new(prefix=None, url=None, **settings):
            name = f"{uuid.uuid4().hex}:" if prefix is None else prefix
            return stack.enter_context(running(url or redis_url, name, **settings))

        yield new


@pytest.fixture
def site(new_site):
    """A console that may change what is there, on an empty database."""
    return new_site(allow_changes=True)


@pytest.fixture(scope="session")
def stocked_prefix(server):
    """A database with topics of all kinds, which no test changes."""
    prefix = f"{uuid.uuid4().hex}:"
    stock(Broker(server, key_prefix=prefix))
    return prefix


@pytest.fixture
def stocked(new_site, stocked_prefix):
    """A console that only shows, on a database with topics of all kinds."""
    return new_site(stocked_prefix)


@pytest.fixture(scope="module")
def browser():
    """It ends with the module: as long as Playwright runs, this thread cannot call asyncio.run."""
    with launched() as found:
        yield found
