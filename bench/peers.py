"""How fast are we beside other queues on the same Redis and machine?

BullMQ (plain, and delayed with deduplication), dramatiq, Celery, and RMQ as its paper describes it:
one message per script call and round trip. All get the same contents of 34 bytes. A round to warm
up tries each peer with several numbers of processes and other settings, and the best goes on. Peers
are timed from the first to the last message (watching.py), we by the time spent in df.write and in
triggers. `make bench-peers` installs the peers and runs this.
"""

import importlib.metadata
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from measuring import Figure, Report, arguments_of
from pyspark.sql import Row, SparkSession
from receive import Receiver
from send import Sender
from spark_side import folder, numbered, session
from watching import FOLDER, Crew, Peer, Watcher

import rmq_spark
from rmq_spark.local.redis import LocalRedis
from rmq_spark.topics.keys import Keys

PYTHON = sys.executable
BULLMQ_KEYS = ("bull:Bench:wait", "bull:Bench:delayed", "bull:Bench:active")
# A call claims one message, so a slot holds as many messages as records of claims.
RMQ_KEYS = tuple(
    key for slot in range(64) for key in (Keys("Bench").store(slot), Keys("Bench").claims(slot))
)
# The least that our speed may be of a peer's.
TARGETS = {
    ("send", "BullMQ, delayed, deduplicated"): 12,
    ("receive", "BullMQ, delayed, deduplicated"): 10,
    ("receive", "RMQ, one message per call"): 10,
}
OURS = {
    "send": "df.write",
    "receive": "source to noop",
    "call": "source to each_message",
}
NOTES = (
    "BullMQ, dramatiq and Celery call a function for each message, which does nothing. Our "
    "`source to noop` hands over Arrow batches and calls none; `source to each_message` calls a "
    "Python function for each message, as they do.",
    "Ours is a FixedTime topic: delayed, merged, claimed and committed. Of the peers only BullMQ "
    "delayed with deduplication merges; dramatiq and Celery have no equal without an addition.",
)


