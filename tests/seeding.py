"""A topic of one slot as the tests see it: filled from below, looked into from below."""

import math
import time
from dataclasses import dataclass

from rmq_spark.protocol import claiming, reading, returning, sending
from rmq_spark.protocol.calls import ALL_KINDS
from rmq_spark.protocol.claims import ClaimRequest, Rollback, retries_of
from rmq_spark.protocol.pages import Death
from rmq_spark.topics.keys import DEFAULT_GROUP, consumer_key
from rmq_spark.topics.verdicts import Ending

LONG_MS = 3_600_000  # a lease or a wait that no test outlives
MOST_A_CLAIM = 8192  # what the script accepts
FAR_MS = 10**13  # a due time that no test outlives: the year 2286


@dataclass(frozen=True)
class Record:
    """What the hash of claims holds of one."""

    version: int
    made: int
    run: int
    deadline: int
    sealed: int
    held: int
    moved: int
    max_retries: int
    charged: int
    replayed: int
    arrivals: int
    expired: int


ENDS = ("merged", "committed", "cancelled", "dead", "expired")


def numbered(how_many, name="m", start=0):
    """Contents whose order as bytes is that of their numbers."""
    return [f"{name}{number:05}".encode() for number in range(start, start + how_many)]


def of_consumer(queue, consumer, build, *args):
    """The answer to a request about what Redis keeps of a consumer beside its headers."""
    return queue.server.ask(build(consumer_key(consumer, queue.key_prefix), *args))


def open_run(queue, consumer, known_run):
    """Begins a run of a consumer that reads this topic alone; returns its number."""
    return of_consumer(queue, consumer, claiming.open_run, queue.definition.name, known_run)


def note_committed(queue, consumer, seq):
    return of_consumer(queue, consumer, claiming.note_committed, seq)


def committed_up_to(queue, consumer):
    return of_consumer(queue, consumer, claiming.committed_up_to)


def requeue(queue, slot, contents, score):
    """Brings contents back from the dead queue with this very score."""
    pairs = [value for content in contents for value in (score, content)]
    return queue.ask(sending.requeue, {slot: pairs})


def rollback(queue, slot, claim_id, contents, delay_ms=None, reasons=(), ending=Ending.RETRY):
    wanted = Rollback(slot, claim_id, contents, delay_ms, reasons, ending)
    return queue.ask(returning.rollbacks, [wanted])


def suspect(level, deliveries):
    """The score of a message that may have ended its last holder."""
    return -(32 * level + deliveries)


