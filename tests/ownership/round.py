"""Queries and services that share a topic's slots by ZooKeeper while they come, go, and die.

A producer sends serial streams; what the queries note is judged at the end. Every step waits until
the slots are shared out as they should be, and tells how long that took and how many messages were
processed meanwhile.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError

import rmq_spark
from rmq_spark.local.redis import LocalRedis
from rmq_spark.local.zookeeper import LocalEnsemble, LocalZookeeper

from .. import programs
from ..processes import alive, family
from ..rounds.proxy import Proxy
from ..waiting import NotInTime, is_drained, wait_until
from . import streams

TOPIC = "Streams"
SLOTS = 16
SESSION_S, LEASE_S, PAUSE_S = 4, 15, 7
# Starting a Spark takes a busy machine a minute.
PATIENCE_S = 300.0
# The kinds of listeners; the name of a service begins with its kind.
SERVICES = ("threads", "processes", "asyncio")


@dataclass
class Query:
    """The program of a query or a service, and the proxies to its servers."""

    name: str
    module: str
    job: dict[str, Any]
    log: Path
    proxies: dict[str, Proxy]
    program: subprocess.Popen[bytes] | None = None
    state: str = "new"

    def start(self) -> None:
        self.program = subprocess.Popen(
            programs.command(f"ownership.{self.module}", json.dumps(self.job)),
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("ab"),
            env=programs.environment(),
            start_new_session=True,
        )
        self.state = "running"

    def signal(self, wanted: signal.Signals) -> None:
        """To the driver, its JVM and all their workers."""
        for pid in family(self.program.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, wanted)

    def leave(self) -> None:
        """Ends it as its user would."""
        self.program.terminate()
        self.program.wait(PATIENCE_S)
        self.state = "left"

    def kill(self) -> None:
        pids = family(self.program.pid)
        self.signal(signal.SIGKILL)
        self.program.wait()
        while any(alive(pid) for pid in pids):
            time.sleep(0.01)
        self.state = "killed"

    def cut(self, server: str) -> None:
        self.proxies[server].cut()
        self.state = f"cut off from {server}"

    def mend(self, server: str) -> None:
        self.proxies[server].mend()
        self.state = "running"


@dataclass
class Step:
    """What happened, how long until the slots were shared out so, and what was done meanwhile."""

    what: str
    seconds: float
    processed: int


@dataclass
class Round:
    """A topic, its servers, a producer and the queries. ``tell`` is called with a line a change."""

    folder: Path
    per_second: float = 60.0
    seed: int = 1
    owned: bool = True
    tell: Callable[[str], None] = print
    queries: dict[str, Query] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    changes: int = 0  # of who shares the slots

    def __post_init__(self) -> None:
        self.sent: list[tuple[int, str]] = []
        self._enough = threading.Event()
        self.out = self.folder / "out"
        self.out.mkdir()

    @contextmanager
    def running(self) -> Iterator["Round"]:
        """Everything but the queries, which end with it."""
        with ExitStack() as open_:
            self.redis = open_.enter_context(LocalRedis(settings={"appendonly": "no"}))
            self.ensemble = open_.enter_context(LocalEnsemble(3))
            self.broker = rmq_spark.connect(self.redis.url)
            open_.callback(self.broker.close)
            self.broker.create(TOPIC, "FixedTime", SLOTS)
            self.eye = KazooClient(self.ensemble.hosts, timeout=SESSION_S)
            self.eye.start()
            open_.callback(self._close_eye)
            open_.callback(self._end_queries)
            self._producer = threading.Thread(target=self._produce, daemon=True)
            self._producer.start()
            yield self

    def _close_eye(self) -> None:
        self.eye.stop()
        self.eye.close()

    def _end_queries(self) -> None:
        for query in self.queries.values():
            if query.program and query.program.poll() is None:
                query.signal(signal.SIGCONT)
                query.kill()

    def _produce(self) -> None:
        queue = self.broker.queue(TOPIC)
        begun = time.monotonic()
        for stream, content in streams.contents(self.seed):
            next_at = begun + len(self.sent) / self.per_second
            if self._enough.wait(max(0.0, next_at - time.monotonic())):
                return
            queue.send([content], slot_basis=f"stream {stream}", fixed_time=queue.now_ms() + 20)
            self.sent.append((stream, content))

    # -- queries

    def add(self, name: str) -> Query:
        """Starts a service if its name begins with a kind of listener, else a query."""
        redis = Proxy(self.redis.port)
        keepers = Proxy(*(server.port for server in self.ensemble.servers))
        url = f"redis://127.0.0.1:{redis.port}/0"
        owning = {}
        if self.owned:
            hosts = ",".join(f"127.0.0.1:{port}" for port in keepers.ports)
            owning = {"hosts": hosts, "sessionTimeout": f"{SESSION_S}s"}
        kind = next((kind for kind in SERVICES if name.startswith(kind)), None)
        if kind is None:
            module, job = "stream_program", self._job_of_query(name, url, owning)
        else:
            module, job = "listener_program", _job_of_service(kind, url, owning)
        job |= {"name": name, "out": str(self.out)}
        proxies = {"Redis": redis, "ZooKeeper": keepers}
        query = Query(name, module, job, self.folder / f"{name}.log", proxies)
        self.queries[name] = query
        query.start()
        return query

    def _job_of_query(self, name: str, url: str, owning: dict[str, str]) -> dict[str, Any]:
        options = {
            "redis.url": url,
            "topic": TOPIC,
            "maxRecordsPerTrigger": "200",
            "numPartitions": "4",
            "visibilityTimeout": f"{LEASE_S}s",
            **{f"zookeeper.{option}": value for option, value in owning.items()},
        }
        return {"options": options, "checkpoint": str(self.folder / f"checkpoint-{name}")}

    # -- what is seen

    def owners(self) -> dict[int, str]:
        """The query that owns each slot, as ZooKeeper has it now."""
        with suppress(KazooException, TypeError):
            members = self._members()
            slots = self.eye.get_children(f"/rmq/{TOPIC}/slots")
            return {int(slot): members.get(self._owner(slot), "?") for slot in slots}
        return {}

    def _owner(self, slot: str) -> str:
        with suppress(NoNodeError):
            return self.eye.get(f"/rmq/{TOPIC}/slots/{slot}")[0].decode()
        return ""

    def _members(self) -> dict[str, str]:
        """Names of members in ZooKeeper, and the queries they belong to."""
        found: dict[str, str] = {}
        drivers = {
            pid: query.name
            for query in self.queries.values()
            if query.program
            for pid in [query.program.pid, *family(query.program.pid)]
        }
        names: list[str] = []
        with suppress(NoNodeError):  # nobody was there yet
            names = self.eye.get_children(f"/rmq/{TOPIC}/members")
        for name in names:
            with suppress(NoNodeError):
                about = json.loads(self.eye.get(f"/rmq/{TOPIC}/members/{name}")[0])
                found[name] = drivers.get(about["pid"], "gone")
        return found

    def processed(self) -> Counter[str]:
        """Messages noted so far, by query."""
        return Counter(
            {
                name: sum(
                    file.read_bytes().count(b"\n") for file in self.out.glob(f"{name}-*.jsonl")
                )
                for name in self.queries
            }
        )

    # -- steps

    def until_shared(self, what: str, *names: str) -> Step:
        """Waits until these queries own all slots, balanced to within one."""
        low, extra = divmod(SLOTS, len(names))
        wanted = sorted([low + 1] * extra + [low] * (len(names) - extra))

        def shared() -> bool:
            counts = Counter(self.owners().values())
            return set(counts) == set(names) and sorted(counts.values()) == wanted

        self.changes += 1
        return self.until(what, shared)

    def until(self, what: str, holds: Callable[[], Any]) -> Step:
        """Waits for a condition. Raises NotInTime naming the step."""
        begun, before = time.monotonic(), self.processed().total()
        try:
            wait_until(holds, what, PATIENCE_S)
        except NotInTime as error:
            raise NotInTime(f"{error}; {self.owners()}") from None
        seconds = time.monotonic() - begun
        step = Step(what, seconds, self.processed().total() - before)
        self.steps.append(step)
        self.tell(f"{what}: {step.seconds:.1f} s, {step.processed} messages meanwhile")
        return step

    def join(self, name: str, *others: str) -> None:
        """Starts a query, anew or again, and waits for its share."""
        if name in self.queries:
            self.queries[name].start()
        else:
            self.add(name)
        self.until(f"{name} starts", lambda: name in self._members().values())
        self.until_shared(f"{name} has joined", name, *others)

    def work(self, what: str, messages: int) -> None:
        """Waits until so many more messages are processed."""
        goal = self.processed().total() + messages
        self.until(what, lambda: self.processed().total() >= goal)

    def finish(self) -> streams.Verdict:
        """Sends no more, waits until all is processed and settled, and gives the verdict."""
        self._enough.set()
        self._producer.join()
        queue = self.broker.queue(TOPIC)

        self.until("all sent messages processed and committed", lambda: is_drained(queue))
        return streams.verdict(self.sent, streams.read_works(self.out))


def _job_of_service(kind: str, url: str, owning: dict[str, str]) -> dict[str, Any]:
    settings = {"workers": 4, "visibility_timeout": f"{LEASE_S}s", "zookeeper": owning or None}
    return {"kind": kind, "url": url, "topic": TOPIC, "settings": settings}


def full(round_: Round) -> None:
    """Every way to come and to go, for queries and services."""
    round_.join("q1")
    round_.join("q2", "q1")
    round_.join("threads", "q1", "q2")
    round_.work("all three work", 300)
    round_.queries["q2"].leave()
    round_.until_shared("q2 has left", "q1", "threads")
    round_.join("q4", "q1", "threads")
    round_.queries["threads"].kill()
    round_.until_shared("threads was killed (-9)", "q1", "q4")
    round_.join("processes", "q1", "q4")
    pause(round_, round_.queries["q1"], "processes", "q4")
    cut(round_, round_.queries["q4"], "ZooKeeper", SESSION_S + 3)
    cut(round_, round_.queries["processes"], "Redis", 5)
    kill_leader(round_)
    round_.until_shared("the ensemble's leader was killed", "q1", "processes", "q4")
    round_.work("all three work", 300)


def short(round_: Round) -> None:
    """A query and a service; the ways that need no more than two starts of Spark."""
    query, service = round_.add("q1"), round_.add("threads")
    round_.until_shared("q1 and threads join", "q1", "threads")
    round_.work("both work", 60)
    pause(round_, query, "threads")
    service.kill()
    round_.until_shared("threads was killed (-9)", "q1")
    kill_leader(round_)
    round_.until_shared("the ensemble's leader was killed", "q1")


def services(round_: Round) -> None:
    """Every way to come and to go, for services alone: one of each kind."""
    all_join(round_)
    for name in SERVICES:
        for way in (leave, kill, pause_beside, cut_off):
            way(round_, name)
    kill_leader(round_)
    round_.until_shared("the ensemble's leader was killed", *SERVICES)
    round_.work("all three work", 100)


def few_services(round_: Round) -> None:
    """A way for each kind of service."""
    all_join(round_)
    for name, way in zip(SERVICES, (kill, pause_beside, cut_off), strict=True):
        way(round_, name)
    round_.work("all three work", 50)


def all_join(round_: Round) -> None:
    for name in SERVICES:
        round_.add(name)
    round_.until_shared("all three join", *SERVICES)
    round_.work("all three work", 50)


def _others(name: str) -> list[str]:
    return [each for each in SERVICES if each != name]


def leave(round_: Round, name: str) -> None:
    """SIGTERM to a service, and a new start."""
    round_.queries[name].leave()
    round_.until_shared(f"{name} has left (SIGTERM)", *_others(name))
    round_.join(name, *_others(name))


def kill(round_: Round, name: str) -> None:
    """kill -9 of a service, and a new start."""
    round_.queries[name].kill()
    round_.until_shared(f"{name} was killed (-9)", *_others(name))
    round_.join(name, *_others(name))


def pause_beside(round_: Round, name: str) -> None:
    """SIGSTOP of a service for longer than its session, then SIGCONT."""
    pause(round_, round_.queries[name], *_others(name))


def cut_off(round_: Round, name: str) -> None:
    """Cuts a service off from ZooKeeper until its session has ended, and from Redis."""
    cut(round_, round_.queries[name], "ZooKeeper", SESSION_S + 3)
    cut(round_, round_.queries[name], "Redis", 5)


def pause(round_: Round, query: Query, *others: str) -> None:
    """SIGSTOP for longer than its session, then SIGCONT."""
    query.signal(signal.SIGSTOP)
    query.state = "stopped"
    until = time.monotonic() + PAUSE_S
    round_.until_shared(f"{query.name} is stopped (SIGSTOP) past its session", *others)
    time.sleep(max(0.0, until - time.monotonic()))
    query.signal(signal.SIGCONT)
    query.state = "running"
    round_.until_shared(f"{query.name} goes on (SIGCONT)", query.name, *others)


def cut(round_: Round, query: Query, server: str, seconds: float) -> None:
    """Cuts a query off from a server for a while."""
    names = [name for name, each in round_.queries.items() if each.state == "running"]
    query.cut(server)
    if server == "ZooKeeper":
        others = [name for name in names if name != query.name]
        round_.until_shared(f"{query.name} is cut off from ZooKeeper", *others)
    time.sleep(seconds)
    query.mend(server)
    round_.until_shared(f"{query.name} reaches {server} again", *names)


def kill_leader(round_: Round) -> LocalZookeeper:
    """kill -9 of the ensemble's leader; it comes back once another leads."""
    leader = round_.ensemble.leader
    leader.kill()
    round_.until("another server leads", lambda: round_.ensemble.leader not in (None, leader))
    leader.start()
    return leader


@contextmanager
def folder() -> Iterator[Path]:
    """For one round."""
    with tempfile.TemporaryDirectory(prefix="rmq-ownership-") as path:
        yield Path(path)
