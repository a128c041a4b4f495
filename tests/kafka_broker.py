"""A Kafka broker of one's own, in KRaft mode from its jars, and the jars of Spark's connector."""

import functools
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from rmq_spark.local.redis import free_port

from .jars import jars

POM = Path(__file__).parent / "ports" / "kafka_pom.xml"
# Short-lived code is not worth compiling twice, nor 2 cores many collectors.
JAVA = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "num.partitions": 3,
}
QUIET = {"log_level": 2}  # of the client; it logs each attempt to connect
ISOLATIONS = ("read_committed", "read_uncommitted")
# Releases of the connector for earlier versions of Spark; later ones take the newest.
OF_SPARK = {"4.0": "4.0.0", "4.1": "4.1.1"}
BEGIN_S = 120
READ_S = 60


def connector() -> str:
    """The jars of Spark's Kafka connector, for spark.jars; without them the test is skipped."""
    version = OF_SPARK.get(pyspark.__version__[:3])
    return ",".join(jars(POM, "connector", **({"spark": version} if version else {})))


def found_connector() -> str:
    """The same; empty where Maven does not get them."""
    try:
        return connector()
    except (pytest.fail.Exception, pytest.skip.Exception):
        return ""


class KafkaBroker:
    """One broker, gone with its data at the end. A context manager.

    java: the command that starts a JVM. settings: more settings of the broker.
    """

    def __init__(self, java: Sequence[str] = JAVA, **settings: object) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        controller = f"127.0.0.1:{free_port()}"
        self._command = java
        self._settings = {
            **SETTINGS,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "KafkaBroker":
        self._java = [*self._command, "-cp", ":".join(jars(POM, "broker"))]
        self._folder = Path(tempfile.mkdtemp(prefix="rmq-kafka-"))
        settings = {**self._settings, "log.dirs": self._folder / "data"}
        self._config = self._folder / "server.properties"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = ("-t", uuid.uuid4().hex[:22], "-c", self._config)
        try:
            self.run_tool("kafka.tools.StorageTool", "format", *cluster)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start it, on what an earlier start has left, and wait until it answers."""
        self._server = self._run("kafka.Kafka", self._config)
        end = time.monotonic() + BEGIN_S
        while not self._answers():
            assert self._server.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.1)

    def _answers(self) -> bool:
        host, _, port = self.address.partition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return bool(self._admin().list_topics(timeout=2).brokers)
        except (OSError, KafkaException):
            return False

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, **QUIET})

    def kill(self) -> None:
        """Kill it (-9)."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def log(self) -> str:
        """The end of what it wrote."""
        return (self._folder / "log").read_text(errors="replace")[-3000:]

    def create(self, topic: str, partitions: int = 3, **settings: Any) -> str:
        """Create a topic, and return its name."""
        config = {name.replace("_", "."): str(value) for name, value in settings.items()}
        admin = self._admin()
        made = admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
        made[topic].result(BEGIN_S)
        return topic

    def records(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Read all records of a topic, partition by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": uuid.uuid4().hex,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        found: list[Message] = []
        try:
            partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, at, OFFSET_BEGINNING) for at in partitions])
            left = len(partitions)
            end = time.monotonic() + READ_S
            while left:
                assert time.monotonic() < end, f"{topic} has no end; {len(found)} records are read"
                for one in consumer.consume(10_000, timeout=1):
                    if one.error() is None:
                        found.append(one)
                    else:
                        assert one.error().name() == "_PARTITION_EOF", one.error()
                        left -= 1
        finally:
            consumer.close()
        return sorted(found, key=lambda record: (record.partition(), record.offset()))

    def ends(self, topic: str, isolation: str = "read_uncommitted") -> list[int]:
        """Return the offsets behind the last records of the partitions of a topic."""
        partitions = self._watcher.list_topics(topic, timeout=READ_S).topics[topic].partitions
        asked = {TopicPartition(topic, at): OffsetSpec.latest() for at in partitions}
        level = IsolationLevel[isolation.upper()]
        found = self._watcher.list_offsets(asked, isolation_level=level)
        return [one.result(READ_S).offset for one in found.values()]

    @functools.cached_property
    def _watcher(self) -> AdminClient:
        return self._admin()

    @property
    def pid(self) -> int:
        """The process of the broker."""
        assert self._server is not None
        return self._server.pid

    def run_tool(self, *arguments: object) -> None:
        """Run a command-line tool of Kafka, which must succeed."""
        assert self._run(*arguments).wait(BEGIN_S) == 0, self.log()

    def _run(self, *arguments: object) -> "subprocess.Popen[bytes]":
        log = (self._folder / "log").open("ab")
        command = [*self._java, *map(str, arguments)]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
