"""The scripts that read or move messages, on large ones: more of them than one call works on."""

import time

from rmq_spark.client import Broker
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.staging import stage
from rmq_spark.protocol import claiming, returning, sending
from rmq_spark.protocol.claims import MESSAGES_A_CLAIM, ClaimRequest, Rollback
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.protocol.staging import Manifest

LARGE = "Large"
LEASE_MS = 600_000
# The bytes of all messages of a topic: several times what one call works on.
BYTES_A_TOPIC = 48 * 1024 * 1024


class LargeScenario:
    """One slot with messages of one size: published, claimed, returned, dead, and deleted."""

    def __init__(self, broker: Broker, message_bytes: int) -> None:
        self._broker = broker
        self._rounds, self._query = 0, f"large{message_bytes}"
        self._contents = [
            b"%020d" % number + bytes(message_bytes - 20)
            for number in range(BYTES_A_TOPIC // message_bytes)
        ]

    def run(self) -> None:
        """Call every script that works on messages."""
        self._rounds += 1
        self._broker.create(LARGE, "FixedTime", 1, max_retries=1, dead_retention="1ms")
        queue, contents = self._broker.queue(LARGE), self._contents
        pairs = [value for content in contents for value in (1000, content)]
        name = f"{self._query}:{self._rounds}:0:a"
        stage(queue, name, {0: pairs}, {0: 0})
        manifest = Manifest({name: {LARGE: {0: len(contents)}}}, len(contents))
        StagedSink(self._broker, self._query).publish(self._rounds, manifest)
        claim = self._claim(1)
        queue.ask(returning.rollbacks, [Rollback(0, claim.claim_id, claim.contents, 1)])
        self._claim(2, lease_ms=1)
        time.sleep(1)  # the lease and the waits end
        queue.expire([0])
        claim = self._claim(3)
        queue.ask(returning.rollbacks, [Rollback(0, claim.claim_id, claim.contents, 0)])
        dead = [content for page in queue.pages(QueueKind.DEAD, 0) for content in page.contents]
        queue.requeue({0: dead[: len(dead) // 2]})
        queue.expire([0])
        queue.ask(sending.send, {0: pairs})
        queue.cancel({0: contents[: len(contents) // 2]})
        queue.purge({0: contents[len(contents) // 2 :]}, QueueKind.STORE)
        self._broker.delete(LARGE)

    def _claim(self, seq: int, lease_ms: int = LEASE_MS) -> claiming.Claim:
        terms = claiming.Claiming("large", 1, seq, lease_ms)
        request = ClaimRequest(0, 0, MESSAGES_A_CLAIM)
        return self._broker.queue(LARGE).ask(claiming.claim, [request], terms)[0]