class Ours(Receiver):
    """What we measure of ourselves."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender, {})
        self._url = sender.server.url
        self._send = sender.batch

    def speeds(self) -> dict[str, float]:
        """Messages a second of each way."""
        return {
            "send": self._send("FixedTime"),
            "receive": self.noop(),
            "call": self.each_message(),
        }

    def each_message(self) -> float:
        """Messages a second of a query that calls a function for each."""

        def nothing(message: Row) -> None:
            pass

        body = rmq_spark.each_message(nothing, options={"redis.url": self._url})
        return self._speed(lambda frame, _: frame.writeStream.foreachBatch(body))


def peers(bullmq: int, dramatiq: int, celery: int, rmq: int) -> list[Peer]:
    """All of them, with how many messages a round each gets."""
    return [
        _bullmq("plain", bullmq),
        _bullmq("deduplicated", bullmq),
        Peer(
            "dramatiq",
            dramatiq,
            ("dramatiq:default.msgs",),
            _one_or_two(PYTHON, "dramatiq_peer.py"),
            tuple(_dramatiq(processes, threads) for processes, threads in ((2, 8), (2, 2), (1, 8))),
        ),
        Peer(
            "Celery",
            celery,
            ("celery", "unacked"),
            _one_or_two(PYTHON, "celery_peer.py"),
            tuple(_celery(pool, size) for pool, size in (("prefork", 2), ("threads", 8))),
        ),
        Peer(
            "RMQ, one message per call",
            rmq,
            RMQ_KEYS,
            _one_or_two(PYTHON, "one_by_one.py", "send"),
            _one_or_two(PYTHON, "one_by_one.py", "receive"),
        ),
    ]


def _one_or_two(*command: str) -> tuple[Crew, ...]:
    return tuple(Crew(command, processes) for processes in (1, 2))


def _bullmq(mode: str, messages: int) -> Peer:
    return Peer(
        f"BullMQ, {'plain' if mode == 'plain' else 'delayed, deduplicated'}",
        messages,
        BULLMQ_KEYS,
        _one_or_two("node", "bullmq.mjs", "send", mode),
        tuple(
            Crew(("node", "bullmq.mjs", "work", str(concurrency)), processes, endless=True)
            for processes, concurrency in ((1, 50), (1, 200), (1, 500), (2, 200))
        ),
    )


def _dramatiq(processes: int, threads: int) -> Crew:
    size = ("--processes", str(processes), "--threads", str(threads))
    return Crew((PYTHON, "-m", "dramatiq", "dramatiq_peer", *size), endless=True)


def _celery(pool: str, size: int) -> Crew:
    alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    run = ("worker", "--pool", pool, "--concurrency", str(size), *alone, "--loglevel", "ERROR")
    return Crew((PYTHON, "-m", "celery", "-A", "celery_peer", *run), endless=True)


class Contest:
    """A peer with the crews that were its best."""

    def __init__(self, watcher: Watcher, peer: Peer) -> None:
        self.peer = peer
        self._watcher = watcher
        self.sender = max(peer.senders, key=lambda crew: watcher.send(peer, crew))
        self.worker = max(peer.workers, key=self._sent_and_received)

    def _sent_and_received(self, crew: Crew) -> float:
        self._watcher.send(self.peer, self.sender)
        return self._watcher.receive(self.peer, crew)

    def speeds(self) -> dict[str, float]:
        """Messages a second each way; there is one way to receive."""
        sent = self._watcher.send(self.peer, self.sender)
        received = self._watcher.receive(self.peer, self.worker)
        return {"send": sent, "receive": received, "call": received}

    def told(self) -> str:
        """What was measured of it."""
        return f"{self.peer.name}: {self.peer.messages} messages; {self.sender}; {self.worker}."


def versions() -> str:
    """Which peers were measured. Ends the program with the remedy when one is missing."""
    package = FOLDER / "node_modules" / "bullmq" / "package.json"
    node = shutil.which("node")
    found = all(importlib.util.find_spec(name) for name in ("dramatiq", "celery"))
    if not (node and package.exists() and found):
        raise SystemExit("The peers are not installed: `make bench-peers` does that.")
    runs_on = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    python = (f"{name} {importlib.metadata.version(name)}" for name in ("dramatiq", "celery"))
    bullmq = f"bullmq {json.loads(package.read_text())['version']}"
    return ", ".join([bullmq, f"node {runs_on.stdout.strip()}", *python])


def main() -> None:
    """Measures, and writes peers.json and peers.md."""
    sizes = {"bullmq": 100_000, "dramatiq": 20_000, "celery": 20_000, "rmq": 20_000}
    parser = arguments_of(__doc__, messages=1_000_000, **sizes, rounds=3)
    arguments = parser.parse_args()
    report = Report.of("peers", __doc__)
    # Told to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    report.notes += [*NOTES, versions() + "."]
    compared = peers(**{name: getattr(arguments, name) for name in sizes})
    with (
        session() as spark,
        LocalRedis(arguments.redis, {"appendonly": "no"}) as server,
        folder() as path,
    ):
        numbered(spark, arguments.messages, 34).write.parquet(str(path / "messages"))
        ours = Ours(Sender(spark, server, path / "messages"))
        for peer in compared:
            write_contents(spark, path / peer.name, peer.messages)
        contests = warm_up(ours, compared, server.port, path)
        report.notes += [contest.told() for contest in contests]
        measure(report, ours, contests, arguments.rounds)
        report.write(arguments.results, server)


def write_contents(spark: SparkSession, file: Path, messages: int) -> None:
    """The same contents as ours, line by line."""
    rows = numbered(spark, messages, 34).select("content").toPandas()
    file.write_text("".join(f"{content}\n" for content in rows["content"]))


def warm_up(ours: Ours, compared: list[Peer], port: int, path: Path) -> list[Contest]:
    """A round in which peers show what suits them best."""
    ours.speeds()
    contests = []
    for peer in compared:
        contests.append(Contest(Watcher(port, path / peer.name), peer))
        print(f"best of its settings: {contests[-1].told()}", flush=True)
    return contests


def measure(report: Report, ours: Ours, contests: list[Contest], rounds: int) -> None:
    """We and the peers in turns."""
    own: list[dict[str, float]] = []
    theirs: dict[str, list[dict[str, float]]] = {contest.peer.name: [] for contest in contests}
    for _ in range(rounds):
        own.append(ours.speeds())
        for contest in contests:
            theirs[contest.peer.name].append(contest.speeds())
    for way, told in OURS.items():
        for peer, rounds_of in theirs.items():
            report.add(
                Figure(
                    f"{way}: {told}",
                    "messages/s",
                    [speeds[way] for speeds in own],
                    peer,
                    [speeds[way] for speeds in rounds_of],
                    at_least=TARGETS.get((way, peer)),
                )
            )


if __name__ == "__main__":
    main()