class Slot:
    """The only slot of a topic, with short names for what tests do most."""

    def __init__(self, broker, name, topic_type="FixedTime", group=DEFAULT_GROUP, **settings):
        self.broker = broker
        self.redis = broker.server.client
        broker.create(name, topic_type, 1, **settings)
        self.queue = broker.queue(name, group=group)
        self.keys = self.queue.keys
        # Messages were sent to it before, and it has none now.
        self.count("accepted", 0)

    # -- filling

    def value_of(self, values):
        """The value that messages of its topic take, of one for each type."""
        keyword = self.queue.definition.type.keyword
        return {keyword: values[keyword]}

    def put(self, scores):
        """Stores contents with scores as if they had been sent, whatever the scores."""
        self.redis.zadd(self.keys.store(0), scores)
        self.count("accepted", len(scores))
        self.note_largest(scores)

    def forget_use(self):
        """Makes the slot one that no message ever came to."""
        self.redis.delete(self.keys.stats(0))

    def note_largest(self, contents):
        """Notes the size of the largest content, as a send does."""
        largest = max(map(len, contents), default=0)
        if largest > 1024:
            noted = int(self.redis.hget(self.keys.stats(0), "largest") or 0)
            self.count("largest", max(0, largest - noted))

    def put_due(self, contents, first_score=1000):
        """Stores contents that are due, in this order."""
        self.put({content: first_score + rank for rank, content in enumerate(contents)})

    def put_waiting(self, scores):
        """Puts contents into the retry queue; a score is due second * 1000 + retries left."""
        self.redis.zadd(self.keys.retry(0), scores)
        self.count("accepted", len(scores))
        self.note_largest(scores)

    def put_claims(self, how_many, deadline):
        """Claims of one message each, by as many consumers. Returns their names."""
        names = [f"c{number}:1:0" for number in range(how_many)]
        record = f"1 1000 1 {deadline} 1 1 0 16 0 0 0 0"
        self.redis.hset(self.keys.claims(0), mapping=dict.fromkeys(names, record))
        pipeline = self.redis.pipeline(transaction=False)
        for number, name in enumerate(names):
            pipeline.zadd(self.keys.claim(0, name), {b"held%d" % number: 1000})
        pipeline.execute()
        self.count("accepted", how_many)
        return names

    def bury(self, *contents):
        """Puts contents into the dead queue."""
        self.redis.zadd(self.keys.dead(0), dict.fromkeys(contents, 1))
        self.redis.hset(
            self.keys.deaths(0), mapping=dict.fromkeys(contents, "a 15 Broken: by hand")
        )
        self.count("accepted", len(contents))
        self.count("dead", len(contents))

    def count(self, counter, by):
        self.redis.hincrby(self.keys.stats(0), counter, by)

    # -- the queue's calls, with what most tests do not care about left out

    def claim(
        self, consumer="a", run=1, seq=1, ordinal=0, limit=MOST_A_CLAIM, alone=False, **options
    ):
        terms = self._terms(consumer, run, seq, **options)
        request = ClaimRequest(0, ordinal, limit, alone=alone)
        return self.queue.ask(claiming.claim, [request], terms)[0]

    def claim_reply(
        self, consumer="a", run=1, seq=1, ordinal=0, limit=MOST_A_CLAIM, others=(), **options
    ):
        """The reply of the script to one call, which names these other claims alone."""
        terms = self._terms(consumer, run, seq, **options)
        request = ClaimRequest(0, ordinal, limit)
        calls = claiming.claim_calls(self.queue.queues, request, terms, others)
        return self.queue.server.pipeline(calls)[0]

    def _terms(self, consumer, run, seq, epoch=None, lease_ms=LONG_MS, **options):
        epochs = None if epoch is None else {0: epoch}
        return claiming.Claiming(consumer, run, seq, lease_ms, epochs=epochs, **options)

    def claimed(self, *args, **options):
        return self.claim(*args, **options).contents

    def commit(self, consumer="a", run=1, seq=1, **which):
        return self.queue.ask(claiming.commit, {0: ()}, consumer, run, seq, **which)

    def give_back_expired(self, consumer="a"):
        """Gives back what has expired, as a consumer does before it claims."""
        due = self.queue.ask(reading.due, [0], consumer)
        return sum(self.queue.ask(returning.give_back_expired, due, consumer).values())

    def release(self, consumer="a", run=1):
        return self.queue.ask(claiming.release, [0], consumer, run)

    def rollback(self, contents, claim_id="a:1:0:1", **how):
        return rollback(self.queue, 0, claim_id, contents, **how)

    # -- looking

    def scores(self, kind):
        """The whole parts: behind the point, Priority messages have their place among equals."""
        found = self.redis.zrange(getattr(self.keys, kind)(0), 0, -1, withscores=True)
        return {content: math.floor(score) for content, score in found}

    @property
    def store(self):
        return self.scores("store")

    def held(self, name):
        """The messages of a claim, with the scores that they had in the store."""
        return dict(self.redis.zrange(self.keys.claim(0, name), 0, -1, withscores=True))

    @property
    def prepare(self):
        """The messages of all claims, with the scores that they had in the store."""
        return {
            content: score for name in self.records for content, score in self.held(name).items()
        }

    @property
    def retry(self):
        return self.scores("retry")

    @property
    def dead(self):
        return self.scores("dead")

    @property
    def deaths(self):
        """Of each message in the dead queue: the consumer, a blank, the reason."""
        texts = self.redis.hgetall(self.keys.deaths(0))
        deaths = {content: Death.parse(text) for content, text in texts.items()}
        return {
            content: f"{death.consumer} {death.reason}".encode()
            for content, death in deaths.items()
        }

    @property
    def retries_left(self):
        """Of each message in the prepare queue."""
        return {
            content: retries_of(int(score), record.max_retries, record.charged)
            for name, record in self.records.items()
            for content, score in self.held(name).items()
        }

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
        found = self.redis.scan_iter(f"{self.broker.key_prefix}*", count=1000)
        keys = [key.decode() for key in found]
        return {key: self.redis.dump(key) for key in keys if key.endswith("_0") or "_0}" in key}

    def remove(self):
        """Deletes what the slot holds, so that later tests do not search through it."""
        names = [field.decode() for field in self.redis.hkeys(self.keys.claims(0))]
        of_claims = self.queue.queues.claims_and_bodies(0, names)
        self.redis.unlink(*self.queue.queues.keys_of(0, ALL_KINDS), *of_claims)

    def check_conservation(self):
        """What was accepted is in exactly one place, or came to exactly one end."""
        counters = self.queue.figures().counters
        ends = sum(counters[name] for name in ENDS)
        records = self.records
        pipeline = self.redis.pipeline(transaction=False)
        for key in (self.keys.store(0), self.keys.retry(0), *self.keys.claims_of(0, records)):
            pipeline.zcard(key)
        stored, waiting, *held = pipeline.execute()
        assert counters["accepted"] == ends + stored + waiting + sum(held), (counters, held)
        assert held == [record.held for record in records.values()]
        assert set(self.redis.hkeys(self.keys.deaths(0))) == set(self.dead)
        self.check_bodies()

    def check_bodies(self):
        """Each body belongs to a message that waits, or to a claim that holds messages."""
        waiting = set(self.store) | set(self.retry)
        bodies = set(self.redis.hkeys(self.keys.bodies(0)))
        assert bodies <= waiting
        assert not self.queue.definition.keyed or bodies == waiting
        held = [name for name, record in self.records.items() if record.held]
        of_claims = {self.keys.claim_bodies(0, name).encode() for name in held}
        found = set(self.redis.scan_iter(f"{self.keys.bodies(0)}:*", count=1000))
        assert found <= of_claims
        assert not self.queue.definition.keyed or found == of_claims
