"""One cell: a fault, a sink, a Redis of its own, and real queries that go on meanwhile."""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import redis

import rmq_spark
from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol.scripts import scripts_for
from rmq_spark.redis.server import FIRST_WITH_FLAGS

from ..processes import client_of
from ..rounds.driver import Lane
from ..rounds.ledger import Feed, key, number_of
from ..rounds.proxy import Proxy
from ..waiting import is_drained, wait_until
from .cluster import new_cluster, settings_of
from .fault import Fault
from .verdict import PHASES, Verdict, overtaken

TOPIC = "Orders"
SLOTS = 8
# Small cells would take many batches.
LEAST_A_BATCH = 2000
# What is confirmed is on disk: only so can nothing be lost when the server is killed.
DURABLE = {"appendonly": "yes", "appendfsync": "always"}
# A moment may be missed, such as when a process has ended by itself: then it is tried again.
MOST_MISSES = 4
DRAIN_S = 900.0


class Cell:
    """What an injection has at hand."""

    queries: ClassVar = {"producer": "producer", "consumer": "consumer"}  # and their drivers
    settings = DURABLE
    files = 2  # for each injection

    def __init__(
        self, lane: Lane, fault: Fault, sink: str, folder: Path, seed: str, keys: int = 0
    ) -> None:
        self.lane, self.fault, self.sink, self.folder = lane, fault, sink, folder
        self.dice = random.Random(seed)
        self.keys = keys
        self.gates = folder / "gates"
        self.gates.mkdir(parents=True)
        self.feed = Feed(folder, keys)
        self.redis = self._new_redis()
        self.file = 0  # messages in one
        self.forgettable: set[str] = set()  # what Redis may forget, although it was accepted
        self._second_half = True
        self._outs: list[tuple[str, str]] = []

    @property
    def keyed(self) -> bool:
        """Whether the topic is keyed."""
        return bool(self.keys)

    @staticmethod
    def keys_for(file: int) -> int:
        """Return the number of keys for files of so many messages: one payload of each a file."""
        return file

    def _new_redis(self) -> Any:
        return LocalRedis(settings=self.settings)

    # -- queries

    def begin(self, query: str, program: str | None = None) -> None:
        """Starts a query, in its own driver if no other is told."""
        self.lane.program(program or self.queries[query]).order(
            "start", query, job=self._job(query)
        )

    def _job(self, query: str) -> dict[str, Any]:
        there = {**self.address, **self.fault.client}
        job = {
            "gates": str(self.gates),
            "checkpoint": str(self.folder / f"checkpoint-{query}"),
            "keyed": self.keyed,
        }
        if query == "producer":
            sending = {"topic": TOPIC, "deliveryGuarantee": self.fault.guarantee}
            source = str(self.feed.source)
            sends = (
                "content STRING, slotBasis STRING, fixedTime BIGINT" + ", key STRING" * self.keyed
            )
            given = {"kind": query, "source": source, "sends": sends}
            return {**given, "options": {**there, **sending}, **job}
        reading = {
            "topic": TOPIC,
            "visibilityTimeout": self.fault.lease,
            "pollInterval": "50ms",
            "maxRecordsPerTrigger": str(max(self.file, LEAST_A_BATCH)),
            "numPartitions": "3",
        }
        out = str(self.folder / f"out-{query}")
        if (query, out) not in self._outs:
            self._outs.append((query, out))
        return {
            **{"kind": self.sink, "out": out, **job},
            **{"options": {**there, **reading}, "sinkOptions": there},
        }

    # -- Redis

    @property
    def url(self) -> str:
        """Redis as the queries see it, through the proxy."""
        return f"redis://127.0.0.1:{self.proxy.port}/0"

    @property
    def address(self) -> dict[str, str]:
        """The options by which the queries find Redis."""
        return {"redis.url": self.url}

    def clients(self) -> list[redis.Redis]:
        """Clients of the servers of which Redis consists, past the proxy."""
        return [self.broker.server.client]

    def _open_redis(self, stack: ExitStack) -> None:
        self.lane.servers = {"redis": self.redis}
        stack.enter_context(self.redis)
        self.proxy = Proxy(self.redis.port)
        stack.callback(self.proxy.close)
        self._open_topic(stack, rmq_spark.connect(self.redis.url))

    def _open_topic(self, stack: ExitStack, broker: rmq_spark.Broker) -> None:
        self.broker = broker
        stack.callback(lambda: self.broker.close())
        self.broker.create(TOPIC, "FixedTime", SLOTS, keyed=self.keyed)
        self.queue = self.broker.queue(TOPIC)
        flags = self.broker.server.version >= FIRST_WITH_FLAGS
        self.proxy.known = {each.sha.encode(): name for name, each in scripts_for(flags).items()}

    # -- a cell's life

    def run(self, messages: int, times: int) -> Verdict:
        """Begins, injects as often as asked for, drains, compares."""
        fault = self.fault
        verdict = Verdict(fault.text, self.sink, fault.lease, fault.promise, least=times)
        since = time.monotonic()
        with ExitStack() as stack:
            try:
                self._open_redis(stack)
                self._spark(stack)
                self._run(verdict, messages, times)
            except Exception as error:
                verdict.troubles.append(f"{type(error).__name__}: {error}")
                self.lane.close()
        verdict.seconds = time.monotonic() - since
        return verdict

    def _spark(self, stack: ExitStack) -> None:
        if self.fault.speculates:
            cluster = stack.enter_context(new_cluster(self.folder))
            self.lane.settings("consumer", settings_of(cluster))
            stack.callback(self.lane.settings, "consumer", {})

    def _run(self, verdict: Verdict, messages: int, times: int) -> None:
        self.file = messages // (self.files * times)
        for query in self.queries:  # all start up at once
            self.lane.program(self.queries[query])
        for query in self.queries:
            self.begin(query)
        self._inject(verdict, times)
        if messages > self.feed.given:
            self.feed.give(messages - self.feed.given)
        self._drain()
        self._compare(verdict)

    def _compare(self, verdict: Verdict) -> None:
        """Fills in what became of the messages."""
        rows = self._rows()
        counted = [(row["content"], row["deliveryCount"]) for row in rows]
        if self.keyed:
            self.forgettable |= self.feed.superseded()
            numbered = [(row["key"], number_of(row["content"]), row["claimedAt"]) for row in rows]
            verdict.overtaken = overtaken(numbered)
            # A payload that comes with another key was never sent.
            counted = [
                (text if key(number, self.keys) == name else f"{name}: {text}", count)
                for (text, count), (name, number, _) in zip(counted, numbered, strict=True)
            ]
        verdict.compare(self.feed.contents(), counted, self.forgettable)

    def _inject(self, verdict: Verdict, times: int) -> None:
        rest = [self.dice.choice(PHASES) for _ in range(times - len(PHASES))]
        phases = [*PHASES, *rest]
        self.dice.shuffle(phases)
        misses = 0
        while phases:
            phase = phases.pop()
            if self._one(phase):
                verdict.injected[phase] += 1
            elif misses < MOST_MISSES:
                misses += 1
                phases.append(phase)

    def _one(self, phase: str) -> bool:
        """Messages come in, the phase is entered and held, the fault is injected."""
        if self.keyed and self.fault.guarantee == "atLeastOnce":
            # What the dead sends late, or its successor again, must be the newest of its keys.
            wait_until(self._all_sent, "the producer to have sent all files", DRAIN_S)
        moment = self.fault.places(self.sink)[phase].choose(self.dice, self.proxy, self.gates)
        self._second_half = False
        try:
            self.feed.give(self.file)
            moment.wait()
            time.sleep(self.dice.uniform(0, 0.3))
            return self.fault.inject(self, moment)
        finally:
            moment.release()
            self.give_second_half()

    def give_second_half(self) -> None:
        """The round's other messages: once, at the latest when the fault is over."""
        if not self._second_half:
            self._second_half = True
            self.feed.give(self.file)

    def _all_sent(self) -> bool:
        """Whether the producer's query has ended the batch of each file."""
        return self.batches("producer") == self.feed.files

    def batches(self, query: str) -> int:
        """How many batches a query has ended."""
        commits = (self.folder / f"checkpoint-{query}" / "commits").glob("[0-9]*")
        return max((int(each.name) for each in commits), default=-1) + 1

    # -- the end

    def _drain(self) -> None:
        if "producer" in self.queries:
            self.lane.program("producer").ask("finish", "producer", DRAIN_S)
        wait_until(self._empty, "all queues to be empty", DRAIN_S)
        self.lane.program("consumer").ask("stop", "consumer", DRAIN_S)

    def _empty(self) -> bool:
        time.sleep(0.1)
        return is_drained(self.queue)

    def _rows(self) -> list[dict[str, Any]]:
        """What all sinks hold."""
        rows: list[dict[str, Any]] = []
        consumer = self.lane.program("consumer")
        for query, out in self._outs:
            into = self.folder / f"found-{query}.parquet"
            consumer.ask("collect", query, DRAIN_S, out=out, into=str(into))
            if into.exists():
                rows += pq.read_table(into).to_pylist()
        return rows

    def last_caller(self, script: str) -> int | None:
        """The process that called a script last."""
        ends = self.proxy.last_ends.get(script)
        return client_of(*ends) if ends else None
