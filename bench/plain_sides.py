"""Queues as a plain Python program uses them: ours, Kafka's share groups, and RocketMQ.

Each side begins with an empty topic, sends, and hands each message to a Tally. What it must do to
be rid of a message (commit, acknowledge) belongs to receiving.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import redis
from broker_side import PARTITIONS, Kafka
from confluent_kafka import Producer, ShareConsumer

import rmq_spark
from rmq_spark.jobs.targets.rocketmq import client_module
from rmq_spark.local.redis import LocalRedis
from tests.rocketmq_broker import RocketMQBroker

SLOTS = 16
LIMIT = 1000  # messages of a batch of ours
PATIENCE_S = 120.0
AHEAD_S = 2  # from the send of a delayed message to its time, at least


class Tally:
    """Counts messages, each once, and notes when the first and the last of them came."""

    def __init__(self, messages: int, told: Callable[[bytes], None] = lambda content: None) -> None:
        self._wanted = messages
        self._told = told
        self._seen: set[bytes] = set()
        self._begun, self._full = threading.Event(), threading.Event()
        self._first = 0.0

    @property
    def is_full(self) -> bool:
        """Whether all have come."""
        return self._full.is_set()

    def add(self, content: bytes) -> None:
        """Count a message. What comes again does not count."""
        if content in self._seen:
            return
        self._told(content)
        self._first = self._first or time.monotonic()
        self._seen.add(content)
        self._begun.set()
        if len(self._seen) == self._wanted:
            self._full.set()

    def wait_for_first(self) -> None:
        """Return when one has come. Ends the bench if none does."""
        self._wait(self._begun)

    def wait(self) -> None:
        """Return when all have come. Ends the bench if they do not."""
        self._wait(self._full)

    def a_second(self, end: float) -> float:
        """Messages a second, from the first to the end."""
        return self._wanted / (end - self._first)

    def _wait(self, event: threading.Event) -> None:
        if not event.wait(PATIENCE_S):
            raise SystemExit(f"{len(self._seen)} of {self._wanted} messages came")


class Side(Protocol):
    """One queue. name: as the report has it."""

    name: str

    def begin(self, *, delayed: bool = False) -> None:
        """Have an empty topic."""

    def send(self, contents: list[bytes]) -> None:
        """Send many, as quickly as it goes. All are stored at the return."""

    def send_one(self, content: bytes, due_s: int | None) -> None:
        """Send one, to be delivered now or at a time, in seconds since 1970."""

    def receive(self, tally: Tally) -> None:
        """Receive until the tally is full."""

    def end(self) -> None:
        """Close what is open."""


class Ours:
    """A FixedTime topic, and a consumer that commits each batch."""

    name = "rmq-spark"

    def __init__(self, server: LocalRedis) -> None:
        self._server = server

    def begin(self, *, delayed: bool = False) -> None:
        """Have an empty topic."""
        with redis.Redis(port=self._server.port) as client:
            client.flushdb()
        self._broker = rmq_spark.connect(self._server.url)
        self._broker.create("Bench", "FixedTime", SLOTS)
        self._queue = self._broker.queue("Bench")

    def send(self, contents: list[bytes]) -> None:
        """Send them in one call."""
        self._queue.send(contents, fixed_time=1)

    def send_one(self, content: bytes, due_s: int | None) -> None:
        """Send one in a call of its own."""
        self._queue.send([content], fixed_time=1 if due_s is None else 1000 * due_s)

    def receive(self, tally: Tally) -> None:
        """Take batches as they come."""
        with self._broker.consumer("Bench", "bench") as consumer:
            while not tally.is_full:
                batch = consumer.poll(LIMIT, wait="1s")
                for message in batch:
                    tally.add(message.content or b"")
                if batch:
                    batch.commit()

    def end(self) -> None:
        """Close the connections."""
        self._broker.close()


class ShareGroup:
    """A topic of Kafka, and a share group of one consumer, which acknowledges each batch."""

    name = "Kafka, share group"

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._topics = 0

    def begin(self, *, delayed: bool = False) -> None:
        """Have a new topic and a group of the same name that begins at its start."""
        self._topics += 1
        self._topic = f"share-{self._topics}"
        self._kafka.create(self._topic, PARTITIONS)
        self._kafka.share_from_start(self._topic)
        where = {"bootstrap.servers": self._kafka.address}
        self._producer = Producer({**where, "queue.buffering.max.messages": 1_000_000})
        self._prompt = Producer({**where, "linger.ms": 0})

    def send(self, contents: list[bytes]) -> None:
        """Send them in batches that the client makes, and wait for the broker's word."""
        for content in contents:
            self._producer.produce(self._topic, content)
        self._producer.flush()

    def send_one(self, content: bytes, due_s: int | None) -> None:
        """Send one, and wait for the broker's word."""
        self._prompt.produce(self._topic, content)
        self._prompt.flush()

    def receive(self, tally: Tally) -> None:
        """Poll; each poll acknowledges what the one before brought."""
        consumer = ShareConsumer(
            {"bootstrap.servers": self._kafka.address, "group.id": self._topic, "log_level": 3}
        )
        consumer.subscribe([self._topic])
        while not tally.is_full:
            for message in consumer.poll(1.0) or ():
                if message.error():
                    raise SystemExit(f"Kafka's share group: {message.error()}")
                tally.add(message.value())
        consumer.commit_sync()
        self._close = consumer.close  # it takes seconds, which do not count

    def end(self) -> None:
        """Leave the group."""
        self._close()
        del self._producer, self._prompt


