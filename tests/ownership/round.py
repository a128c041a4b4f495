"""Queries that share a topic's slots by ZooKeeper while they come, go, die and are cut off.

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
from rmq_spark.dev_servers.redis_server import LocalRedis
from rmq_spark.dev_servers.zookeeper_ensemble import LocalEnsemble, LocalZookeeper

from .. import programs
from ..processes import alive, family
from ..tcp_proxy import TcpProxy
from ..waiting import NotInTime, wait_until
from . import streams

TOPIC = "Streams"
SLOTS = 16
SESSION_S, LEASE_S, PAUSE_S = 4, 15, 7
# Starting a Spark takes a busy machine a minute.
PATIENCE_S = 300.0


@dataclass
class Query:
    """One query's program, its checkpoint, and the proxies that it reaches its servers through."""

    name: str
    job: dict[str, Any]
    log: Path
    proxies: dict[str, list[TcpProxy]]
    program: subprocess.Popen[bytes] | None = None
    state: str = "new"

    def start(self) -> None:
        self.program = subprocess.Popen(
            programs.command("ownership.stream_program", json.dumps(self.job)),
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
        for proxy in self.proxies[server]:
            proxy.cut()
        self.state = f"cut off from {server}"

    def mend(self, server: str) -> None:
        for proxy in self.proxies[server]:
            proxy.mend()
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
        """Starts a query of a new checkpoint."""
        redis = TcpProxy(self.redis.port)
        keepers = [TcpProxy(server.port) for server in self.ensemble.servers]
        options = {
            "redis.url": f"redis://127.0.0.1:{redis.port}/0",
            "topic": TOPIC,
            "maxRecordsPerTrigger": "200",
            "numPartitions": "4",
            "visibilityTimeout": f"{LEASE_S}s",
        }
        if self.owned:
            options["zookeeper.hosts"] = ",".join(f"127.0.0.1:{proxy.port}" for proxy in keepers)
            options["zookeeper.sessionTimeout"] = f"{SESSION_S}s"
        job = {
            "name": name,
            "options": options,
            "checkpoint": str(self.folder / f"checkpoint-{name}"),
            "out": str(self.out),
        }
        proxies = {"Redis": [redis], "ZooKeeper": keepers}
        query = self.queries[name] = Query(name, job, self.folder / f"{name}.log", proxies)
        query.start()
        return query

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
        self.until(f"{name} starts Spark", lambda: name in self._members().values())
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

        def settled() -> bool:
            figures = queue.figures()
            return not (figures.store.count or figures.prepare.count or figures.retry.count)

        self.until("all sent messages processed and committed", settled)
        return streams.verdict(self.sent, streams.read_works(self.out))


def full(round_: Round) -> None:
    """Every way to come and to go."""
    round_.join("q1")
    round_.join("q2", "q1")
    round_.join("q3", "q1", "q2")
    round_.work("all three work", 300)
    round_.queries["q2"].leave()
    round_.until_shared("q2 has left", "q1", "q3")
    round_.join("q4", "q1", "q3")
    round_.queries["q3"].kill()
    round_.until_shared("q3 was killed (-9)", "q1", "q4")
    round_.join("q3", "q1", "q4")
    pause(round_, round_.queries["q1"], "q3", "q4")
    cut(round_, round_.queries["q4"], "ZooKeeper", SESSION_S + 3)
    cut(round_, round_.queries["q3"], "Redis", 5)
    kill_leader(round_)
    round_.until_shared("the ensemble's leader was killed", "q1", "q3", "q4")
    round_.work("all three work", 300)


def short(round_: Round) -> None:
    """The ways that need no more than three starts of Spark."""
    first = round_.add("q1")
    second = round_.add("q2")
    round_.until_shared("q1 and q2 join", "q1", "q2")
    round_.work("both work", 60)
    pause(round_, first, "q2")
    second.kill()
    round_.until_shared("q2 was killed (-9)", "q1")
    kill_leader(round_)
    round_.until_shared("the ensemble's leader was killed", "q1")


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
