"""The redis-servers that the tests run on."""

import os
from itertools import product
from pathlib import Path
from typing import NoReturn

import pytest

from rmq_spark.dev_servers.redis_server import (
    SERVER_NAMES,
    LocalRedis,
    embedded_redis_server,
)

# The mutants' test runs get a server that runs already: "<executable> <url>".
HANDED = "RMQ_TEST_REDIS"
# The only server to test on, where somebody names one: the path of its executable.
GIVEN = "RMQ_TEST_SERVER"
# Durability is not what these tests are about, and each write would wait for the disk.
SETTINGS = {"appendonly": "no"}


def system_redis_server(search: str) -> str | None:
    """The redis- or valkey-server on a PATH, past those that a virtual environment carries."""
    embedded = embedded_redis_server()
    for name, folder in product(SERVER_NAMES, search.split(os.pathsep)):
        server = Path(folder) / name
        carried = (Path(folder).parent / "pyvenv.cfg").exists()
        same = embedded is not None and server.resolve() == Path(embedded).resolve()
        if os.access(server, os.X_OK) and not carried and not same:
            return str(server)
    return None


def executables() -> dict[str, str]:
    """The servers to test on, by the name that stands in the tests' ids."""
    if HANDED in os.environ:
        return {"handed": os.environ[HANDED].split(" ")[0]}
    if GIVEN in os.environ:
        return {"given": os.environ[GIVEN]}
    found = {
        "embedded": embedded_redis_server(),
        "system": system_redis_server(os.environ.get("PATH", "")),
    }
    return {name: server for name, server in found.items() if server}


def newest() -> str:
    """Return the newest redis-server there is, for tests that no other version tells more."""
    return next(reversed(executables().values()), None) or do_without()


def do_without() -> NoReturn:
    """Skips the test on a laptop, fails it in CI."""
    text = "No redis-server was found: install one, or rmq-spark[local]."
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def local(executable: str, **settings: str) -> LocalRedis:
    """A server of one's own, for a with statement that starts and ends it."""
    return LocalRedis(executable, {**SETTINGS, **settings})


def start(executable: str, **settings: str) -> LocalRedis:
    """The same, started; close it."""
    return local(executable, **settings).start()
