"""Stages: messages hidden from consumers until their whole batch is published."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from rmq_spark.errors import StageLost
from rmq_spark.protocol import sealing, stages
from rmq_spark.protocol.messagepack import Pairs, calls_of
from rmq_spark.protocol.sealing import FORGET_STAGES_MS, Manifest, Sealed
from rmq_spark.protocol.sending import SendResult
from rmq_spark.protocol.stages import MESSAGES_A_STAGING, Begun, StageName
from rmq_spark.protocol.topic_queues import TopicQueues
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.keys import Keys, sink_key
from rmq_spark.transport.server import Server

_log = logging.getLogger(__name__)


class Staging:
    """The stages of one topic, for all its consumer groups.

    A stage that is published stays registered with the number of its messages. By this evidence, a
    repeated publish distinguishes it from a stage that Redis has lost. The sweep of a later batch
    deletes the evidence, because that batch is sealed only after this one is concluded.
    """

    def __init__(self, server: Server, definition: TopicDefinition, key_prefix: str = "") -> None:
        self._server = server
        self._prefix = key_prefix
        self._queues = TopicQueues(definition, Keys(definition.name, key_prefix))

    def stage(
        self,
        name: str,
        by_slot: Mapping[int, Pairs],
        held: dict[int, int],
        bodies: Mapping[int, Pairs] | None = None,
    ) -> None:
        """Append messages to a stage.

        by_slot: score, content, score, content, ... for each slot. held: the number of messages
        that the stage must hold before, by slot; updated. bodies: content, body, content, body, ...
        in the same order, for all messages of a stage or for none. Raises ServerFull, and StageLost
        if the stage holds another number.
        """
        bodies_of = bodies or {}
        parts = {
            slot: calls_of(pairs, MESSAGES_A_STAGING, bodies_of.get(slot, ()))
            for slot, pairs in by_slot.items()
        }
        # One part for each slot in a pipeline, because calls of one pipeline may change order.
        for at in range(max(map(len, parts.values()), default=0)):
            now = {slot: of_slot[at] for slot, of_slot in parts.items() if at < len(of_slot)}
            held.update(self._server.ask(stages.stage(self._queues, name, now, held)))

    def publish(self, totals: Mapping[int, Mapping[str, int]]) -> SendResult:
        """Move the messages of stages into the stores.

        totals: the number of messages that each stage was given, by slot and stage name. A stage
        that is already published adds nothing. Raises StageLost if the messages in a stage and
        those published from it do not add up to its total.
        """
        return self._server.ask(stages.publish(self._queues, totals))

    def discard(self, names: Mapping[int, Iterable[str]]) -> int:
        """Delete stages, by slot. Return the number of stages that held messages."""
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
        """Delete the stages of a query up to a batch, except those in ``published``.

        published: the totals of the batch that publish took. Returns False, and deletes nothing, if
        the evidence of any of them is missing because Redis has lost writes.
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
        """Publish or delete the stages that were begun more than 30 days ago.

        Their queries are assumed to be gone. A stage that its query has sealed is published, and
        its evidence stays until the query concludes the batch. Other stages are deleted.
        """
        end_ms = self._server.now_ms() - FORGET_STAGES_MS
        for slot, begun in zip(slots, self.begun(slots), strict=True):
            for name in (name for name, stage in begun.items() if stage.ms <= end_ms):
                sealed = LastSealed(self._server, StageName.parse(name).query, self._prefix)
                of_topic = sealed.last().pending.by_topic().get(self._queues.definition.name, {})
                if name in of_topic.get(slot, {}):
                    self._publish_forgotten(slot, name, of_topic[slot][name])
                else:
                    self.discard({slot: [name]})

    def _publish_forgotten(self, slot: int, name: str, total: int) -> None:
        try:
            self.publish({slot: {name: total}})
        except StageLost as error:  # a loss of one query must not stop the work for others
            _log.warning("rmq: a stage of a query that did not come back: %s", error)


class LastSealed:
    """The batch that a streaming query sealed last, and its stages still to be published.

    forget_ms: after how long without a batch Redis forgets the sink; 0 for never.
    """

    def __init__(
        self, server: Server, query: str, key_prefix: str = "", forget_ms: int = FORGET_STAGES_MS
    ) -> None:
        self._server = server
        self._forget_ms = forget_ms
        self._key = sink_key(query, key_prefix)

    def seal(self, batch: int, manifest: Manifest) -> tuple[int, Manifest]:
        """Fix the contents of a batch. Return the batch to publish, and its manifest.

        The first call for a batch fixes its contents. Later calls get the same manifest, or an
        empty one once the batch is published. An earlier batch that is not published yet is
        returned instead of this one. Raises CheckpointRefused if a later batch is sealed.
        """
        return self._server.ask(sealing.seal(self._key, batch, manifest))

    def announce(self, batch: int, manifest: Manifest, name: str) -> bool:
        """Announce that a sealed batch is published, before its evidence is checked.

        name: a name that no other announcement has. Returns False if this manifest is not sealed.
        """
        return self._server.ask(sealing.announce(self._key, batch, manifest, name))

    def conclude(self, batch: int, name: str) -> bool:
        """Note that all stages of a sealed batch are published.

        Returns False if the announcement of that name is gone: Redis has lost writes since then, or
        another driver is at work.
        """
        return self._server.ask(sealing.conclude(self._key, batch, name, self._forget_ms))

    def unseal(self, batch: int, manifest: Manifest) -> bool:
        """Remove the seal of a batch that has lost a stage, so that it can be staged again.

        Returns False if this manifest is no longer sealed and unpublished.
        """
        return self._server.ask(sealing.unseal(self._key, batch, manifest, self._forget_ms))

    def last(self) -> Sealed:
        """Return the batch sealed last, and its stages that are not noted as published."""
        return self._server.ask(sealing.last_sealed(self._key))


def _up_to(batch: int, query: str, texts: Iterable[str]) -> list[str]:
    """Return the names of the stages that belong to a query and to batches up to ``batch``."""
    names = map(StageName.parse, texts)
    return [str(name) for name in names if name.query == query and name.batch <= batch]
