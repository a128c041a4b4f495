"""One broker of Kafka on this machine, from the jars on Maven Central."""

import base64
import importlib.metadata
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic

from rmq_spark.dev_servers.redis_server import free_port
from rmq_spark.dev_servers.zookeeper_ensemble import find_java
from tests import rocketmq_broker

POM = Path(__file__).parent / "peers" / "pom.xml"
BEGIN_S = 90.0
END_S = 30.0
PARTITIONS = 4
COPY_S = 900.0  # the first time Maven downloads them
# The default is for servers with more memory than a bench should take.
KAFKA_MEMORY = ("-Xmx1g",)


@contextmanager
def jars(profile: str) -> Iterator[Path]:
    """Yield a folder with the jars of a profile of the pom."""
    maven = shutil.which("mvn")
    if maven is None:
        raise SystemExit("Maven is needed for the brokers' jars: 'apt-get install maven'.")
    with tempfile.TemporaryDirectory(prefix="rmq-bench-jars-") as folder:
        copied = subprocess.run(
            [
                *(maven, "-q", "-B", "-f", POM, "-P", profile, "dependency:copy-dependencies"),
                f"-DoutputDirectory={folder}",
            ],
            capture_output=True,
            text=True,
            timeout=COPY_S,
            check=False,
        )
        if copied.returncode:
            raise SystemExit(f"Maven could not get the jars of {profile}: {copied.stdout[-2000:]}")
        yield Path(folder)


def versions(*artifacts: str, packages: Sequence[str] = ()) -> str:
    """Say which versions are measured, of artifacts in the poms and of packages that are there."""
    poms = POM.read_text() + rocketmq_broker.POM.read_text()
    names = re.findall(r"<artifactId>(.*)</artifactId>\s*<version>(.*)</version>", poms)
    found = [f"{name} {version}" for name, version in names if name in artifacts]
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found) + "."


class Jvm:
    """A server in a JVM of its own, which listens on a port. A context manager."""

    def __init__(self, jars_of: Path, folder: Path, port: int, *words: str) -> None:
        self._log = folder / f"{words[-1].rsplit('/', 1)[-1]}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [find_java(), f"-Duser.home={folder}", "-cp", f"{jars_of}/*", *words],
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl+C ends the bench, and the bench ends it
            )
        self.pid = self._process.pid
        self._port = port

    def __enter__(self) -> "Jvm":
        until = time.monotonic() + BEGIN_S
        while self._process.poll() is None and time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return self
            time.sleep(0.1)
        self.__exit__()
        raise SystemExit(f"A broker did not begin: {self._log.read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Server:
    """A broker with a folder, jars and processes of its own. A context manager."""

    profile = ""
    url = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-bench-broker-"))
            self._jars = stack.enter_context(jars(self.profile))
            self.folder = Path(folder)
            self._start(self.folder, stack)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _start(self, folder: Path, stack: ExitStack) -> None:
        raise NotImplementedError

    def _run_tool(self, *words: str) -> None:
        done = subprocess.run(
            [find_java(), "-cp", f"{self._jars}/*", *words],
            capture_output=True,
            text=True,
            timeout=BEGIN_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                f"{' '.join(words)} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}"
            )


class Kafka(Server):
    """A broker that is its own controller."""

    profile = "kafka"

    def _start(self, folder: Path, stack: ExitStack) -> None:
        port, controller = free_port(), free_port()
        self.url = f"127.0.0.1:{port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.url},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / "data",
            # There is one broker.
            "offsets.topic.replication.factor": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }
        file = _written(folder / "server.properties", settings)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run_tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", file)
        command = (*KAFKA_MEMORY, "kafka.Kafka", file)
        self.pid = stack.enter_context(Jvm(self._jars, folder, port, *command)).pid

    def create(self, topic: str) -> None:
        """Create a topic."""
        admin = AdminClient({"bootstrap.servers": self.url, "log_level": 3})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()

    def share_from_start(self, group: str) -> None:
        """Let a share group begin with the oldest record, not with the next one."""
        self._run_tool(
            *("org.apache.kafka.tools.ConfigCommand", "--bootstrap-server", self.url, "--alter"),
            *("--entity-type", "groups", "--entity-name", group),
            *("--add-config", "share.auto.offset.reset=earliest"),
        )


def _written(file: Path, settings: Mapping[str, object]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)
