"""Publishing batches exactly once: what a streaming query's driver does with staged messages.

::

    tasks       stage: lists of messages that no consumer sees
    driver      seal: one write decides which stages the batch consists of
                publish: a few thousand messages a call, out of the stages into the stores
                sweep: what was staged in vain is deleted
                conclude: one write
    a replay    of a batch that is sealed stages nothing: what was sealed first is published to its
                end; one that is not sealed begins anew
"""

import logging
from collections.abc import Mapping, Sequence

from rmq_spark.queue.broker import Broker
from rmq_spark.queue.errors import CheckpointRefused, StageLost
from rmq_spark.queue.messages import SendResult
from rmq_spark.queue.staging import Manifest, Sealed, SinkBook, Staging

_log = logging.getLogger(__name__)


class StagedSink:
    """The batches of one streaming query."""

    def __init__(self, broker: Broker, query: str) -> None:
        self._broker = broker
        self._query = query
        self._book = SinkBook(broker.server, query, broker.key_prefix)

    def publish(self, batch: int, staged: Manifest) -> SendResult | None:
        """Publishes a batch, unless that was done before (None); may be called again at any time.

        What this query has staged for this batch and earlier ones, and is not part of them, is
        deleted. Raises CheckpointRefused when a later batch was published; then nothing is stored.
        """
        try:
            sealed, manifest = self._book.seal(batch, staged)
        except CheckpointRefused:
            self.discard(staged)
            raise
        result = self._finish(sealed, manifest, staged)
        return result if sealed == batch else self.publish(batch, staged)

    def resume(self, batch: int, staged: Manifest) -> SendResult | None:
        """Publishes a batch that a task has found sealed and so did not stage again.

        Never seals it: a manifest without what such a task left out would lose that. Raises
        StageLost where Redis has forgotten the seal meanwhile, else as publish.
        """
        last = self.last()
        if last.batch < batch:
            raise StageLost(
                f"Batch {batch} of the query {self._query} was sealed when its tasks began, and is "
                "not any more: Redis has lost writes. Nothing was sent; start the query again."
            )
        if last.batch > batch:
            return self.publish(batch, staged)  # refuses
        return self._finish(batch, last.pending, staged)

    def last(self) -> Sealed:
        """The batch that this query has sealed last."""
        return self._book.last()

    def discard(self, staged: Manifest) -> None:
        """Deletes stages that were not, and will never be, part of a batch."""
        for topic, names in staged.by_topic().items():
            staging = self._staging(topic)
            if staging is not None:
                staging.discard(names)

    def _finish(self, batch: int, manifest: Manifest, staged: Manifest) -> SendResult | None:
        result = self._publish(manifest)
        # Before the manifest goes: whoever is killed in here leaves where it must be done again.
        self._sweep(batch, staged.by_topic(), manifest.by_topic())
        self._book.conclude(batch)
        return result if manifest.stages else None

    def _publish(self, manifest: Manifest) -> SendResult:
        new = merged = 0
        for topic, names in manifest.by_topic().items():
            staging = self._staging(topic)
            if staging is None:
                _log.warning("rmq: topic %s was deleted: what was staged for it is gone", topic)
                continue
            result = staging.publish(names)
            new, merged = new + result.new, merged + result.merged
        return SendResult(new, merged)

    def _sweep(self, batch: int, *touched: Mapping[str, Mapping[int, Sequence[str]]]) -> None:
        for topic in {topic for each in touched for topic in each}:
            slots = sorted({slot for each in touched for slot in each.get(topic, ())})
            staging = self._staging(topic)
            if staging is not None:
                staging.sweep(slots, self._query, batch)

    def _staging(self, topic: str) -> Staging | None:
        """None for a topic that was deleted, with all its stages."""
        broker, definition = self._broker, self._broker.find(topic)
        if definition is None:
            return None
        return Staging(broker.server, definition, broker.key_prefix)
