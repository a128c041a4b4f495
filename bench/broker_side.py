"""The broker of Kafka that benches compare with, and which versions they measure."""

import importlib.metadata
import re
from collections.abc import Sequence
from contextlib import suppress

from tests import kafka_broker, rocketmq_broker

PARTITIONS = 4
# The default heap is for servers with more memory than a bench should take.
JAVA = ("java", "-Xmx1g")


class Kafka(kafka_broker.KafkaBroker):
    """A broker that is its own controller, with Java's defaults except the heap."""

    def __init__(self) -> None:
        super().__init__(
            JAVA,
            share_coordinator_state_topic_replication_factor=1,
            share_coordinator_state_topic_min_isr=1,
        )

    def share_from_start(self, group: str) -> None:
        """Let a share group begin with the oldest record, not with the next one."""
        self.run_tool(
            *("org.apache.kafka.tools.ConfigCommand", "--bootstrap-server", self.address),
            *("--alter", "--entity-type", "groups", "--entity-name", group),
            *("--add-config", "share.auto.offset.reset=earliest"),
        )


def versions(*artifacts: str, packages: Sequence[str] = ()) -> str:
    """Say which versions are measured, of artifacts in the poms and of packages that are there."""
    poms = kafka_broker.POM.read_text() + rocketmq_broker.POM.read_text()
    names = re.findall(r"<artifactId>(.*)</artifactId>\s*<version>(.*)</version>", poms)
    found = [f"{name} {version}" for name, version in names if name in artifacts]
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found) + "."
