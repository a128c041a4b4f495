"""A Spark cluster of one's own, standalone, for demos and tests: a master and its workers."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rmq_spark.dev_servers.redis_server import free_port
from rmq_spark.errors import ServerUnavailable

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
# Small, quick to start, and gentle to few cores.
DAEMON_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class LocalSpark:
    """A master and so many workers, each with an address of its own: 127.0.0.1, 127.0.0.2, ...

    cores and memory: of each worker. folder: for logs and what workers keep; a temporary one if
    None. variables: the environment of all processes; this process' if None. A context manager;
    once entered, ``master`` is for spark.master.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._workers = workers
        self._worker_words = ("-c", str(cores), "-m", memory)
        self._own_folder = None if folder else tempfile.TemporaryDirectory(prefix="rmq-spark-")
        self.folder = folder or Path(str(self._own_folder and self._own_folder.name))
        self._variables = dict(os.environ if variables is None else variables)
        self._port = free_port()
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def master(self) -> str:
        """The master's address."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def hosts(self) -> list[str]:
        """The addresses of the workers."""
        return [f"127.0.0.{number}" for number in range(1, self._workers + 1)]

    def __enter__(self) -> "LocalSpark":
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def kill_worker(self, host: str) -> None:
        """Ends a worker abruptly, with the executors that it has started."""
        worker = self._started.pop(host)
        for child in _children_of(worker.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        worker.kill()
        worker.wait()

    def close(self) -> None:
        """Ends everything."""
        for process in reversed(self._started.values()):
            process.terminate()
        for process in self._started.values():
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._started.clear()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    # -- below: how it is started

    def _start_all(self) -> None:
        self._start("master", "Master", "--port", str(self._port), host="127.0.0.1")
        log = self.folder / "master.log"
        _wait_until(lambda: "New state: ALIVE" in log.read_text(), f"Spark's master, see {log}")
        for host in self.hosts:
            work = ("-d", str(self.folder / f"work-{host}"))
            self._start(host, "Worker", *self._worker_words, *work, self.master, host=host)
        _wait_until(
            lambda: log.read_text().count("Registering worker") >= self._workers,
            f"Spark's workers, see {log}",
        )

    def _start(self, name: str, kind: str, *words: str, host: str) -> None:
        spec = importlib.util.find_spec("pyspark")
        home = Path(str(spec and spec.origin)).parent
        variables = {
            **self._variables,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": DAEMON_OPTIONS,
        }
        main = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        at = ("--host", host, "--webui-port", "0")
        with (self.folder / f"{name}.log").open("wb") as log:
            self._started[name] = subprocess.Popen(  # noqa: S603 - Spark's own program
                [home / "bin" / "spark-class", main, *at, *words],
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt typed by the user is not for them
            )


def _children_of(pid: int) -> list[int]:
    """The processes that another has started, and theirs."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    parents = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found, left = [], [pid]
    while left:
        parent = left.pop()
        children = [child for child, of in parents if of == parent]
        found += children
        left += children
    return found


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while not holds():
        if time.monotonic() > end:
            raise ServerUnavailable(f"Not within {START_TIMEOUT_S:g} s: {what}")
        time.sleep(0.1)
