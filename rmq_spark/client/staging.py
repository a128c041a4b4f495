"""Stages: messages hidden from consumers until their whole batch is published.

A stage that is published stays registered with the number of its messages. By this evidence, a
repeated publish distinguishes it from a stage that Redis has lost. The sweep of a later batch
deletes the evidence, because that batch is sealed only after this one is concluded.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rmq_spark.client.messages import Outgoing
from rmq_spark.client.room import OnFull, fail, in_rounds
from rmq_spark.errors import StageLost, TopicFull
from rmq_spark.protocol import staging
from rmq_spark.protocol.packing import Pairs
from rmq_spark.protocol.sending import Part, parts_of
from rmq_spark.protocol.staging import (
    FORGET_STAGES_MS,
    MESSAGES_A_STAGING,
    Begun,
    Manifest,
    StageName,
)
from rmq_spark.topics.keys import sink_key

if TYPE_CHECKING:  # it calls repair, which calls this module
    from rmq_spark.client.queue import Queue

_log = logging.getLogger(__name__)


@dataclass
class Stage:
    """What one attempt has staged. held: the number of messages, by topic and slot."""

    name: StageName
    held: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(self, queue: "Queue", messages: Outgoing, on_full: OnFull = fail) -> None:
        held = self.held.setdefault(queue.definition.name, {})
        # Enter the slots before the call: who discards the stage must find them if it fails.
        held.update({slot: held.get(slot, 0) for slot in messages.pairs})
        stage(queue, str(self.name), messages.pairs, held, messages.bodies, on_full)


def manifest_of(stages: Iterable[Stage], messages: int) -> Manifest:
    """Return the manifest of a batch that consists of these stages. messages: as it notes them."""
    held_by = {
        str(one.name): {topic: dict(held) for topic, held in one.held.items()} for one in stages
    }
    return Manifest(held_by, messages)


def stage(
    queue: "Queue",
    name: str,
    by_slot: Mapping[int, Pairs],
    held: dict[int, int],
    bodies: Mapping[int, Pairs] | None = None,
    on_full: OnFull = fail,
) -> None:
    """Append messages to a stage.

    by_slot: score, content, score, content, ... for each slot. held: the number of messages that
    the stage must hold before, by slot; updated. bodies: content, body, content, body, ... in the
    same order, for all messages of a stage or for none. Raises ServerFull, StageLost, TopicFull.
    """
    # A copy, which may learn of other limits: all else stays as its caller knows it, because all
    # messages of a stage have bodies, or none has.
    queue = queue.of_group(queue.keys.group)
    parts = parts_of(queue.definition, by_slot, bodies, MESSAGES_A_STAGING)

    def ask(now: Mapping[int, Part]) -> dict[int, int | TopicFull]:
        return queue.ask(staging.stage, name, now, held)

    for slot, number in in_rounds(queue, parts, ask, on_full):
        held[slot] = number


def sweep(
    queue: "Queue",
    slots: Sequence[int],
    query: str,
    batch: int,
    published: Mapping[int, Mapping[str, int]],
) -> bool:
    """Delete the stages of a query up to a batch, except those in ``published``.

    published: the totals of the batch that publish took. Returns False, and deletes nothing, if the
    evidence of any of them is missing because Redis has lost writes.
    """
    registered = dict(zip(slots, queue.ask(staging.begun, slots), strict=True))
    if not all(
        registered[slot].get(name, Begun(0)).published == total
        for slot, of_slot in published.items()
        for name, total in of_slot.items()
    ):
        return False
    leftovers = {
        slot: _up_to(batch, query, names.keys() - published.get(slot, {}))
        for slot, names in registered.items()
    }
    queue.ask(staging.discard, {slot: names for slot, names in leftovers.items() if names})
    return True


def _up_to(batch: int, query: str, texts: Iterable[str]) -> list[str]:
    names = map(StageName.parse, texts)
    return [str(name) for name in names if name.query == query and name.batch <= batch]


def forget(queue: "Queue", slots: Sequence[int]) -> None:
    """Publish or delete the stages that were begun more than 30 days ago.

    Their queries are assumed to be gone. A stage that its query has sealed is published, and
    its evidence stays until the query concludes the batch. Other stages are deleted.
    """
    end_ms = queue.now_ms() - FORGET_STAGES_MS
    for slot, begun in zip(slots, queue.ask(staging.begun, slots), strict=True):
        for name in (name for name, stage in begun.items() if stage.ms <= end_ms):
            key = sink_key(StageName.parse(name).query, queue.key_prefix)
            sealed = queue.server.ask(staging.last_sealed(key)).pending
            total = sealed.by_topic().get(queue.definition.name, {}).get(slot, {}).get(name)
            try:
                if total is None:
                    queue.ask(staging.discard, {slot: [name]})
                else:
                    queue.ask(staging.publish, {slot: {name: total}})
            except StageLost as error:  # a loss of one query must not stop the work for others
                _log.warning("rmq: a stage of a query that did not come back: %s", error)
