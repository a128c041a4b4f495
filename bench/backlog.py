"""Does a claim slow down when much is stored, and what memory does a message take?

100 000, 1, 5 and 20 million due messages of 34 bytes in 64 slots. Claims of 1024 messages go round
the slots; each is committed and its messages are sent again, so that as much is stored for the
next. What is timed is the call, reply and all, in one plain process; and what a plan asks of all
slots. Once the messages fall due in the order in which they were stored, once in quite another one,
so that what a claim takes lies scattered in Redis' memory.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import redis
from limits import SEND
from measuring import Figure, Report, arguments_of

import rmq_spark
from rmq_spark.client.queue import Queue
from rmq_spark.dev_servers.redis_server import LocalRedis
from rmq_spark.protocol import claiming, reading, sending
from rmq_spark.protocol.claims import ClaimRequest

SIZES = (100_000, 1_000_000, 5_000_000, 20_000_000)
SLOTS = 64
LIMIT = 1024
CHUNK = 3900
LEASE_MS = 600_000
TARGET = 1.5


class Backlog:
    """A topic that is filled step by step.

    scattered: whether messages fall due in another order than they were stored.
    """

    def __init__(self, server: LocalRedis, scattered: bool) -> None:
        self._step = 7919 if scattered else 1
        self.client = redis.Redis(port=server.port)
        self.client.flushdb()
        broker = rmq_spark.connect(server.url)
        broker.create("Bench", "FixedTime", SLOTS)
        self.queue: Queue = broker.queue("Bench")
        self.stored = 0
        self._empty = self._memory()
        self._seq = 0

    def fill(self, messages: int) -> None:
        """Stores messages until there are so many, a stretch of each slot at a time."""
        script = self.client.script_load(SEND)
        while self.stored < messages:
            chunk = min(CHUNK, -(-(messages - self.stored) // SLOTS))
            pipeline = self.client.pipeline(transaction=False)
            for slot in range(SLOTS):
                first = self.stored + slot * chunk
                pairs = [
                    value
                    for number in range(first, first + chunk)
                    for value in (
                        1_600_000_000_000 + number * self._step % 86_400_000,
                        f'{{"order": {number:010d}, "x": "xxxx"}}',
                    )
                ]
                pipeline.execute_command("EVALSHA", script, 1, self.queue.keys.store(slot), *pairs)
            pipeline.execute()
            self.stored += chunk * SLOTS

    def bytes_a_message(self) -> float:
        """What Redis takes for the stored messages."""
        return (self._memory() - self._empty) / self.stored

    def claim_ms(self) -> float:
        """Milliseconds of one claim; its messages are stored again afterwards."""
        self._seq += 1
        slot = self._seq % SLOTS
        start = time.perf_counter()
        (claim,) = self.queue.ask(
            claiming.claim,
            [ClaimRequest(slot, 0, LIMIT)],
            claiming.Claiming(consumer="bench", run=1, seq=self._seq, lease_ms=LEASE_MS),
        )
        spent = time.perf_counter() - start
        if len(claim.contents) != LIMIT:
            raise SystemExit(f"slot {slot} gave {len(claim.contents)} of {LIMIT} messages")
        self.queue.ask(claiming.commit, [slot], "bench", 1, self._seq)
        pairs = [value for pair in zip(claim.scores, claim.contents, strict=True) for value in pair]
        self.queue.ask(sending.send, {slot: pairs})
        return spent * 1000

    def plan_ms(self) -> float:
        """Milliseconds of asking all slots what is due."""
        start = time.perf_counter()
        due = self.queue.ask(reading.due, self.queue.slots, "bench")
        spent = time.perf_counter() - start
        if sum(slot.due for slot in due) != self.stored:
            raise SystemExit("not everything is due")
        return spent * 1000

    def _memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])


def main() -> None:
    """Measures, and writes backlog.json and backlog.md."""
    arguments = arguments_of(__doc__, messages=SIZES[-1], claims=1000, rounds=3).parse_args()
    report = Report.of("backlog", __doc__)
    with LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        for order in ("in order", "scattered"):
            measure(report, Backlog(server, order == "scattered"), order, arguments)
        report.write(arguments.results, server)


def measure(report: Report, backlog: Backlog, order: str, arguments: argparse.Namespace) -> None:
    """Grows the backlog, and compares every size with the smallest."""
    smallest: dict[str, list[float]] = {}
    for size in (size for size in SIZES if size <= arguments.messages):
        backlog.fill(size)
        for _ in range(SLOTS):
            backlog.claim_ms()  # warms up
        found = times_of(backlog, arguments.claims, arguments.rounds)
        for name, rounds in found.items():
            figure = Figure(f"{name}, {size:,} stored {order}", "ms", rounds)
            if name in smallest:
                figure.against, figure.beside = f"{SIZES[0]:,} stored", smallest[name]
            if name == "claim p99" and size == SIZES[-1]:
                figure.at_most = TARGET
            report.add(figure)
        smallest = smallest or found
        memory = [backlog.bytes_a_message()]
        report.add(Figure(f"memory, {size:,} stored {order}", "bytes a message", memory))


def times_of(backlog: Backlog, claims: int, rounds: int) -> dict[str, list[float]]:
    """By figure, one value a round."""

    def repeated(measured: Callable[[], float], times: int) -> list[list[float]]:
        return [[measured() for _ in range(times)] for _ in range(rounds)]

    spent = repeated(backlog.claim_ms, claims)
    plans = repeated(backlog.plan_ms, 20)
    return {
        "claim p50": [statistics.median(times) for times in spent],
        "claim p99": [statistics.quantiles(times, n=100)[98] for times in spent],
        "plan": [statistics.median(times) for times in plans],
    }


if __name__ == "__main__":
    main()