class Rocket:
    """A topic of RocketMQ, and a consumer that pushes to a function in 20 threads, its default."""

    name = "RocketMQ"

    def __init__(self, server: RocketMQBroker) -> None:
        self._server = server
        self._client = client_module()
        credentials = self._client.Credentials()
        self._where = self._client.ClientConfiguration(server.url, credentials)
        self._topics = 0

    def begin(self, *, delayed: bool = False) -> None:
        """Have a new topic, for messages with a time or without, and a group of the same name."""
        self._topics += 1
        self._topic = f"bench-{self._topics}"
        self._server.create(self._topic, "DELAY" if delayed else "NORMAL")
        self._server.create_group(self._topic)
        self._producer = self._client.Producer(self._where, (self._topic,))
        self._producer.startup()

    def send(self, contents: list[bytes]) -> None:
        """Send each by itself, without waiting for the one before."""
        for sent in [self._producer.send_async(self._message(content)) for content in contents]:
            sent.result()

    def send_one(self, content: bytes, due_s: int | None) -> None:
        """Send one, and wait for the broker's word."""
        self._producer.send(self._message(content, due_s))

    def receive(self, tally: Tally) -> None:
        """Let the client call a function for each message."""
        client = self._client

        class Listener(client.MessageListener):
            def consume(self, message: Any) -> Any:
                tally.add(message.body)
                return client.ConsumeResult.SUCCESS

        topics = {self._topic: client.FilterExpression()}
        consumer = client.PushConsumer(self._where, self._topic, Listener(), topics)
        consumer.startup()
        tally.wait()
        self._shutdown = consumer.shutdown  # it takes seconds, which do not count

    def end(self) -> None:
        """End the client's threads."""
        self._shutdown()
        self._producer.shutdown()

    def _message(self, content: bytes, due_s: int | None = None) -> Any:
        message = self._client.Message()
        message.topic, message.body = self._topic, content
        if due_s is not None:
            message.delivery_timestamp = due_s
        return message


def speeds(side: Side, contents: list[bytes]) -> dict[str, float]:
    """Messages a second each way."""
    side.begin()
    start = time.monotonic()
    side.send(contents)
    sent, tally = time.monotonic(), Tally(len(contents))
    side.receive(tally)
    received = tally.a_second(time.monotonic())
    side.end()
    return {"send": len(contents) / (sent - start), "receive": received}


def lateness_ms(side: Side, messages: int, a_second: int, *, delayed: bool) -> list[float]:
    """Milliseconds from a send, or from a message's time, until the message is there.

    One more is sent before, for the consumer to be at work.
    """
    late: list[float] = []

    def told(content: bytes) -> None:
        late.append(1000 * (time.time() - float(content.split()[0])))

    side.begin(delayed=delayed)
    tally = Tally(messages + 1, told)
    thread = threading.Thread(target=side.receive, args=(tally,), daemon=True)
    thread.start()
    send_at(side, 0, delayed=delayed)
    tally.wait_for_first()
    for number in range(1, messages + 1):
        time.sleep(1 / a_second)
        send_at(side, number, delayed=delayed)
    tally.wait()
    thread.join(PATIENCE_S)
    side.end()
    return late[1:]


def send_at(side: Side, number: int, *, delayed: bool) -> None:
    """Send a message that says its time; for RocketMQ that is in whole seconds."""
    now = time.time()
    due = math.ceil(now) + AHEAD_S
    side.send_one(b"%.6f %d" % (due if delayed else now, number), due if delayed else None)
