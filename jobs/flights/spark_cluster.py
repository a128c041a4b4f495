"""A local standalone Spark cluster for demos and tests: a master and its workers."""

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

from rmq_spark.errors import ServerUnavailable
from rmq_spark.local.redis import free_port

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
# Quick to start, with few threads, for a machine with few cores.
DAEMON_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class LocalSpark:
    """A Spark master and workers, each on its own address: 127.0.0.1, 127.0.0.2, ...

    A context manager; within it, set spark.master to ``master``. workers: the number of workers.
    cores, memory: those of each worker. folder: for logs and the workers' files; None: a temporary
    one. variables: the environment of all processes; None: the environment of this process.
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
        """The address of the master, for spark.master."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def hosts(self) -> list[str]:
        """The IP addresses of the workers."""
        return [f"127.0.0.{number}" for number in range(1, self._workers + 1)]

    def __enter__(self) -> "LocalSpark":
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def kill_worker(self, host: str) -> None:
        """Kill the worker on a host together with its executors."""
        worker = self._started.pop(host)
        for child in _children_of(worker.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        worker.kill()
        worker.wait()

    def close(self) -> None:
        """Stop all processes and delete the temporary folder."""
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

    # -- starting the processes

    def _start_all(self) -> None:
        self._start("master", "Master", "--port", str(self._port), host="127.0.0.1")
        log = self.folder / "master.log"
        _wait_until(
            lambda: "New state: ALIVE" in log.read_text(),
            f"Spark's master did not start; see {log}.",
        )
        for host in self.hosts:
            work = ("-d", str(self.folder / f"work-{host}"))
            self._start(host, "Worker", *self._worker_words, *work, self.master, host=host)
        _wait_until(
            lambda: log.read_text().count("Registering worker") >= self._workers,
            f"Spark's workers did not register; see {log}.",
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
            self._started[name] = subprocess.Popen(
                [home / "bin" / "spark-class", main, *at, *words],
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl+C in the terminal must not stop it
            )


def _children_of(pid: int) -> list[int]:
    """List the ids of a process's children, and of their children."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="],
        capture_output=True,
        text=True,
        check=True,
    )
    parents = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    descendants, left = [], [pid]
    while left:
        parent = left.pop()
        children = [child for child, its_parent in parents if its_parent == parent]
        descendants += children
        left += children
    return descendants


def _wait_until(holds: Callable[[], bool], failure: str) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while not holds():
        if time.monotonic() > end:
            raise ServerUnavailable(f"After {START_TIMEOUT_S:g} s: {failure}")
        time.sleep(0.1)
