"""Everything that plain Python does with the queue, once: what a Redis user must be permitted."""

import uuid

from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.messages import Message
from rmq_spark.client.staging import stage
from rmq_spark.protocol import claiming, reading, sending
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.protocol.staging import Manifest, StageName

from ..seeding import committed_up_to, note_committed, open_run
from ..waiting import wait_until

DUE = 1_000_000  # ms: long past, so due at once
LEASE_MS = 60_000
LIMITS = {"max_messages": 100, "max_bytes": "1gb", "unique_for": "1h"}


class Journey:
    """A topic of each type under the broker's prefix, worked on in every way there is."""

    def __init__(self, broker):
        self.broker = broker

    def make(self, **settings):
        for topic_type in ("FixedTime", "RangeMerge", "Priority"):
            limits = LIMITS | settings if topic_type == "RangeMerge" else {}
            self.broker.create(topic_type, topic_type, 2, max_retries=1, **limits)
        assert len(self.broker.topics()) == 3
        self.broker.alter("Priority", retry_backoff="10s")

    def send(self):
        fixed, ranged, prior = self.queues()
        assert fixed.send(["a", "b", "c", "d"], fixed_time=DUE).new == 4
        assert fixed.send(["a"], fixed_time=DUE + 1).merged == 1
        assert fixed.send(["later"], fixed_time=10**13, past_fixed_time="fail").new == 1
        assert ranged.send(["a", "a"], time_range=10**9, headers={"b": "c"}).repeated == 1
        assert prior.send(["low", "high"], priority=20).new == 2
        assert any(
            queue.ask(reading.any_due, queue.slots, one_node=True) for queue in (fixed, prior)
        )

    def look(self):
        """From page to page of every queue; and a purge of what is not there."""
        queue = self.broker.queue("FixedTime")
        pages = [
            page for kind in QueueKind for slot in queue.slots for page in queue.pages(kind, slot)
        ]
        for page in pages:
            if page.contents:
                last = page.scores[-1], page.contents[-1]
                assert queue.ask(reading.page, page.kind, page.slot, after=last)[0].contents == []
        assert sum(len(page.contents) for page in pages) == 5
        assert sum(queue.ask(reading.sizes, list(QueueKind), queue.slots)) == 5
        assert queue.purge({slot: [b"a"] for slot in queue.slots}) == 0

    def consume(self):
        with self.broker.consumer("FixedTime", "clerk") as clerk:
            batch = clerk.poll(limit=4)
            assert len(batch) == 4
            batch.renew()
            assert batch.rollback([next(iter(batch))]) == 1
            assert batch.commit() == 3
            batch = clerk.poll()
            assert [message.delivery_count for message in batch] == [2]
            assert batch.rollback() == 1  # it has no retry left
        assert self.broker.queue("FixedTime").figures().dead.count == 1

    def bring_back(self):
        queue = self.broker.queue("FixedTime")
        by_slot = {slot: [b"a", b"b", b"c", b"d"] for slot in queue.slots}
        pairs = {s: [v for c in of for v in (DUE, c)] for s, of in by_slot.items()}
        assert queue.ask(sending.requeue, pairs) == 1
        assert queue.cancel(by_slot) == 1

    def put_off(self):
        """Rolled back with a wait, sent again meanwhile; and sent again while in flight."""
        queue = self.broker.queue("Priority")
        with self.broker.consumer("Priority", "clerk") as clerk:
            batch = clerk.poll(limit=2)
            queue.send(["low"], priority=30)
            assert len(clerk.queue.ask(reading.due, queue.slots, "another")) == 2
            with self.broker.consumer("Priority", "another") as another:
                assert len(another.poll()) == 0  # "low" is in flight
            assert batch.rollback() == 2
        assert queue.send(["high"], priority=30).merged == 1
        assert queue.figures().retry.count == 0

    def carry(self):
        """Bodies that expire, of messages in ascending and in descending order."""
        for topic_type, value in (("FixedTime", {"fixed_time": 0}), ("Priority", {"priority": 20})):
            self.broker.create("Keyed", topic_type, 1, keyed=True)
            queue = self.broker.queue("Keyed")
            queue.send([Message("x", key=key) for key in "abc"], time_to_live="1h", **value)
            with self.broker.consumer("Keyed", "clerk") as clerk:
                batch = clerk.poll()
                assert [message.content for message in batch] == [b"x"] * 3
                first = next(iter(batch))
                assert batch.rollback([first]) == 1
                assert batch.commit() == 2
                assert [(again.key, again.content) for again in clerk.poll()] == [(first.key, b"x")]
            self.broker.delete("Keyed")

    def lose_large(self):
        """A claim of large messages, which is given back in parts."""
        self.broker.create("Large", "FixedTime", 1)
        queue = self.broker.queue("Large")
        queue.send([b"%d" % number + bytes(600_000) for number in range(3)], fixed_time=DUE)
        with self.broker.consumer("Large", "clerk") as clerk:
            assert len(clerk.poll()) == 3
        assert queue.figures().store.count == 3
        self.broker.delete("Large")

    def lose(self):
        """A claim whose lease runs out, one that nobody read, and one that is read again."""
        queue = self.broker.queue("Priority")
        run = open_run(queue, "query", 0)
        asked = {"consumer": "query", "run": run, "seq": 1}
        requests = [ClaimRequest(slot, 0, 1) for slot in queue.slots]
        taken = queue.ask(claiming.claim, requests, claiming.Claiming(lease_ms=LEASE_MS, **asked))
        queue.ask(claiming.release, queue.slots, "query", run)
        assert queue.expire() == sum(len(claim.contents) for claim in taken)
        queue.ask(
            claiming.claim, requests, claiming.Claiming(lease_ms=LEASE_MS, **{**asked, "seq": 2})
        )
        queue.ask(claiming.unread, queue.slots, "query", run, 2)
        queue.ask(claiming.replay, "query", run + 1, 1, 2, LEASE_MS)
        queue.ask(claiming.release, queue.slots, "query", run + 1)
        queue.ask(claiming.commit, queue.slots, "query", run + 1, 2)
        note_committed(queue, "query", 2)
        assert committed_up_to(queue, "query") == 2

    def publish(self):
        """A batch that is sent exactly once, and what was staged in vain."""
        queue = self.broker.queue("FixedTime")
        sink = StagedSink(self.broker, "a-query")
        names = [StageName("a-query", 0, 0, uuid.uuid4().hex) for _ in range(2)]
        for name in names:
            stage(queue, str(name), {0: [DUE, b"x", DUE, b"y"]}, {})
        batch = Manifest({str(names[0]): {"FixedTime": {0: 2}}}, 2)
        assert sink.publish(0, batch).new == 2
        assert sink.resume(0, batch) is None
        sink.discard(Manifest({str(names[1]): {"FixedTime": {0: 2}}}))

    def schedule(self):
        self.broker.schedule("tick", "FixedTime", "x", every="1s")
        with self.broker.scheduler() as scheduler:
            wait_until(lambda: scheduler.sent, "an occurrence")
        self.broker.pause_schedule("tick")
        assert self.broker.unschedule("tick")

    def unmake(self):
        self.broker.alter("FixedTime", exclusive=True)
        self.broker.alter("FixedTime", exclusive=False)
        for topic in self.broker.topics():
            self.broker.delete(topic.name)

    def queues(self):
        return [self.broker.queue(name) for name in ("FixedTime", "RangeMerge", "Priority")]

    def all(self):
        self.make()
        self.send()
        self.look()
        self.consume()
        self.bring_back()
        self.put_off()
        self.carry()
        self.lose()
        self.lose_large()
        self.publish()
        self.schedule()
        self.unmake()
