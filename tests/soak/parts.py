"""What runs in a soak: its topics, six queries in two drivers, and services."""

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import pyarrow.parquet as pq

from rmq_spark.client import Broker

from ..rounds.driver import Lane
from ..rounds.service import Service
from .load import DOOMED

LEASE = "60s"
DRAIN_S = 900.0
SESSION = {"spark.driver.memory": "512m"}  # so that garbage does not look like a leak
AUDIT = "audit"


@dataclass(frozen=True)
class Consumption:
    """A query: the topic that it reads, its driver, its sink, and whether it owns its slots."""

    name: str
    topic: str
    driver: str
    sink: str
    owns: bool = False


# Each feature once. Settings of the topics, and their messages a second.
TOPICS: dict[str, tuple[str, dict[str, Any], float]] = {
    "Fixed": ("FixedTime", {"groups": ("", AUDIT)}, 40),
    "Range": ("RangeMerge", {}, 40),
    "Keyed": ("FixedTime", {"keyed": True}, 40),
    "Priority": ("Priority", {"retry_backoff": "500ms, 2s"}, 40),
    "Owned": ("FixedTime", {"exclusive": True}, 40),
    "Tasks": ("FixedTime", {"max_retries": 2}, 40),
}
SLOTS = 8
QUERIES = (
    Consumption("fixed", "Fixed", "one", "parquet"),
    Consumption("range", "Range", "one", "keyed"),
    Consumption("owned-1", "Owned", "one", "keyed", owns=True),
    Consumption("keyed", "Keyed", "two", "keyed"),
    Consumption("priority", "Priority", "two", "parquet"),
    Consumption("owned-2", "Owned", "two", "keyed", owns=True),
)
# Kind of listener, topic, and what the program is told besides.
SERVICES = {
    "threads": ("threads", "Tasks", ("", DOOMED)),
    "processes": ("processes", "Tasks", ("", DOOMED)),
    "audit": ("asyncio", "Fixed", (AUDIT,)),
}


class Queries:
    """The six queries; a driver that was killed starts again with its queries."""

    def __init__(self, folder: Path, url: str, hosts: str, settings: dict[str, str]) -> None:
        self.lane = Lane(folder / "lane", {**SESSION, **settings})
        self.drivers = sorted({each.driver for each in QUERIES})
        self._folder, self._url, self._hosts = folder, url, hosts
        (folder / "gates").mkdir()

    def begin(self, driver: str) -> None:
        """Starts a driver's queries, and the driver if it does not run."""
        for each in QUERIES:
            if each.driver == driver:
                self.lane.program(driver).order("start", each.name, job=self._job(each))

    def _job(self, query: Consumption) -> dict[str, Any]:
        options = {
            **{"redis.url": self._url, "topic": query.topic, "visibilityTimeout": LEASE},
            **{"numPartitions": "2", "maxRecordsPerTrigger": "2000"},
        }
        if query.owns:
            options |= {"zookeeper.hosts": self._hosts, "zookeeper.sessionTimeout": "10s"}
        return {
            **{"kind": query.sink, "keyed": TOPICS[query.topic][1].get("keyed", False)},
            **{"gates": str(self._folder / "gates"), "out": str(self._out(query))},
            "checkpoint": str(self._folder / f"checkpoint-{query.name}"),
            **{"options": options, "sinkOptions": {"redis.url": self._url}},
        }

    def _out(self, query: Consumption) -> Path:
        return self._folder / f"out-{query.name}"

    def stop(self) -> None:
        """Stops all queries; their drivers go on."""
        for each in QUERIES:
            self._ask("stop", each)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """What the sinks of a topic's queries hold."""
        rows: list[dict[str, Any]] = []
        for each in QUERIES:
            into = self._folder / f"found-{each.name}.parquet"
            if each.topic == topic:
                self._ask("collect", each, out=str(self._out(each)), into=str(into))
                rows += pq.read_table(into).to_pylist() if into.exists() else []
        return rows

    def _ask(self, do: str, query: Consumption, **more: str) -> None:
        self.lane.program(query.driver).ask(do, query.name, DRAIN_S, **more)


class Services:
    """The services; each is a process that is started again when it was killed."""

    def __init__(self, folder: Path, url: str) -> None:
        self.services: dict[str, Service] = {}
        self.running: dict[str, Popen[bytes]] = {}
        for name, (kind, topic, more) in SERVICES.items():
            (folder / name).mkdir()
            self.services[name] = Service(kind, url, folder / name, topic, more)

    def begin(self, name: str) -> None:
        self.running[name] = self.services[name].start(name, LEASE)

    def end(self) -> list[str]:
        """Ends all by SIGTERM; returns what ended with an error."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: process.wait(DRAIN_S) for name, process in self.running.items()}
        return [f"the service {name} ended with {code}" for name, code in codes.items() if code]

    def close(self) -> None:
        for service in self.services.values():
            service.close()

    def delivered(self, *names: str) -> Counter[str]:
        """What these have noted."""
        counts: Counter[str] = Counter()
        for name in names:
            counts.update({text.decode(): n for text, n in self.services[name].counts().items()})
        return counts


def create_topics(broker: Broker) -> None:
    for name, (kind, settings, _) in TOPICS.items():
        broker.create(name, kind, SLOTS, **settings)
