"""A RocketMQ of one's own, from its jars: a name server, and a broker within its proxy."""

import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rmq_spark.local.redis import free_port
from rmq_spark.local.zookeeper import find_java

from .jars import jars

POM = Path(__file__).parent / "ports" / "rocketmq_pom.xml"
# Its defaults are for servers with more memory than a test or a bench should take.
NAME_SERVER_MEMORY = ("-Xmx256m", "-XX:+UseSerialGC")
BROKER_MEMORY = ("-Xmx1g", "-XX:MaxDirectMemorySize=1g")
# What RocketMQ's own scripts open of the JVM.
OPENED = (
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",),
    *("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",),
)
ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
CLUSTER = "DefaultCluster"
BEGIN_S = 120
END_S = 30
# The tool answers within seconds; once in many runs it never ended.
TOOL_S = 60
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
PRINTED = re.compile(
    r"^MSGID: \S+ MessageExt \[.*?queueId=(\d+), .*?queueOffset=(\d+), .*?"
    r"properties=\{(.*?)\}, body=\[(.*?)\], transactionId='null'\}\]",
    re.MULTILINE | re.DOTALL,
)


class Stored(NamedTuple):
    """A message in a queue of a topic."""

    queue: int
    offset: int
    properties: dict[str, str]
    body: bytes


class RocketMQBroker:
    """One broker with its proxy, gone with its data at the end. A context manager."""

    def __init__(self) -> None:
        self._servers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "RocketMQBroker":
        self._jars = ":".join(jars(POM, "rocketmq"))
        self.folder = Path(tempfile.mkdtemp(prefix="rmq-rocketmq-"))
        try:
            while not self._begin():
                self._end()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        shutil.rmtree(self.folder)

    def _begin(self) -> bool:
        """Start the servers. Return False if another program has just taken one of their ports."""
        self._names = f"127.0.0.1:{free_port()}"
        # The port of gRPC, as a client is told it.
        self.url = f"127.0.0.1:{free_port()}"
        (self.folder / "log").write_bytes(b"")
        try:
            self._start_name_server()
            self._start_broker()
        except RuntimeError as error:
            if "Address already in use" in str(error):
                return False
            raise
        return True

    def _end(self) -> None:
        while self._servers:
            server = self._servers.pop()
            server.terminate()
            try:
                server.wait(END_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def create(self, topic: str, kind: str = "NORMAL") -> str:
        """Create a topic of a kind (NORMAL, FIFO, DELAY), and return its name."""
        self._change("updateTopic", "-t", topic, "-a", f"+message.type={kind}")
        return topic

    def create_group(self, group: str) -> None:
        """Create a consumer group."""
        self._change("updateSubGroup", "-g", group)

    def messages(self, topic: str) -> list[Stored]:
        """Read all messages of a topic, queue by queue. A value may hold no comma."""
        told = self._admin("printMsg", "-n", self._names, "-t", topic, "-d", "true")
        found = [
            Stored(
                int(queue),
                int(offset),
                dict(one.split("=", 1) for one in properties.split(", ")),
                bytes(int(byte) % 256 for byte in body.split(", ")),
            )
            for queue, offset, properties, body in PRINTED.findall(told)
        ]
        assert len(found) == told.count("MSGID: "), told[-3000:]
        return sorted(found, key=lambda one: one[:2])

    def _start_name_server(self) -> None:
        settings = {"listenPort": self._names.partition(":")[2], "kvConfigPath": "kv.json"}
        command = (*NAME_SERVER_MEMORY, *self._home(), "org.apache.rocketmq.namesrv.NamesrvStartup")
        self._start(self._names, *command, "-c", self._written("namesrv.conf", settings))

    def _start_broker(self) -> None:
        broker = {
            **{"brokerClusterName": CLUSTER, "brokerName": "one", "brokerId": 0},
            # It also takes the port below this one, and the one above.
            **{"brokerIP1": "127.0.0.1", "listenPort": free_port(), "namesrvAddr": self._names},
            **{"storePathRootDir": self.folder / "store"},
            **{"storePathCommitLog": self.folder / "store" / "commitlog"},
        }
        proxy = {
            **{"rocketMQClusterName": CLUSTER, "namesrvAddr": self._names},
            **{"grpcServerPort": int(self.url.partition(":")[2])},
            **{"remotingListenPort": free_port()},
        }
        (self.folder / "proxy.json").write_text(json.dumps(proxy))
        self._start(
            self.url,
            *(*BROKER_MEMORY, *self._home(), "org.apache.rocketmq.proxy.ProxyStartup"),
            *("-pm", "local", "-bc", self._written("broker.conf", broker)),
            *("-pc", str(self.folder / "proxy.json")),
        )

    def _change(self, *words: str) -> None:
        """Change something, again until the name server knows the broker."""
        end = time.monotonic() + BEGIN_S
        while "success" not in (told := self._admin(*words, "-n", self._names, "-c", CLUSTER)):
            if time.monotonic() > end:
                raise RuntimeError(f"{' '.join(words)} did nothing: {told}")

    def _home(self) -> tuple[str, ...]:
        return (f"-Drocketmq.home.dir={self.folder}", *OPENED)

    def _start(self, address: str, *words: str) -> None:
        """Start a server, and wait until it listens."""
        with (self.folder / "log").open("ab") as log:
            server = subprocess.Popen(
                [*self._java(), *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl+C ends the caller, and the caller ends it
            )
        self._servers.append(server)
        host, _, port = address.partition(":")
        end = time.monotonic() + BEGIN_S
        while server.poll() is None and time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"RocketMQ did not begin: {(self.folder / 'log').read_text()[-3000:]}")

    def _admin(self, *words: str) -> str:
        """Run the tool, which only reads or changes what may be changed twice."""
        for timeout in (TOOL_S, 2 * TOOL_S):
            with suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    [*self._java(), *SHORT_LIVED, *self._home(), ADMIN, *words],
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    cwd=self.folder,
                )
                break
        else:
            raise RuntimeError(f"{' '.join(words)} did not end, twice")
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} failed: {done.stdout}{done.stderr}"[-3000:])
        return done.stdout

    def _java(self) -> list[str]:
        return [find_java(), f"-Duser.home={self.folder}", "-cp", self._jars]

    def _written(self, name: str, settings: dict[str, object]) -> str:
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.folder / name).write_text(text)
        return str(self.folder / name)
