"""Exactly-once publishing of batches, by the driver of a streaming query.

::

    tasks       stage: append messages to lists that no consumer sees
    driver      seal: one write decides which stages the batch consists of
                publish: move the stages into the stores, a few thousand messages a call
                announce: one write, which Redis loses if it loses a message published before
                sweep: check the evidence that every stage was published; then delete the stages
                that no batch contains, and the evidence of earlier batches
                conclude: one write, refused if the announcement is gone
    a replay    of a sealed batch stages nothing: its sealed stages are published to the end;
                a batch that is not sealed starts again

The evidence of a batch outlives its manifest: only the sweep of a later batch deletes it, and a
later batch is sealed only after this one is concluded. So a driver that is killed between any two
calls leaves a manifest with its evidence, or no manifest.

If a driver finds that evidence is missing, it checks whether its manifest is still sealed. If so,
Redis has lost messages, and the driver unseals the batch. If not, another driver has continued in
the meantime, and this one starts again from the batch that is sealed now.
"""

import logging
import uuid
from collections.abc import Iterable

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.client.staging import sweep
from rmq_spark.errors import CheckpointRefused, RmqError, StageLost
from rmq_spark.protocol import staging
from rmq_spark.protocol.sending import SendResult
from rmq_spark.protocol.staging import FORGET_STAGES_MS, Manifest, Sealed
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.keys import sink_key

_log = logging.getLogger(__name__)


class StagedSink:
    """The sink of one streaming query, which publishes each of its batches exactly once.

    forget_ms: after how long without a batch Redis forgets the sink; 0 for never.
    """

    def __init__(self, broker: Broker, query: str, forget_ms: int = FORGET_STAGES_MS) -> None:
        self._broker = broker
        self._query = query
        self._forget_ms = forget_ms
        self._key = sink_key(query, broker.key_prefix)
        self._ask = broker.server.ask

    def check_unchanged(self, topics: Iterable[TopicDefinition], staged: Manifest) -> None:
        """Refuse to seal messages whose topic was created again in another way; delete them."""
        for topic in topics:
            now = self._broker.find(topic.name)
            if now is not None and not now.takes_messages_of(topic):
                self.discard(staged)
                raise StageLost(
                    f"The topic {topic.name} was created again in another way while the batch was "
                    "staged. Nothing of the batch was sent. Start the query again: it stages the "
                    "batch for the topic as it is now."
                )

    def publish(self, batch: int, staged: Manifest) -> SendResult | None:
        """Publish a batch. Return None if it was published before. You can repeat the call.

        Deletes stages that this query made for this batch or an earlier one but that are not part
        of a sealed batch. Raises CheckpointRefused if a later batch is sealed; nothing is then
        stored. Raises StageLost if Redis has lost messages of a batch; that batch is then unsealed,
        and can be staged and published again.
        """
        while True:
            try:
                sealed, manifest = self._ask(staging.seal(self._key, batch, staged))
            except CheckpointRefused:
                self.discard(staged)
                raise
            try:
                result = self._finish(sealed, manifest, staged)
            except StageLost as error:
                if sealed == batch:
                    raise
                raise StageLost(
                    f"{error} Batch {sealed} of the query {self._query} was sealed and is not "
                    f"published, and Spark is at batch {batch}: if it does not run batch {sealed} "
                    "again, send that batch's rows yourself."
                ) from None
            if result is not None and sealed == batch:
                # An empty manifest: an earlier run has published the batch.
                return result if manifest.stages else None

    def resume(self, batch: int, staged: Manifest) -> SendResult | None:
        """Publish a batch that a task found sealed and therefore did not stage again.

        Never seals the batch: the manifest would lack the messages that such a task did not stage,
        and they would be lost. Raises StageLost if the batch is no longer sealed, and otherwise the
        same errors as publish.
        """
        while True:
            last = self.last()
            if last.batch < batch:
                raise StageLost(
                    f"Batch {batch} of the query {self._query} is no longer sealed: Redis has lost "
                    "the seal. Start the query again: it stages the whole batch again. Messages "
                    "already published may be sent twice."
                )
            if last.batch > batch:
                return self.publish(batch, staged)  # raises CheckpointRefused
            result = self._finish(batch, last.pending, staged)
            if result is not None:
                return result if last.pending.stages else None

    def last(self) -> Sealed:
        """Return the batch that the query sealed last."""
        return self._ask(staging.last_sealed(self._key))

    def discard(self, staged: Manifest) -> None:
        """Delete stages that are not, and will never be, part of a batch."""
        for topic, names in staged.by_topic().items():
            if queue := self._queue(topic):
                queue.ask(staging.discard, names)

    def discard_after_error(self, staged: Manifest) -> None:
        """Discard stages, after an error that another one must not hide."""
        try:
            self.discard(staged)
        except RmqError as error:
            _log.warning("rmq: unused staged messages stay until the next batch: %s", error)

    def _finish(
        self, batch: int, sealed_manifest: Manifest, own_stages: Manifest
    ) -> SendResult | None:
        """Publish and conclude a sealed batch.

        own_stages: those of this run, which differ if an earlier run sealed the batch. Returns None
        if the caller must look again: another batch was sealed in the meantime, or not all stages
        are published.
        """
        try:
            result = self._publish(sealed_manifest)
        except StageLost:
            unseal = staging.unseal(self._key, batch, sealed_manifest, self._forget_ms)
            if not self._ask(unseal):
                return None
            self.discard(sealed_manifest)
            self.discard(own_stages)
            raise
        name = uuid.uuid4().hex
        # conclude comes last and deletes the manifest: a driver killed before then leaves it to be
        # finished again.
        if (
            self._ask(staging.announce(self._key, batch, sealed_manifest, name))
            and self._sweep(batch, sealed_manifest, own_stages)
            and self._ask(staging.conclude(self._key, batch, name, self._forget_ms))
        ):
            return result
        return None

    def _publish(self, manifest: Manifest) -> SendResult:
        sent = SendResult(0, 0)
        for topic, totals in manifest.by_topic().items():
            queue = self._queue(topic)
            if queue is None:
                _log.warning("rmq: topic %s was deleted, and with it its staged messages", topic)
                continue
            sent += queue.ask(staging.publish, totals)
        return sent

    def _sweep(self, batch: int, manifest: Manifest, staged: Manifest) -> bool:
        """Delete leftover stages. Return whether every stage of the manifest was published."""
        published, touched = manifest.by_topic(), staged.by_topic()
        for topic in published.keys() | touched.keys():
            totals = published.get(topic, {})
            slots = sorted(totals.keys() | touched.get(topic, {}).keys())
            queue = self._queue(topic)
            if queue is not None and not sweep(queue, slots, self._query, batch, totals):
                return False
        return True

    def _queue(self, topic: str) -> Queue | None:
        """Return a queue of a topic; None if the topic and its stages were deleted."""
        broker, found = self._broker, self._broker.find(topic)
        if found is None:
            return None
        return Queue(broker.server, found, key_prefix=broker.key_prefix, group=found.usual_group)
