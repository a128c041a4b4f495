"""How fast does plain Python send and receive, against what Redis itself allows?

Messages of 34 bytes in a FixedTime topic of 64 slots, sent by one call of ``send``, and received by
``batches``, which commits each; both also with asyncio. The limit is the barest script (limits.py),
called by one plain process with messages grouped by slot.
"""

import asyncio
import time

import redis
from limits import RECEIVE_SIZES, SEND_SIZES, Best, Pairs, receive_seconds, send_seconds
from measuring import Figure, Report, arguments_of

import rmq_spark
from rmq_spark import aio
from rmq_spark.local.redis import LocalRedis
from rmq_spark.topics.definition import slot_of

SLOTS = 64
# The default of batches, and what a program takes that wants many.
BATCHES = (1000, 10_000)
DUE_MS = 1_700_000_000_000
TARGETS = {"send": 0.8, "receive": 0.5}


class Sides:
    """What is compared, on one server. Each side returns its messages a second."""

    def __init__(self, server: LocalRedis, messages: int) -> None:
        self._url = server.url
        self._client = redis.Redis(port=server.port)
        self._contents = [b'{"order": %010d, "x": "xxxx"}' % n for n in range(messages)]
        self._by_slot: Pairs = {slot: [] for slot in range(SLOTS)}
        for content in self._contents:
            self._by_slot[slot_of(content, SLOTS)] += (b"%d" % DUE_MS, content)
        self._sizes = Best(SEND_SIZES), Best(RECEIVE_SIZES)

    def limits(self) -> dict[str, float]:
        """Of the barest scripts."""

        def send(size: int) -> float:
            self._client.flushdb()
            return send_seconds(self._client, self._by_slot, size)

        def receive(size: int) -> float:
            send(SEND_SIZES[1])
            each = {slot: len(pairs) // 2 for slot, pairs in self._by_slot.items()}
            return receive_seconds(self._client, each, size)

        of_sending, of_receiving = self._sizes
        sent = self._per_second(of_sending.of(send))
        return {"send": sent, "receive": self._per_second(of_receiving.of(receive))}

    def ours(self) -> dict[str, float]:
        """By threads."""
        found = {}
        with rmq_spark.connect(self._url) as broker:
            for limit in BATCHES:
                self._new_topic(broker)
                queue = broker.queue("Bench")
                start = time.perf_counter()
                queue.send(self._contents, fixed_time=DUE_MS)
                found["send"] = self._per_second(time.perf_counter() - start)
                received, start = 0, time.perf_counter()
                with broker.consumer("Bench", "bench") as consumer:
                    for batch in consumer.batches(limit, wait=False):
                        received += sum(1 for message in batch if message.content)
                        batch.commit()
                seconds = time.perf_counter() - start
                found[f"receive, batches of {limit:,}"] = self._checked(received, seconds)
        return found

    async def ours_with_asyncio(self) -> dict[str, float]:
        """By a task."""
        found = {}
        async with await aio.connect(self._url) as broker:
            for limit in BATCHES:
                with rmq_spark.connect(self._url) as other:
                    self._new_topic(other)
                queue = await broker.queue("Bench")
                start = time.perf_counter()
                await queue.send(self._contents, fixed_time=DUE_MS)
                found["send, asyncio"] = self._per_second(time.perf_counter() - start)
                received, start = 0, time.perf_counter()
                async with broker.consumer("Bench", "bench") as consumer:
                    async for batch in consumer.batches(limit, wait=False):
                        received += sum(1 for message in batch if message.content)
                        await batch.commit()
                seconds = time.perf_counter() - start
                found[f"receive, asyncio, batches of {limit:,}"] = self._checked(received, seconds)
        return found

    def _new_topic(self, broker: rmq_spark.Broker) -> None:
        self._client.flushdb()
        broker.create("Bench", "FixedTime", SLOTS)

    def _per_second(self, seconds: float) -> float:
        return len(self._contents) / seconds

    def _checked(self, received: int, seconds: float) -> float:
        if received != len(self._contents):
            raise SystemExit(f"{received} of {len(self._contents)} messages were received")
        return self._per_second(seconds)


def main() -> None:
    """Measures, and writes plain.json and plain.md."""
    arguments = arguments_of(__doc__, messages=1_000_000, rounds=3).parse_args()
    report = Report.of("plain", __doc__)
    with LocalRedis(arguments.redis, {"appendonly": "no"}) as server:
        sides = Sides(server, arguments.messages)
        own: dict[str, list[float]] = {}
        limits: dict[str, list[float]] = {}
        for turn in range(arguments.rounds + 1):
            limit = sides.limits()
            found = sides.ours() | asyncio.run(sides.ours_with_asyncio())
            if turn:  # the first one warms up
                for into, speeds in ((limits, limit), (own, found)):
                    for name, speed in speeds.items():
                        into.setdefault(name, []).append(speed)
        for name, rounds in own.items():
            way = name.partition(",")[0]
            beside = limits[way]
            report.add(
                Figure(name, "messages/s", rounds, "barest script", beside, at_least=TARGETS[way])
            )
        report.write(arguments.results, server)


if __name__ == "__main__":
    main()
