"""A topic of one slot as the tests see it: filled from below, looked into from below."""

import time
from dataclasses import dataclass

from rmq_spark.client.consumer_runs import ConsumerRuns
from rmq_spark.protocol import claiming, reading, sending
from rmq_spark.protocol.claims import MESSAGES_A_CLAIM, ClaimRequest, Rollback
from rmq_spark.topics.definition import DEFAULT_GROUP

LONG_MS = 3_600_000  # a lease or a wait that no test outlives
FAR_MS = 10**13  # a due time that no test outlives: the year 2286


@dataclass(frozen=True)
class Record:
    """What the hash of claims holds of one."""

    version: int
    stamp: int
    run: int
    deadline: int
    count: int
    moved: int
    made: int
    replayed: int


def numbered(how_many, name="m", start=0):
    """Contents whose order as bytes is that of their numbers."""
    return [f"{name}{number:05}".encode() for number in range(start, start + how_many)]


def runs_of(queue, consumer):
    """What Redis keeps of a consumer beside its headers in the slots."""
    return ConsumerRuns(queue.server, consumer, queue.key_prefix)


def open_run(queue, consumer, known_run):
    """Begins a run of a consumer that reads this topic alone; returns its number."""
    return runs_of(queue, consumer).open(queue.definition.name, known_run)


def note_committed(queue, consumer, seq):
    return runs_of(queue, consumer).note_committed(seq)


def committed_up_to(queue, consumer):
    return runs_of(queue, consumer).committed_up_to()


def requeue(queue, slot, contents, score):
    """Brings contents back from the DeadQueue with this very score."""
    pairs = [value for content in contents for value in (score, content)]
    return queue.ask(sending.requeue, {slot: pairs})


def rollback(queue, slot, claim_id, contents, delay_ms=None):
    return queue.ask(claiming.rollbacks, [Rollback(slot, claim_id, contents, delay_ms)])


class Slot:
    """The only slot of a topic, with short names for what tests do most."""

    def __init__(self, broker, name, topic_type="FixedTime", group=DEFAULT_GROUP, **settings):
        self.broker = broker
        self.redis = broker.server.client
        broker.create(name, topic_type, 1, **settings)
        self.queue = broker.queue(name, group=group)
        self.keys = self.queue.keys

    # -- filling

    def put(self, scores):
        """Stores contents with scores as if they had been sent, whatever the scores."""
        self.redis.zadd(self.keys.store(0), scores)
        self.count("accepted", len(scores))

    def put_due(self, contents, first_score=1000):
        """Stores contents that are due, in this order."""
        self.put({content: first_score + rank for rank, content in enumerate(contents)})

    def put_waiting(self, scores):
        """Puts contents into the retry queue; a score is due second * 1000 + retries left."""
        self.redis.zadd(self.keys.retry(0), scores)
        self.count("accepted", len(scores))

    def bury(self, *contents):
        """Puts contents into the DeadQueue."""
        self.redis.zadd(self.keys.dead(0), dict.fromkeys(contents, 1))
        self.count("accepted", len(contents))
        self.count("dead", len(contents))

    def count(self, counter, by):
        self.redis.hincrby(self.keys.stats(0), counter, by)

    # -- the queue's calls, with what most tests do not care about left out

    def claim(self, consumer="a", run=1, seq=1, ordinal=0, limit=MESSAGES_A_CLAIM, **options):
        options.setdefault("lease_ms", LONG_MS)
        epoch = options.pop("epoch", None)
        if epoch is not None:
            options["epochs"] = {0: epoch}
        return self.queue.ask(
            claiming.claim,
            [ClaimRequest(0, ordinal, limit)],
            consumer=consumer,
            run=run,
            seq=seq,
            **options,
        )[0]

    def claimed(self, *args, **options):
        return self.claim(*args, **options).contents

    def commit(self, consumer="a", run=1, seq=1, **which):
        return self.queue.ask(claiming.commit, [0], consumer, run, seq, **which)

    def release(self, consumer="a", run=1):
        return self.queue.ask(claiming.release, [0], consumer, run)

    def rollback(self, contents, claim_id="a:1:0:1", delay_ms=None):
        return rollback(self.queue, 0, claim_id, contents, delay_ms)

    # -- looking

    def scores(self, kind):
        return dict(self.redis.zrange(getattr(self.keys, kind)(0), 0, -1, withscores=True))

    @property
    def store(self):
        return self.scores("store")

    @property
    def prepare(self):
        return self.scores("prepare")

    @property
    def retry(self):
        return self.scores("retry")

    @property
    def dead(self):
        return self.scores("dead")

    @property
    def retries_left(self):
        """Of each message in the PrepareQueue."""
        return {content: int(score) % 1000 for content, score in self.prepare.items()}

    @property
    def waiting(self):
        """Of each message in the retry queue: its retries left."""
        return {content: int(score) % 1000 for content, score in self.retry.items()}

    @property
    def records(self):
        flat = self.redis.hgetall(self.keys.claims(0))
        return {field.decode(): Record(*map(int, text.split())) for field, text in flat.items()}

    def header(self, consumer="a"):
        return self.queue.ask(reading.headers, consumer)[0]

    @property
    def counters(self):
        return {name: n for name, n in self.queue.figures().counters.items() if n}

    def now_ms(self):
        return self.queue.now_ms()

    def wait_past(self, time_ms):
        """Wait until Redis' clock has passed a time."""
        while self.now_ms() <= time_ms:
            time.sleep(0.001)

    def dump(self):
        """Everything the slot holds, byte for byte."""
        return {key: self.redis.dump(key) for key in self.keys.all_of(0)}

    def check_conservation(self):
        """What was accepted is in exactly one place, or came to exactly one end."""
        counters = self.queue.figures().counters
        ends = sum(counters[name] for name in ("merged", "committed", "cancelled", "dead"))
        held = sum(
            self.redis.zcard(getattr(self.keys, k)(0)) for k in ("store", "prepare", "retry")
        )
        assert counters["accepted"] == ends + held, (counters, held)
