"""Earlier states of a Redis to which it falls back: a dump, or a replica that lags."""

import shutil
from pathlib import Path
from typing import Protocol

import redis

from rmq_spark.local.redis import LocalRedis

from ..waiting import wait_until

REPLICATED_S = 300.0
# Where no master answers: the replica keeps what it has.
NOBODY = ("127.0.0.1", "1")
# Dumps alone: what was written after the last one is lost. A replica need not wait for others.
FORGETFUL = {"appendonly": "no", "save": "3600 1", "repl-diskless-sync-delay": "0"}


class Past(Protocol):
    """A state of a server, kept to come back to."""

    def keep(self) -> None:
        """Keeps the state as it is now."""

    def come_back(self) -> LocalRedis:
        """Ends the server abruptly and returns the one that has the state that was kept."""

    def close(self) -> None:
        """Ends what it has started beside the server."""


class Dump:
    """kill -9, and a restart from a dump that was copied aside."""

    def __init__(self, server: LocalRedis) -> None:
        self._server = server
        with _client(server) as client:
            folder = Path(client.config_get("dir")["dir"])
        self._file, self._kept = folder / "dump.rdb", folder / "kept.rdb"

    def keep(self) -> None:
        with _client(self._server) as client:
            client.save()
        shutil.copyfile(self._file, self._kept)

    def come_back(self) -> LocalRedis:
        self._server.kill()
        shutil.copyfile(self._kept, self._file)
        return self._server.start()

    def close(self) -> None:
        """Does nothing: the cell ends the server."""


class Replica:
    """A replica that loses its master at some moment, and takes its place later."""

    def __init__(self, server: LocalRedis) -> None:
        self._server = server
        self._replica = _follow(server)

    def keep(self) -> None:
        with _client(self._server) as master, _client(self._replica) as replica:
            written = master.info("replication")["master_repl_offset"]
            what = "the replica to have what was written"
            wait_until(lambda: _has(replica, written), what, REPLICATED_S)
            replica.replicaof(*NOBODY)

    def come_back(self) -> LocalRedis:
        self._server.kill()
        with _client(self._replica) as replica:
            replica.replicaof("NO", "ONE")
        self._server.close()
        self._server, self._replica = self._replica, _follow(self._replica)
        return self._server

    def close(self) -> None:
        for each in (self._replica, self._server):
            each.close()


def _follow(master: LocalRedis) -> LocalRedis:
    """Starts a replica. It need not be in step before ``keep``."""
    replica = LocalRedis(settings=FORGETFUL).start()
    with _client(replica) as client:
        client.replicaof("127.0.0.1", str(master.port))
    return replica


def _has(replica: redis.Redis, written: int) -> bool:
    known = replica.info("replication")
    return known["master_link_status"] == "up" and known["slave_repl_offset"] >= written


def _client(server: LocalRedis) -> redis.Redis:
    return redis.Redis(port=server.port)
