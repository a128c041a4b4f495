"""Every script once, on slots that hold much, with as much as one call of it may hold."""

import time
from collections.abc import Sequence
from dataclasses import replace

from storing import dead, waiting

from rmq_spark.client import Broker, Queue
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.staging import stage
from rmq_spark.protocol import claiming, reading, returning, sending, staging
from rmq_spark.protocol.claims import CLAIMS_A_SLOT, MESSAGES_A_CLAIM, ClaimRequest, Rollback
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.protocol.returning import MESSAGES_A_ROLLBACK
from rmq_spark.protocol.sending import MESSAGES_A_REPAIR, MESSAGES_A_SEND
from rmq_spark.protocol.staging import MESSAGES_A_STAGING, Manifest
from rmq_spark.topics.keys import consumer_key, sink_key

# The topics of the scenario: Full holds nearly all messages, Gone is deleted in each round.
FULL, FIRST, LAST, GONE, BURIED = "Full", "First", "Last", "Gone", "Buried"
LEASE_MS, DAY_MS = 600_000, 86_400_000
OTHER_CONSUMERS, OTHER_CLAIM = 8, 64
LEADS = 16


class Scenario:
    """One slot after another is worked on by senders, consumers, sinks and operators."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._full: Queue = broker.queue(FULL)
        self._sent = 0
        client, store = broker.server.client, self._full.keys.store(0)
        due = client.zcount(store, "-inf", self._full.now_ms())
        # A slot of a small trial holds fewer.
        self._claim_size = min(MESSAGES_A_CLAIM, due // 8)
        self._other_claim = min(OTHER_CLAIM, due // 4 // OTHER_CONSUMERS // CLAIMS_A_SLOT)

    def run(self, slot: int) -> None:
        """Call every script but alter, pause and drop, on one slot."""
        self._send(slot)
        self._consume(slot)
        self._hold(slot)
        self._send(slot)
        self._consume_past_others(slot)
        self._read(slot)
        self._repair(slot)
        self._publish(slot)

    def run_on_topics(self) -> None:
        """Call the scripts that change topics."""
        for paused in (True, False):
            self._broker.alter(FULL, paused=paused)
        self._broker.alter(FULL, max_retries=15, rate="1000000/s")
        self._broker.queue(FULL).ask(claiming.grant, 1)
        self._broker.alter(FULL, rate="none")
        self._broker.delete(GONE)

    def _send(self, slot: int) -> None:
        later_ms = self._full.now_ms() + DAY_MS
        for topic, score in ((FULL, later_ms), (FIRST, DAY_MS), (LAST, 50)):
            pairs = [value for content in self._new(MESSAGES_A_SEND) for value in (score, content)]
            self._broker.queue(topic).ask(sending.send, {slot: pairs})
        (content,) = self._new(1)
        notes = ("", f"{later_ms} {later_ms}")
        self._full.ask(sending.occur, slot, f"s{self._sent}", notes, (later_ms, content, b""))

    def _new(self, messages: int) -> list[bytes]:
        """Contents that no slot has yet."""
        first, self._sent = self._sent, self._sent + messages
        return [b"sent %029d" % number for number in range(first, self._sent)]

    def _claim(self, slot: int, terms: claiming.Claiming, claims: Sequence[int]) -> list[str]:
        """Make claims of so many messages each. Returns their ids."""
        requests = [ClaimRequest(slot, number, most) for number, most in enumerate(claims)]
        return [claim.claim_id for claim in self._full.ask(claiming.claim, requests, terms)]

    def _consume(self, slot: int) -> None:
        """A query's batch: planned, claimed, renewed, replayed by the next run, and committed."""
        ask, name = self._full.ask, f"query{slot}"
        server, key = self._broker.server, consumer_key(name)
        run = server.ask(claiming.open_run(key, FULL, 0))
        ask(claiming.plan, [slot], name, run, "mark")
        terms = claiming.Claiming(name, run, 1, LEASE_MS, mark="mark")
        self._claim(slot, terms, [self._claim_size] * 2)
        ask(claiming.renew, [slot], name, run, LEASE_MS)
        run = server.ask(claiming.open_run(key, FULL, run))
        ask(claiming.replay, name, run, 0, 1, LEASE_MS)
        again = replace(terms, run=run, replay_only=True)
        claim_id, _ = self._claim(slot, again, [self._claim_size] * 2)
        self._roll_back(slot, claim_id)
        ask(claiming.commit, [slot], name, run, 1)
        server.ask(claiming.note_committed(key, 1))

    def _hold(self, slot: int) -> None:
        """As many consumers hold as many claims as a slot usually sees at most."""
        for number in range(OTHER_CONSUMERS):
            terms = claiming.Claiming(f"other{number}", 1, 1, LEASE_MS)
            self._claim(slot, terms, [self._other_claim] * CLAIMS_A_SLOT)

    def _consume_past_others(self, slot: int) -> None:
        """A consumer whose claims are rolled back, given back, left and released."""
        ask, name = self._full.ask, f"service{slot}"
        terms = claiming.Claiming(name, 1, 1, LEASE_MS)
        (claim_id,) = self._claim(slot, terms, [self._claim_size])  # compared with the others'
        ask(claiming.unread, [slot], name, 1, 1)
        self._roll_back(slot, claim_id)
        for number in range(OTHER_CONSUMERS):
            ask(claiming.release, [slot], f"other{number}", 1)
        due = ask(reading.due, [slot], name)
        ask(returning.give_back_expired, due, name)
        ask(returning.give_back, [slot], name, 1, 1)
        whole = claiming.Claiming(f"{name}b", 1, 1, 1)
        time.sleep(0.002)  # the waits of the retries end
        self._claim(slot, whole, [self._claim_size])  # with retries
        time.sleep(0.002)  # its lease ends
        self._full.expire([slot])

    def _roll_back(self, slot: int, claim_id: str) -> None:
        """Roll back as many messages of a claim as a call may; they come again in a ms."""
        name = claim_id.rpartition(":")[0]
        client, key = self._full.server.client, self._full.keys.claim(slot, name)
        held = client.zrange(key, 0, MESSAGES_A_ROLLBACK - 1)
        failed = Rollback(slot, claim_id, held, 1, ["ValueError: once"])
        self._full.ask(returning.rollbacks, [failed])

    def _read(self, slot: int) -> None:
        queue = self._full
        now_ms = queue.now_ms()
        queue.ask(reading.any_due, queue.slots, one_node=True)
        queue.ask(reading.stirred, queue.slots, one_node=True)
        queue.ask(reading.waiting, queue.slots, "bytes")
        queue.ask(reading.counts, [slot], [now_ms - 1000 * lead for lead in range(LEADS)])
        queue.figures()
        for kind in (QueueKind.STORE, QueueKind.DEAD):
            next(queue.pages(kind, slot))

    def _repair(self, slot: int) -> None:
        queue = self._full
        slots, last = (
            queue.definition.slot_amount,
            queue.server.client.zcard(queue.keys.store(slot)),
        )
        numbers = [slot + slots * (last // 2 + number) for number in range(2 * MESSAGES_A_SEND)]
        contents = list(map(waiting, numbers))
        queue.find({slot: contents[:1]})
        queue.move({slot: contents[:MESSAGES_A_SEND]}, delay="1h")
        queue.cancel({slot: contents[:MESSAGES_A_SEND]})
        queue.purge({slot: contents[MESSAGES_A_SEND:]}, QueueKind.STORE)
        queue.requeue({slot: [dead(slot + slots * n) for n in range(MESSAGES_A_REPAIR)]})
        self._broker.queue(BURIED).expire([slot])

    def _publish(self, slot: int) -> None:
        """A batch of a sink, another that is unsealed, and a stage that is left behind."""
        server, query = self._broker.server, f"sink{slot}"
        due_ms = self._full.now_ms() + DAY_MS
        manifests = []
        for name in (f"{query}:1:0:a", f"{query}:1:0:b"):
            pairs = [
                value for content in self._new(MESSAGES_A_STAGING) for value in (due_ms, content)
            ]
            stage(self._full, name, {slot: pairs}, {slot: 0})
            totals = {FULL: {slot: MESSAGES_A_STAGING}}
            manifests.append(Manifest({name: totals}, MESSAGES_A_STAGING))
        key = sink_key(f"{query}b")
        server.ask(staging.seal(key, 1, manifests[0]))
        server.ask(staging.unseal(key, 1, manifests[0]))
        sink = StagedSink(self._broker, query)
        sink.publish(1, manifests[0])
        sink.discard(manifests[1])
