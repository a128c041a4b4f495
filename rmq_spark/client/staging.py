"""Messages that wait, hidden from consumers, until their whole batch is published."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from rmq_spark.errors import StageLost
from rmq_spark.protocol import sealing, stages
from rmq_spark.protocol.messagepack import Pairs, calls_of
from rmq_spark.protocol.sealing import FORGET_STAGES_MS, Manifest, Sealed
from rmq_spark.protocol.sending import SendResult
from rmq_spark.protocol.stages import MESSAGES_A_STAGING, Begun, StageName
from rmq_spark.protocol.topic_queues import TopicQueues
from rmq_spark.topics.definition import Keys, TopicDefinition, sink_key
from rmq_spark.transport.server import Server

_log = logging.getLogger(__name__)


class Staging:
    """The staged messages of one topic, for all its consumer groups.

    A stage that was published stays registered with the number of its messages: this is the
    evidence that lets a repeated publish tell it from a stage that Redis has forgotten. The sweep
    of a later batch deletes it, for that batch is sealed only when this one is concluded.
    """

    def __init__(self, server: Server, definition: TopicDefinition, key_prefix: str = "") -> None:
        self._server = server
        self._prefix = key_prefix
        self._queues = TopicQueues(definition, Keys(definition.name, key_prefix))

    def stage(self, name: str, by_slot: Mapping[int, Pairs], held: dict[int, int]) -> None:
        """Append messages to a stage: by slot, score, content, score, content, ...

        held: by slot, how many messages the stage should hold before; updated. Raises ServerFull,
        and StageLost where the stage holds another number.
        """
        parts = {slot: calls_of(pairs, MESSAGES_A_STAGING) for slot, pairs in by_slot.items()}
        # One part a slot in each pipeline: within one, calls may change places.
        for at in range(max(map(len, parts.values()), default=0)):
            now = {slot: of_slot[at] for slot, of_slot in parts.items() if at < len(of_slot)}
            held.update(self._server.ask(stages.stage(self._queues, name, now, held)))

    def publish(self, totals: Mapping[int, Mapping[str, int]]) -> SendResult:
        """Move stages into the stores.

        totals: by slot and name, how many messages each stage was given. A stage that was published
        before adds nothing. Raises StageLost where a stage and its published messages do not add up
        to its total.
        """
        return self._server.ask(stages.publish(self._queues, totals))

    def discard(self, names: Mapping[int, Iterable[str]]) -> int:
        """Delete stages, by slot. Return how many lists there were."""
        return self._server.ask(stages.discard(self._queues, names))

    def begun(self, slots: Sequence[int]) -> list[dict[str, Begun]]:
        """Return the registered stages of each slot, by name."""
        return self._server.ask(stages.begun(self._queues, slots))

    def sweep(
        self,
        slots: Sequence[int],
        query: str,
        batch: int,
        published: Mapping[int, Mapping[str, int]],
    ) -> bool:
        """Delete the stages of a query up to a batch, except those of ``published``.

        published: the totals of the batch, as publish took them. Returns False, and deletes
        nothing, where the evidence for any of them is missing: Redis has forgotten writes.
        """
        registered = dict(zip(slots, self.begun(slots), strict=True))
        if not all(
            registered[slot].get(name, Begun(0)).published == total
            for slot, of_slot in published.items()
            for name, total in of_slot.items()
        ):
            return False
        self.discard(
            {
                slot: leftovers
                for slot, names in registered.items()
                if (leftovers := _up_to(batch, query, names.keys() - published.get(slot, {})))
            }
        )
        return True

    def forget(self, slots: Sequence[int]) -> None:
        """End stages that were begun more than 30 days ago; their queries do not come back.

        A stage that its query has sealed is published, and its evidence stays until the query
        concludes the batch; other stages are deleted.
        """
        end_ms = self._server.now_ms() - FORGET_STAGES_MS
        for slot, begun in zip(slots, self.begun(slots), strict=True):
            for name in (name for name, stage in begun.items() if stage.ms <= end_ms):
                sealed = SealedBatches(self._server, StageName.parse(name).query, self._prefix)
                of_topic = sealed.last().pending.by_topic().get(self._queues.definition.name, {})
                if name in of_topic.get(slot, {}):
                    self._publish_forgotten(slot, name, of_topic[slot][name])
                else:
                    self.discard({slot: [name]})

    def _publish_forgotten(self, slot: int, name: str, total: int) -> None:
        try:
            self.publish({slot: {name: total}})
        except StageLost as error:  # one query's loss must not end the work for all others
            _log.warning("rmq: a stage of a query that did not come back: %s", error)


class SealedBatches:
    """The batch that a streaming query sealed last, and its stages still to be published."""

    def __init__(self, server: Server, query: str, key_prefix: str = "") -> None:
        self._server = server
        self._key = sink_key(query, key_prefix)

    def seal(self, batch: int, manifest: Manifest) -> tuple[int, Manifest]:
        """Fix the contents of a batch, once. Return the batch to publish, and its manifest.

        The manifest is that of the first caller, and empty once it is published. An earlier batch
        that is not published yet comes first. Raises CheckpointRefused when a later one is sealed.
        """
        return self._server.ask(sealing.seal(self._key, batch, manifest))

    def announce(self, batch: int, manifest: Manifest, name: str) -> bool:
        """Announce that all of a sealed batch is published, before the evidence is checked.

        name: a name that no other announcement has. Returns False where this manifest is not
        sealed.
        """
        return self._server.ask(sealing.announce(self._key, batch, manifest, name))

    def conclude(self, batch: int, name: str) -> bool:
        """Note that all stages of a sealed batch are published.

        Returns False where the announcement of that name is gone: Redis fell back meanwhile, or
        another driver is at work.
        """
        return self._server.ask(sealing.conclude(self._key, batch, name))

    def unseal(self, batch: int, manifest: Manifest) -> bool:
        """Let a batch that has lost a stage be staged anew.

        Returns False where this manifest is not sealed and pending any more.
        """
        return self._server.ask(sealing.unseal(self._key, batch, manifest))

    def last(self) -> Sealed:
        """Return the batch sealed last, and its stages that are not noted as published."""
        return self._server.ask(sealing.last_sealed(self._key))


def _up_to(batch: int, query: str, texts: Iterable[str]) -> list[str]:
    names = map(StageName.parse, texts)
    return [str(name) for name in names if name.query == query and name.batch <= batch]
