"""A topic that grows: claims and plans of it are timed, and what is stored stays as much."""

import time

import redis
from limits import SEND

import rmq_spark
from rmq_spark.client.queue import Queue
from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol import claiming, reading, sending
from rmq_spark.protocol.claims import Claim, ClaimRequest

SLOTS = 64
LIMIT = 1024
CHUNK = 3900
LEASE_MS = 600_000


class Backlog:
    """A topic that is filled step by step.

    scattered: whether messages fall due in another order than they were stored.
    """

    def __init__(self, server: LocalRedis, scattered: bool) -> None:
        self._step = 7919 if scattered else 1
        self.client = redis.Redis(port=server.port)
        self.client.flushdb()
        self.broker = rmq_spark.connect(server.url)
        self.broker.create("Bench", "FixedTime", SLOTS)
        self.queue: Queue = self.broker.queue("Bench")
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
        start = time.perf_counter()
        claim = self.claim()
        spent = time.perf_counter() - start
        self.queue.ask(claiming.commit, [claim.slot], "bench", 1, self._seq)
        pairs = [value for pair in zip(claim.scores, claim.contents, strict=True) for value in pair]
        self.queue.ask(sending.send, {claim.slot: pairs})
        return spent * 1000

    def claim(self) -> Claim:
        """A claim of the next slot. Ends the bench if it is not full."""
        self._seq += 1
        slot = self._seq % SLOTS
        (claim,) = self.queue.ask(
            claiming.claim,
            [ClaimRequest(slot, 0, LIMIT)],
            claiming.Claiming(consumer="bench", run=1, seq=self._seq, lease_ms=LEASE_MS),
        )
        if len(claim.contents) != LIMIT:
            raise SystemExit(f"slot {slot} gave {len(claim.contents)} of {LIMIT} messages")
        return claim

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
