"""A local ZooKeeper ensemble from PySpark's jars, for demos, notebooks and tests."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmq_spark.errors import OwnershipUnavailable
from rmq_spark.local.redis import free_port

START_TIMEOUT_S = 60.0
# ZooKeeper accepts session timeouts of 2 to 20 ticks.
TICK_MS = 500
SETTINGS = {
    "tickTime": str(TICK_MS),
    "initLimit": "20",
    "syncLimit": "10",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
}
# Quick to start, with little memory and few threads, for a machine with few cores.
JAVA_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        raise OwnershipUnavailable(
            f"No java was found {f'in JAVA_HOME={home}' if home else 'on PATH'}. Install Java 17 "
            "or later (such as with 'apt-get install openjdk-17-jre-headless') or set JAVA_HOME."
        )
    return java


def find_jars() -> str:
    """Find PySpark's jars, which contain ZooKeeper. Raises OwnershipUnavailable."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise OwnershipUnavailable(
            "PySpark, which contains the local ZooKeeper, is not installed. Install it with 'pip "
            "install pyspark'."
        )
    return str(Path(spec.origin).parent / "jars" / "*")


class LocalZookeeper:
    """A ZooKeeper server, alone or in an ensemble. Its data stay until the ensemble is closed."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], java_options: Sequence[str]
    ) -> None:
        self.port = int(settings["clientPort"])
        self._folder = folder
        self._java_options = (*JAVA_OPTIONS, *java_options)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        lines = {**settings, "dataDir": str(folder)}
        (folder / "zoo.cfg").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))

    @property
    def pid(self) -> int | None:
        """The process id of the server; None while it is stopped."""
        return None if self._process is None else self._process.pid

    @property
    def mode(self) -> str | None:
        """The role of the server: leader, follower or standalone; None while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"srvr")
                reply = connection.makefile("rb").read().decode()
        except OSError:
            return None
        modes = [line.split()[1] for line in reply.splitlines() if line.startswith("Mode:")]
        return modes[0] if modes else None

    def start(self) -> None:
        """Start the process, also after it has ended. Does not wait until it serves."""
        if self._process is not None and self._process.poll() is None:
            return
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the program of find_java
                [
                    *(find_java(), *self._java_options, "-cp", find_jars()),
                    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                    str(self._folder / "zoo.cfg"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl+C in the terminal must not stop the server
            )

    def kill(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(with_signal)
            self._process.wait()
            self._process = None


class LocalEnsemble:
    """ZooKeeper servers on free loopback ports. A context manager; closing it deletes their data.

    servers: 1, or an odd number of which a majority must run. settings: lines of zoo.cfg, which
    override SETTINGS. java_options: further options of each java. Without ``with`` you must call
    close, or the servers outlive the program.
    """

    def __init__(
        self,
        servers: int = 1,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rmq-zookeeper-")
        numbers = range(1, servers + 1)
        peers = {
            f"server.{number}": f"127.0.0.1:{free_port()}:{free_port()}"
            for number in numbers
            if servers > 1
        }
        self.servers = []
        for number in numbers:
            folder = Path(self._folder.name) / str(number)
            lines = {**SETTINGS, **peers, **(settings or {}), "clientPort": str(free_port())}
            self.servers.append(LocalZookeeper(folder, lines, java_options))
            (folder / "myid").write_text(str(number))

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def leader(self) -> LocalZookeeper | None:
        """The leader, or the only server; None while there is no leader."""
        leading = [server for server in self.servers if server.mode in ("leader", "standalone")]
        return leading[0] if leading else None

    def start(self) -> "LocalEnsemble":
        try:
            for server in self.servers:
                server.start()
            self._wait()
        except BaseException:  # such as of a Ctrl-C: nobody will call __exit__
            self.close()
            raise
        return self

    def _wait(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while any(server.mode is None for server in self.servers):
            if time.monotonic() > end:
                raise OwnershipUnavailable(
                    f"The local ZooKeeper did not serve within {START_TIMEOUT_S:g} s. The machine "
                    "may be overloaded: start it again."
                )
            time.sleep(0.05)

    def close(self) -> None:
        for server in self.servers:
            server.kill()
        self._folder.cleanup()

    def __enter__(self) -> "LocalEnsemble":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()
