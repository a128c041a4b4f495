"""What do plain Python services get: how soon a message, at what cost, and how many?

The pickup of single messages at 100 a second, by a consumer that waits, BLPOP and a BullMQ worker;
what a consumer costs that waits while nothing comes; single sends of 50 tasks of asyncio, and of as
many ZADD by redis.asyncio, each alone or 50 in a pipeline by hand; and messages a second of listen
with a function that does nothing, and of a BullMQ worker, in one process each. BullMQ is left out
unless `make bench-peers` has installed it.
"""

import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from idle import cpu_s
from measuring import Figure, Report, arguments_of
from service_side import LIST, TOPIC

import rmq_spark
from rmq_spark import aio
from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol.claims import Delivered

HERE = Path(__file__).parent
PEERS = HERE / "peers"
TASKS = 50
A_SECOND = 100
WARM_UP_S = 2.0
BULLMQ_WAITING = ("bull:Bench:wait", "bull:Bench:active")


class Bench:
    """The server of all rounds, and what they measure."""

    def __init__(self, server: LocalRedis) -> None:
        self.server = server
        self.client = redis.Redis(port=server.port)
        self.has_bullmq = bool(shutil.which("node")) and (PEERS / "node_modules").is_dir()

    # -- pickup

    def pickup(self, way: str, seconds: int) -> list[float]:
        """Milliseconds from a send until the message is there, for each."""
        self.client.flushdb()
        if way == "BullMQ":
            return self._pickup_by_bullmq(seconds)
        send = self._sender(way)
        waiting = self._start(way)
        for number in range(A_SECOND * seconds):
            time.sleep(1 / A_SECOND)
            send(f"{time.monotonic():.9f}", number)
        time.sleep(0.5)
        return [1000 * late for late in self._end(waiting)]

    def _sender(self, way: str) -> Callable[[str, int], object]:
        if way == "blpop":
            return lambda content, _: self.client.rpush(LIST, content)
        broker = rmq_spark.connect(self.server.url)
        broker.create(TOPIC, "FixedTime", 16)
        queue = broker.queue(TOPIC)
        return lambda content, number: queue.send([content], fixed_time=1, slot_basis=f"{number}")

    def _start(self, way: str) -> "subprocess.Popen[str]":
        line = [sys.executable, HERE / "service_side.py", way, self.server.url]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        if process.stdout is not None:
            process.stdout.readline()
        time.sleep(WARM_UP_S)
        return process

    def _end(self, process: "subprocess.Popen[str]") -> list[float]:
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=60)
        late: list[float] = json.loads(told)
        return late

    def _pickup_by_bullmq(self, seconds: int) -> list[float]:
        waiting = self._node("pickup")
        time.sleep(WARM_UP_S)
        sending = self._node("trickle", str(A_SECOND), str(A_SECOND * seconds))
        sending.wait(60 + seconds)
        time.sleep(0.5)
        waiting.send_signal(signal.SIGTERM)
        waiting.wait(60)
        return [float(late) for late in self.client.lrange("peer_late", 0, -1)]

    def _node(self, *words: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PEER_PORT": str(self.server.port)}
        return subprocess.Popen(["node", PEERS / "bullmq.mjs", *words], env=environment)

    # -- idle

    def idle(self, slots: int, seconds: int) -> dict[str, float]:
        """Commands a second, and % of a core, of a consumer that waits."""
        self.client.flushdb()
        rmq_spark.connect(self.server.url).create(TOPIC, "FixedTime", slots)
        process = self._start("idle")
        before, start = self._spent(process.pid), time.monotonic()
        time.sleep(seconds)
        after, took = self._spent(process.pid), time.monotonic() - start
        self._end(process)
        spent = {name: (after[name] - before[name]) / took for name in before}
        return {name: x if name == "commands" else 100 * x for name, x in spent.items()}

    def _spent(self, pid: int) -> dict[str, float]:
        commands = self.client.info("stats")["total_commands_processed"]
        return {"commands": commands, "Redis": cpu_s(self.server.pid), "reader": cpu_s(pid)}

    # -- sending

    async def sends(self, slots: int, messages: int) -> dict[str, float]:
        """Single messages a second, by way."""
        self.client.flushdb()
        client = redis.asyncio.Redis(port=self.server.port, protocol=2)
        async with await aio.connect(self.server.url) as broker:
            await broker.create(TOPIC, "FixedTime", slots)
            queue = await broker.queue(TOPIC)

            async def send_one(content: str) -> None:
                await queue.send_one(content, fixed_time=1)

            async def send(content: str) -> None:
                await queue.send([content], fixed_time=1)

            async def zadd(content: str) -> None:
                pipeline = client.pipeline(transaction=False)
                pipeline.execute_command("ZADD", f"plain:{hash(content) % slots}", 1, content)
                await pipeline.execute()

            found = {
                "send_one": await rate(send_one, messages),
                "send": await rate(send, messages),
                "each alone": await rate(zadd, messages),
                "by hand": await by_hand(client, slots, messages),
            }
        await client.aclose()
        return found

    # -- listening

    def listen(self, messages: int) -> float:
        """Messages a second of listen with a function that does nothing."""
        self.client.flushdb()
        with rmq_spark.connect(self.server.url) as broker:
            broker.create(TOPIC, "FixedTime", 64)
            queue = broker.queue(TOPIC)
            queue.send(
                [f"message number {number:019d}" for number in range(messages)], fixed_time=1
            )
            listener = broker.listen(TOPIC, "bench", nothing, workers=1)
            start = time.monotonic()
            with listener:
                while listener.succeeded < messages:
                    time.sleep(0.01)
                return messages / (time.monotonic() - start)

    def bullmq_works(self, messages: int, concurrency: int) -> float:
        """Messages a second of a BullMQ worker, from the first one that is done on."""
        self.client.flushdb()
        contents = HERE / "results" / "contents.tmp"
        contents.write_text("".join(f"message number {n:019d}\n" for n in range(messages)))
        shared = {"PEER_CONTENTS": str(contents), "PEER_PART": "0", "PEER_PARTS": "1"}
        os.environ.update(shared)
        self._node("send", "plain").wait(300)
        contents.unlink()
        worker = self._node("work", str(concurrency))
        try:
            while (left := self._left()) >= messages:
                time.sleep(0.001)
            first, start = left, time.monotonic()
            while self._left():
                time.sleep(0.01)
            return first / (time.monotonic() - start)
        finally:
            worker.terminate()
            worker.wait(60)

    def _left(self) -> int:
        return sum(int(self.client.llen(key)) for key in BULLMQ_WAITING)


def nothing(message: Delivered) -> None:
    """What the listener calls."""


async def rate(send: Callable[[str], Awaitable[Any]], messages: int) -> float:
    """Messages a second of tasks that send one after another."""

    async def sender(task: int) -> None:
        for number in range(messages // TASKS):
            await send(f"message number {task}-{number:015d}")

    start = time.monotonic()
    await asyncio.gather(*(sender(task) for task in range(TASKS)))
    return messages / (time.monotonic() - start)


async def by_hand(client: Any, slots: int, messages: int) -> float:
    """Messages a second of pipelines with one ZADD for each task."""
    start = time.monotonic()
    for number in range(messages // TASKS):
        pipeline = client.pipeline(transaction=False)
        for task in range(TASKS):
            content = f"message number {task}-{number:015d}"
            pipeline.execute_command("ZADD", f"by_hand:{hash(content) % slots}", 1, content)
        await pipeline.execute()
    return messages / (time.monotonic() - start)


def percentile(values: list[float], part: int) -> float:
    """The value below which so many percent lie."""
    return statistics.quantiles(values, n=100)[part - 1]


def report_pickup(bench: Bench, report: Report, rounds: int, seconds: int) -> None:
    """Adds how soon single messages are there."""
    ways = ["consumer", "blpop", *(["BullMQ"] if bench.has_bullmq else [])]
    late = {way: [] for way in ways}  # type: dict[str, list[list[float]]]
    for _ in range(rounds):
        for way in ways:
            late[way].append(bench.pickup(way, seconds))
    for part in (50, 90):
        of = {way: [percentile(each, part) for each in late[way]] for way in ways}
        name = f"pickup p{part}"
        report.add(Figure(name, "ms", of["consumer"], "BLPOP", of["blpop"], True, at_least=0.2))
        for way in ways[2:]:
            report.add(Figure(f"{name} of {way}", "ms", of[way]))


def report_idle(bench: Bench, report: Report, rounds: int, seconds: int) -> None:
    """Adds what a consumer costs that waits."""
    for slots in (16, 1024):
        found = [bench.idle(slots, seconds) for _ in range(rounds)]
        commands = [each["commands"] for each in found]
        report.add(Figure(f"idle, {slots} slots: commands", "a second", commands, at_most=50))
        for who in ("Redis", "reader"):
            of_core = [each[who] for each in found]
            report.add(Figure(f"idle, {slots} slots: {who}", "% of a core", of_core, at_most=1))


def report_sends(bench: Bench, report: Report, rounds: int, messages: int) -> None:
    """Adds single sends of many tasks."""
    for slots in (16, 64):
        found = [asyncio.run(bench.sends(slots, messages)) for _ in range(rounds)]
        for way in ("send_one", "send"):
            own = [each[way] for each in found]
            for against in ("each alone", "by hand"):
                beside = [each[against] for each in found]
                at_least = 0.6 if way == "send_one" else None
                told = f"{way}, {TASKS} tasks, {slots} slots"
                limit = f"ZADD {against}"
                report.add(Figure(told, "messages/s", own, limit, beside, at_least=at_least))


def report_listen(bench: Bench, report: Report, rounds: int, messages: int) -> None:
    """Adds messages a second of a function that does nothing."""
    if not bench.has_bullmq:
        own = [bench.listen(messages) for _ in range(rounds)]
        report.add(Figure("listen, 1 worker", "messages/s", own))
        return
    tried = {size: bench.bullmq_works(messages // 10, size) for size in (50, 200, 500)}
    best = max(tried, key=lambda size: tried[size])
    own, beside = [], []
    for _ in range(rounds):
        own.append(bench.listen(messages))
        beside.append(bench.bullmq_works(messages // 5, best))
    report.add(
        Figure("listen, 1 worker", "messages/s", own, f"BullMQ, {best} at once", beside, at_least=3)
    )


def main() -> None:
    """Measures, and writes services.json and services.md."""
    parser = arguments_of(__doc__, messages=100_000, seconds=10, rounds=3)
    arguments = parser.parse_args()
    report = Report.of("services", __doc__)
    with LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        bench = Bench(server)
        report_pickup(bench, report, arguments.rounds, arguments.seconds)
        report_idle(bench, report, arguments.rounds, arguments.seconds)
        report_sends(bench, report, arguments.rounds, arguments.messages // 5)
        report_listen(bench, report, arguments.rounds, arguments.messages)
        report.notes.append("A ratio of a time is BLPOP's by ours.")
        report.write(arguments.results, server)


if __name__ == "__main__":
    main()
