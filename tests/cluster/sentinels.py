"""A master, its replica and three Sentinels that watch them."""

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import redis

from rmq_spark.local.redis import LocalRedis, free_port

from .. import servers
from ..waiting import wait_until

NAME = "mymaster"
PATIENCE_S = 60.0


class Sentinels:
    """A context manager. servers: the master first, then the replica; password: of all of them."""

    def __init__(self, executable: str, password: str | None = None) -> None:
        self._executable = executable
        self._password = password
        self.ports = [free_port() for _ in range(3)]
        self._stack = ExitStack()

    @property
    def options(self) -> dict[str, str]:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        login = {"password": self._password, "sentinelPassword": self._password}
        return {
            "sentinels": hosts,
            "sentinelMaster": NAME,
            **({} if self._password is None else login),
        }

    def __enter__(self) -> "Sentinels":
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        secret = {} if self._password is None else {
            "requirepass": self._password, "masterauth": self._password
        }  # fmt: skip
        settings = {**servers.SETTINGS, **secret, "repl-diskless-sync-delay": "0"}
        self.master = self._stack.enter_context(LocalRedis(self._executable, settings))
        self.replica = self._stack.enter_context(LocalRedis(self._executable, settings))
        with redis.Redis(port=self.replica.port, password=self._password) as client:
            client.replicaof("127.0.0.1", self.master.port)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        for port in self.ports:
            self._start_sentinel(folder / str(port), port)
        self._until(lambda: all(self._sees_all(port) for port in self.ports))

    def _start_sentinel(self, folder: Path, port: int) -> None:
        folder.mkdir()
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {NAME} 127.0.0.1 {self.master.port} 2",
            # Longer than a busy machine keeps a server waiting: a second failover would lead to an
            # empty server.
            f"sentinel down-after-milliseconds {NAME} 3000",
            f"sentinel failover-timeout {NAME} 5000",
        ]
        if self._password is not None:
            lines += [f"requirepass {self._password}", f"sentinel sentinel-pass {self._password}"]
            lines.append(f"sentinel auth-pass {NAME} {self._password}")
        config = folder / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        process = subprocess.Popen(
            [self._executable, str(config), "--sentinel"], stdout=subprocess.DEVNULL
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def _sees_all(self, port: int) -> bool:
        try:
            with redis.Redis(port=port, password=self._password) as client:
                seen = client.sentinel_master(NAME)
        except redis.RedisError:
            return False
        others = len(self.ports) - 1
        return (seen["num-slaves"], seen["num-other-sentinels"]) == (1, others)

    def all_name(self, server: LocalRedis) -> bool:
        """Whether each Sentinel takes it for the master."""
        for port in self.ports:
            with redis.Redis(port=port, password=self._password) as client:
                if client.sentinel_master(NAME)["port"] != server.port:
                    return False
        return True

    def role(self, server: LocalRedis) -> str:
        with redis.Redis(port=server.port, password=self._password) as client:
            return client.info("replication")["role"]

    def _until(self, holds) -> None:
        wait_until(holds, "the Sentinels to see each other")
