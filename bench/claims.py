"""What does a message cost Redis, sent and received, against the fewest native commands?

400 000 messages of 34 bytes in 64 slots, received through a consumer in plain Python (claimed,
read, committed), in batches of all that is due. The peer moves as many with ZRANGESTORE,
ZREMRANGEBYRANK, ZRANGE WITHSCORES and UNLINK, as many messages in each claim. Before, they are sent
by a service; the peer sends them by ZADD, as many in each call. What counts is the CPU of Redis'
main thread; then the bytes that a claim and its commit add to the append-only file, and so to the
stream of replicas.
"""

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measuring import Figure, Report, arguments_of

import rmq_spark
from rmq_spark.client import Broker
from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol.claims import MESSAGES_A_CLAIM
from rmq_spark.protocol.packing import chunks

SLOTS = 64
MESSAGES_A_SEND = 100_000
TARGET = 1.5
TARGET_OF_SENDING = 1.35
TARGET_BYTES = 1.0
HOUR_MS = 3_600_000
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
CPU_FIELD = 13  # of /proc/pid/task/tid/stat: user, and behind it system time in ticks


class Ways:
    """The ways to send and to receive the same messages."""

    def __init__(self, server: LocalRedis, messages: int) -> None:
        self.server = server
        self.broker: Broker = rmq_spark.connect(server.url)
        self.redis = self.broker.server.client
        self.messages = messages
        numbers = list(range(messages))
        random.Random(1).shuffle(numbers)
        self.parts = list(chunks(numbers, MESSAGES_A_SEND))

    def send(self, topic_type: str = "FixedTime") -> None:
        """Stores the messages anew: FixedTime ones in a random order of their due times."""
        self.redis.flushall()
        self.broker.create("Bench", topic_type, slot_amount=SLOTS)
        queue = self.broker.queue("Bench")
        for part in self.parts:
            queue.send([message(topic_type, number) for number in part])

    def send_by_commands(self, topic_type: str) -> None:
        """Stores as many messages with scores like theirs, by one ZADD for each slot and part."""
        self.redis.flushall()
        for part in self.parts:
            pipeline = self.redis.pipeline(transaction=False)
            for slot in range(SLOTS):
                pairs: list[object] = []
                for number in part[slot::SLOTS]:
                    pairs += [score(topic_type, number), content(number)]
                pipeline.execute_command("ZADD", f"store_{{Bench_{slot}}}", *pairs)
            pipeline.execute()

    def by_consumer(self) -> None:
        """Through the consumer: everything that is due in each batch."""
        with self.broker.consumer("Bench", "bench") as consumer:
            received = 0
            for batch in consumer.batches(limit=self.messages, wait=False):
                received += len(batch)
                batch.commit()
        if received != self.messages:
            raise SystemExit(f"received {received} of {self.messages} messages")

    def by_commands(self) -> None:
        """By native commands, eight claims in each pipeline."""
        keys = self.broker.queue("Bench").keys
        left = [(keys.store(slot), f"{keys.store(slot)}:claim") for slot in range(SLOTS)]
        while left:
            pipeline = self.redis.pipeline(transaction=False)
            for store, claim in left[:8]:
                pipeline.execute_command("ZRANGESTORE", claim, store, 0, MESSAGES_A_CLAIM - 1)
                pipeline.execute_command("ZREMRANGEBYRANK", store, 0, MESSAGES_A_CLAIM - 1)
                pipeline.execute_command("ZRANGE", claim, 0, -1, "WITHSCORES")
                pipeline.execute_command("UNLINK", claim)
            replies = pipeline.execute()
            taken = zip(left[:8], replies[::4], strict=True)
            left = [pair for pair, size in taken if size == MESSAGES_A_CLAIM] + left[8:]

    def cost(self, run: Callable[[], None]) -> float:
        """The CPU of Redis' main thread while something runs, in us a message."""
        before = self._main_thread_s()
        run()
        return (self._main_thread_s() - before) / self.messages * 1e6

    def _main_thread_s(self) -> float:
        pid = self.server.pid
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(ticks) for ticks in fields[CPU_FIELD - 2 : CPU_FIELD]) / TICKS_A_SECOND

    def appended(self) -> int:
        """Bytes of the append-only file."""
        return int(self.redis.info("persistence")["aof_current_size"])


def content(number: int) -> str:
    """A content of 34 bytes."""
    return f"order {number:028}"


def score(topic_type: str, number: int) -> int:
    """A due time of its own, or one that all messages share, with as many digits as theirs."""
    return 1_000_000 + number if topic_type == "FixedTime" else 1_800_000_000_000


def message(topic_type: str, number: int) -> rmq_spark.Message:
    """A message that is due at score(), or in an hour like all others."""
    if topic_type == "FixedTime":
        return rmq_spark.Message(content(number), fixed_time=score(topic_type, number))
    return rmq_spark.Message(content(number), time_range=HOUR_MS)


def main() -> None:
    """Measures, and writes claims.json and claims.md."""
    arguments = arguments_of(__doc__, messages=400_000, rounds=5).parse_args()
    report = Report.of("claims", __doc__)
    with LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        ways = Ways(server, arguments.messages)
        report.add(received(ways, arguments.rounds))
        for topic_type in ("FixedTime", "RangeMerge"):
            report.add(sent(ways, topic_type, arguments.rounds))
        report.write(arguments.results, server)
    with LocalRedis(arguments.redis, {"appendonly": "yes", "appendfsync": "no"}) as server:
        report.add(appended(Ways(server, arguments.messages), arguments.rounds))
        report.write(arguments.results, server)


def received(ways: Ways, rounds: int) -> Figure:
    """What a message costs by the consumer, beside the native commands."""
    costs: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for receive, measured in zip((ways.by_consumer, ways.by_commands), costs, strict=True):
            ways.send()
            measured.append(ways.cost(receive))
    return Figure(
        *("CPU of Redis' main thread, a message received", "us", costs[0]),
        **{"against": "native commands", "beside": costs[1], "at_most": TARGET},
    )


def sent(ways: Ways, topic_type: str, rounds: int) -> Figure:
    """What a message costs by the queue, beside ZADD."""
    costs: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for send, measured in zip((ways.send, ways.send_by_commands), costs, strict=True):
            measured.append(ways.cost(partial(send, topic_type)))
    return Figure(
        *(f"the same, a message sent, {topic_type}", "us", costs[0]),
        **{"against": "ZADD", "beside": costs[1], "at_most": TARGET_OF_SENDING},
    )


def appended(ways: Ways, rounds: int) -> Figure:
    """What a message adds to the append-only file when it is claimed and committed."""
    measured = []
    for _ in range(rounds):
        ways.send()
        before = ways.appended()
        ways.by_consumer()
        measured.append((ways.appended() - before) / ways.messages)
    return Figure(
        "append-only file, a message claimed and committed", "B", measured, at_most=TARGET_BYTES
    )


if __name__ == "__main__":
    main()
