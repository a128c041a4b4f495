"""Publishing batches exactly once: what a streaming query's driver does with staged messages.

::

    tasks       stage: lists of messages that no consumer sees
    driver      seal: one write decides which stages the batch consists of
                publish: a few thousand messages a call, out of the stages into the stores
                conclude: one write
    a replay    stages again, but sealing returns what was sealed first: that is published to its
                end, and what was staged again is deleted
"""

from collections.abc import Mapping, Sequence

from rmq_spark.queue.broker import Broker
from rmq_spark.queue.errors import CheckpointRefused
from rmq_spark.queue.messages import SendResult
from rmq_spark.queue.staging import Manifest, SinkBook, Staging


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
        result = self._publish(manifest)
        self._book.conclude(sealed)
        if sealed != batch:
            return self.publish(batch, staged)
        self._sweep(batch, staged.by_topic(), manifest.by_topic())
        return result if manifest.stages else None

    def discard(self, staged: Manifest) -> None:
        """Deletes stages that were not, and will never be, part of a batch."""
        for topic, names in staged.by_topic().items():
            self._staging(topic).discard(names)

    def _publish(self, manifest: Manifest) -> SendResult:
        new = merged = 0
        for topic, names in manifest.by_topic().items():
            result = self._staging(topic).publish(names)
            new, merged = new + result.new, merged + result.merged
        return SendResult(new, merged)

    def _sweep(self, batch: int, *touched: Mapping[str, Mapping[int, Sequence[str]]]) -> None:
        for topic in {topic for each in touched for topic in each}:
            slots = sorted({slot for each in touched for slot in each.get(topic, ())})
            self._staging(topic).sweep(slots, self._query, batch)

    def _staging(self, topic: str) -> Staging:
        broker = self._broker
        return Staging(broker.server, broker.definition(topic), broker.key_prefix)
