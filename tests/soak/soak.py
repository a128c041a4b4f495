"""Everything at once for an hour, with a random kill every minute: `make soak`.

Six queries, three services and the jobs of an outbox work on topics with all features, while
drivers, workers, services, jobs, Redis and ZooKeeper are killed. In the end every message must have
come to exactly one end, every promise must hold, nothing may be left over, and no process may grow.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

import rmq_spark
from rmq_spark.local.redis import LocalRedis
from rmq_spark.local.zookeeper import LocalEnsemble

from .. import postgres
from ..faults.cell import DURABLE
from ..jobs.outbox_round import OutboxRound
from ..processes import alive, family
from ..quick_spark import java_options
from ..rounds.jobs import Jobs, kill
from ..rounds.ledger import content, key, number_of
from ..rounds.tables import aligned
from ..waiting import is_drained, wait_until
from . import leftovers
from .law import HEADINGS, Outcome, kills_told
from .load import DOOMED, KEYS, Sender
from .parts import AUDIT, DRAIN_S, TOPICS, Queries, Services, create_topics
from .watch import JAVA_OPTIONS, MARK, Life, Watch

KILL_EVERY_S = 60.0
PAUSE_S = 5.0
ORDERS_A_SECOND = 3.0


@dataclass
class Soak:
    """One soak, in a folder of its own. database: of the outbox; None to do without the jobs."""

    folder: Path
    minutes: float
    seed: int
    tell: Callable[[str], None] = print
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    jobs: str = "no jobs: PostgreSQL or its JDBC driver is missing"

    def run(self) -> list[str]:
        """Runs it; returns everything that is wrong."""
        self._dice = random.Random(self.seed)
        mark = uuid.uuid4().hex
        os.environ.update({MARK: mark, **JAVA_OPTIONS})
        self._threads = set(threading.enumerate())
        self._watch = Watch(mark)
        try:
            with ExitStack() as stack:
                self._open(stack)
                wrong = self._work()
        finally:
            left = leftovers.processes(self._watch.marked())
            for name in (MARK, *JAVA_OPTIONS):
                del os.environ[name]
        return wrong + left + leftovers.threads(self._threads) + leftovers.files()

    # -- what runs

    def _open(self, stack: ExitStack) -> None:
        self.redis = stack.enter_context(LocalRedis(settings=DURABLE))
        self.ensemble = stack.enter_context(LocalEnsemble(3))
        self.broker = rmq_spark.connect(self.redis.url)
        stack.callback(self.broker.close)
        create_topics(self.broker)
        self.queries = Queries(
            self.folder,
            self.redis.url,
            self.ensemble.hosts,
            {"spark.driver.extraJavaOptions": java_options()},
        )
        stack.callback(self.queries.lane.abandon)
        self.services = Services(self.folder, self.redis.url)
        stack.callback(self.services.close)
        self.senders = {
            name: Sender(self.broker, name, per_second, f"{self.seed} {name}")
            for name, (_, _, per_second) in TOPICS.items()
        }
        self.outbox = self._open_outbox(stack)

    def _open_outbox(self, stack: ExitStack) -> OutboxRound | None:
        driver = postgres.found_driver()
        if not driver or not shutil.which("psql"):
            return None
        seconds = 60 * self.minutes
        orders = int(ORDERS_A_SECOND * seconds)
        (self.folder / "outbox").mkdir()
        database = stack.enter_context(postgres.Postgres())
        jobs = Jobs(self.folder / "outbox", self.redis.url, **database.variables)
        stack.callback(jobs.end)
        given = (driver, self.redis.url, jobs, self.seed, orders, seconds)
        return OutboxRound(database, *given)

    def _work(self) -> list[str]:
        for driver in self.queries.drivers:
            self.queries.begin(driver)
        for name in self.services.services:
            self.services.begin(name)
        for sender in self.senders.values():
            sender.start()
        self._begin_jobs()
        self._watch.start()
        until = time.monotonic() + 60 * self.minutes
        while (rest := until - time.monotonic()) > 0:
            time.sleep(min(rest, self._dice.uniform(0.5, 1.5) * KILL_EVERY_S))
            if time.monotonic() < until:
                self._disturb()
        return self._end()

    def _begin_jobs(self) -> None:
        if self.outbox is None:
            return
        self.outbox.create_tables()
        self._business = self.outbox.begin_business()
        self._jobs = {"relay": self.outbox.relay(), "export": self.outbox.export()}

    # -- disturbances

    def _disturb(self) -> None:
        """Kills, stops or cuts one thing, and brings back what a supervisor would."""
        ways: dict[str, Callable[[], None]] = {
            "driver killed": self._kill_driver,
            "Spark's Python killed": self._kill_python,
            "service killed": lambda: self._end_service(signal.SIGKILL),
            "service ended": lambda: self._end_service(signal.SIGTERM),
            "service stopped": self._stop_service,
            "Redis killed": self._kill_redis,
            "ZooKeeper killed": self._kill_zookeeper,
            "connections killed": self._kill_connections,
            "scripts flushed": self._flush_scripts,
        }
        if self.outbox is not None:
            ways |= {
                "relay killed": lambda: self._kill_job("relay"),
                "export killed": lambda: self._kill_job("export"),
            }
        # Each way as often as any other, in an order of chance.
        least = min(self.kills[each] for each in ways)
        way = self._dice.choice([each for each in ways if self.kills[each] == least])
        ways[way]()
        self.kills[way] += 1
        self.tell(f"{time.strftime('%H:%M:%S')} {way}")

    def _kill_driver(self) -> None:
        driver = self._dice.choice(self.queries.drivers)
        self.queries.lane.program(driver).kill(signal.SIGKILL)
        self.queries.begin(driver)

    def _kill_python(self) -> None:
        program = self.queries.lane.program(self._dice.choice(self.queries.drivers))
        below = [pid for pid in family(program.jvm)[1:] if alive(pid)]
        if below:
            os.kill(self._dice.choice(below), signal.SIGKILL)

    def _end_service(self, wanted: signal.Signals) -> None:
        name = self._dice.choice(list(self.services.running))
        process = self.services.running[name]
        process.send_signal(wanted)
        process.wait(DRAIN_S)
        self.services.begin(name)

    def _stop_service(self) -> None:
        process = self.services.running[self._dice.choice(list(self.services.running))]
        process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        process.send_signal(signal.SIGCONT)

    def _kill_redis(self) -> None:
        self.redis.kill()
        time.sleep(self._dice.uniform(0, 1))
        self.redis.start()

    def _kill_zookeeper(self) -> None:
        server = self._dice.choice(self.ensemble.servers)
        server.kill()
        time.sleep(PAUSE_S)
        server.start()

    def _kill_connections(self) -> None:
        self._client().client_kill_filter(_type="normal", skipme=True)

    def _flush_scripts(self) -> None:
        self._client().script_flush("SYNC")

    def _client(self) -> "redis.Redis":
        return redis.Redis(port=self.redis.port, decode_responses=True)

    def _kill_job(self, name: str) -> None:
        kill(self._jobs[name])
        self._jobs[name] = self.outbox.relay() if name == "relay" else self.outbox.export()

    # -- the end

    def _end(self) -> list[str]:
        for sender in self.senders.values():
            sender.end()
        wait_until(self._is_drained, "all topics to be drained", DRAIN_S)
        self.lives = self._watch.end()
        wrong = [text for life in self.lives for text in life.wrong()]
        wrong += self._end_jobs()
        wrong += self.services.end()
        self.queries.stop()
        self.outcomes = self._judge()
        wrong += [text for outcome in self.outcomes for text in outcome.wrong()]
        self.queries.lane.close()
        with self._client() as client:
            wrong += leftovers.connections(client)
            for topic in self.broker.topics():
                self.broker.delete(topic.name)
            return wrong + leftovers.keys(client)

    def _is_drained(self) -> bool:
        time.sleep(0.5)
        return all(is_drained(self.broker.queue(topic, group=g)) for topic, g in self._groups())

    def _groups(self) -> list[tuple[str, str]]:
        return [
            (topic, group)
            for topic, (_, settings, _) in TOPICS.items()
            for group in settings.get("groups", ("",))
        ]

    def _end_jobs(self) -> list[str]:
        if self.outbox is None:
            return []
        for session in self._business:
            session.join(DRAIN_S)
        for job in self._jobs.values():
            kill(job)
        self.outbox.drain()
        outcome = self.outbox.count(self.kills["relay killed"], 0, self.kills["export killed"])
        self.jobs = str(outcome)
        return [] if outcome.is_right else [f"the outbox: {outcome}"]

    def _judge(self) -> list[Outcome]:
        sinks = {topic: self.queries.rows(topic) for topic in TOPICS if topic != "Tasks"}
        found = []
        for topic, group in self._groups():
            sender = self.senders[topic]
            sent = {content(number) for number in range(sender.sent)}
            expected, allowed = sent, frozenset[str]()
            if topic == "Keyed":
                allowed = frozenset(content(number) for number in range(sender.sent - KEYS))
                expected = sent - allowed
            if topic == "Tasks":
                expected = {each for each in sent if not each.endswith(DOOMED)}
            if topic == "Tasks":
                delivered = self.services.delivered("threads", "processes")
            elif group == AUDIT:
                delivered = self.services.delivered("audit")
            else:
                delivered = Counter(_named(row) for row in sinks[topic])
            once = topic in ("Fixed", "Range", "Keyed", "Priority") and group != AUDIT
            figures = self.broker.queue(topic, group=group).figures()
            found.append(
                Outcome(
                    *(topic, group, figures, expected, delivered, once),
                    *(allowed, sender.unsure),
                )
            )
        return found


def _named(row: dict[str, object]) -> str:
    """A row's content; with another key than it was sent with, it counts as never sent."""
    text, name = str(row["content"]), row["key"]
    right = name is None or key(number_of(text), KEYS) == name
    return text if right else f"{name}: {text}"


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Gives all programs a folder of this soak for temporary files, so that leftovers are seen."""
    java_options()  # what it writes once is for all
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    inside = folder / "tmp"
    inside.mkdir()
    for each in (folder, inside):
        each.chmod(0o755)  # PostgreSQL may run as another user
    os.environ["TMPDIR"] = tempfile.tempdir = str(inside)
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        del os.environ["TMPDIR"]
        if before[1] is not None:
            os.environ["TMPDIR"] = before[1]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def report(soak: Soak) -> None:
    """What happened, as tables."""
    say(kills_told(soak.kills))
    if soak.outcomes:
        say(aligned([HEADINGS, *(each.cells() for each in soak.outcomes)]))
    say(f"outbox: {soak.jobs}")
    lives = [_life_cells(life) for life in sorted(soak.lives, key=lambda life: life.name)]
    head = ["process", "minutes", "MiB", "MiB a minute", "bound", "threads", "files"]
    say(aligned([head, *lives]) if lives else "no process lived long enough to judge its memory")


def _life_cells(life: Life) -> list[str]:
    last = life.samples[-1]
    return [
        *(life.name, f"{life.seconds / 60:.1f}", f"{last.memory:.0f}"),
        *(f"{life.mib_a_minute:+.2f}", f"{life.bound:.0f}", str(last.threads), str(last.files)),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="%(default)g")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random; %(default)s")
    given = parser.parse_args()
    if given.minutes < 1:
        parser.error(f"--minutes={given.minutes:g}: 1 or more.")
    return given


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    given = arguments()
    folder = Path(tempfile.mkdtemp(prefix="rmq-soak-"))
    with temporary_files_in(folder):
        soak = Soak(folder, given.minutes, given.seed, say)
        wrong = soak.run()
    report(soak)
    for text in wrong:
        say(f"WRONG: {text}")
    if wrong:
        say(f"What it left behind is in {folder}")
        return 1
    say("Every message came to exactly one end, every promise held, and nothing was left over.")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
