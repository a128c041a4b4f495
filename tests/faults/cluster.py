"""A Spark cluster of one master and two workers: in local mode Spark never speculates."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from program import environment, wait_until

from rmq_spark.local import free_port

# A speculative twin runs on another host than the task; both are this machine.
HOSTS = ("127.0.0.1", "127.0.0.2")
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "300ms",
    "spark.speculation.task.duration.threshold": "1500ms",
    "spark.executor.memory": "600m",
    "spark.cores.max": "4",
}


class Cluster:
    """A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def settings(self) -> dict[str, str]:
        """For a driver's session."""
        return {**SETTINGS, "spark.master": f"spark://127.0.0.1:{self._port}"}

    def __enter__(self) -> "Cluster":
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        master = ("Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        self._start("master", *master)
        log = self._folder / "master.log"
        wait_until(lambda: "New state: ALIVE" in log.read_text(), "Spark's master")
        for host in HOSTS:
            words = ("--host", host, "--webui-port", "0", "-c", "2", "-m", "700m")
            work = ("-d", str(self._folder / f"work-{host}"))
            self._start(f"worker-{host}", *("Worker", *words, *work), self.settings["spark.master"])
        wait_until(lambda: log.read_text().count("Registering worker") == len(HOSTS), "two workers")

    def _start(self, name: str, kind: str, *words: str) -> None:
        home = Path(str(find_spec("pyspark").origin)).parent
        variables = {
            **environment(),
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    [
                        home / "bin" / "spark-class",
                        f"org.apache.spark.deploy.{kind.lower()}.{kind}",
                        *words,
                    ],
                    env=variables,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def __exit__(self, *_: object) -> None:
        for each in reversed(self._started):
            each.terminate()
        for each in self._started:
            try:
                each.wait(15)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
