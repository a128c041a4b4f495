"""The slots that a reader may claim: all of a topic, or those that it owns through ZooKeeper."""

import logging
from collections.abc import Container, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rmq_spark.client.hints import queue_command
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption, OwnershipError
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.protocol import reading
from rmq_spark.topics.definition import TopicDefinition, refuse_exclusive

if TYPE_CHECKING:
    from rmq_spark.ownership.member import Member

_log = logging.getLogger(__name__)

# Two ticks of ZooKeeper, in seconds: it looks for ended sessions once a tick, by default every 2 s.
NOTICED_WITHIN_S = 4.0


class AllSlots:
    """All slots of a topic that other readers can read, too."""

    exclusive = False

    def __init__(self, definition: TopicDefinition) -> None:
        self._epochs: dict[int, int | None] = {}
        self.check(definition)

    def between_batches(self, at_work: Container[int] = ()) -> Mapping[int, int | None]:
        return self._epochs

    def wait_for_slots(self) -> None:
        """Return at once, because the reader may claim all slots from the start."""

    def check(self, definition: TopicDefinition) -> None:
        refuse_exclusive(definition)
        if len(self._epochs) != definition.slot_amount:
            self._epochs = dict.fromkeys(range(definition.slot_amount))

    def figures(self) -> dict[str, int]:
        return {}

    def stop(self) -> None:
        """Do nothing, because the reader has not joined other members."""


class OwnedSlots:
    exclusive = True

    def __init__(self, ensemble: EnsembleOptions, queue: Queue, consumer: str) -> None:
        self._ensemble = ensemble
        self._queue = queue
        self._consumer = consumer
        self._checked: Mapping[int, int] = {}
        self._member = new_member(ensemble, queue, consumer)
        try:
            queue.server.run_in_thread(self._member.start)
        except BaseException:  # such as the cancellation of a task: the start goes on in its thread
            self._member.stop()
            raise

    def between_batches(self, at_work: Container[int] = ()) -> Mapping[int, int | None]:
        """Return the slots to claim from now, with their epochs; release those of other members.

        at_work: the slots with a claim in flight, which are released by a later call.
        """
        epochs = self._member.between_batches(at_work)
        self._check_epochs({s: e for s, e in epochs.items() if self._checked.get(s) != e})
        self._checked = epochs
        return dict(epochs)

    def _check_epochs(self, new: Mapping[int, int]) -> None:
        stored = self._queue.ask(reading.epochs, list(new)) if new else []
        for (slot, epoch), known in zip(new.items(), stored, strict=True):
            if known > epoch:
                raise OwnershipError(
                    f"Slot {slot} of topic {self._queue.definition.name} was consumed under the "
                    f"epoch {known}, but ZooKeeper at {self._ensemble.hosts} gives {epoch}. The "
                    "ensemble was replaced, or has lost its data. Make sure that nobody reads "
                    f"the topic through another ensemble. Then run: "
                    f"{queue_command(self._queue, 'lower-epochs')}"
                )

    def wait_for_slots(self) -> None:
        """Wait for slots that others still have, until ZooKeeper must have noticed their death."""
        session_s = self._ensemble.session_timeout_ms / 1000
        longest_s = 1.5 * session_s + NOTICED_WITHIN_S
        if not self._queue.server.run_in_thread(partial(self._member.wait_for_slots, longest_s)):
            _log.warning(
                "rmq: topic %s: %s does not own all of its assigned slots yet. It owns "
                "%d; %d members read the topic",
                self._queue.definition.name,
                self._consumer,
                self._member.slots_owned,
                len(self._member.members),
            )

    def check(self, definition: TopicDefinition) -> None:
        if not definition.exclusive:
            raise OwnershipError(
                f"The topic {definition.name} is no longer exclusive, because somebody has set "
                "exclusive=False. Start this reader again: with ZooKeeper to make the topic "
                "exclusive again, or without to share it."
            )

    def figures(self) -> dict[str, int]:
        return {"slotsOwned": self._member.slots_owned, "members": len(self._member.members)}

    def stop(self) -> None:
        self._queue.server.run_in_thread(self._member.stop)


Ownership = AllSlots | OwnedSlots


def ownership_of(queue: Queue, consumer: str, ensemble: EnsembleOptions | None) -> Ownership:
    if ensemble is None:
        return AllSlots(queue.definition)
    return OwnedSlots(ensemble, queue, consumer)


def new_member(ensemble: EnsembleOptions, queue: Queue, consumer: str) -> "Member":
    try:
        from rmq_spark.ownership.member import Member
    except ModuleNotFoundError as error:
        if error.name != "kazoo":
            raise
        raise InvalidOption(
            "zookeeper.hosts needs the package kazoo: pip install 'rmq-spark[zookeeper]'"
        ) from None
    return Member(ensemble, queue.definition, topic_in_zookeeper(queue), consumer)


def topic_in_zookeeper(queue: Queue) -> str:
    """Name a topic as ZooKeeper does: with its key prefix, and its consumer group behind an @."""
    group = f"@{queue.keys.group}" if queue.keys.group else ""
    return f"{queue.key_prefix}{queue.definition.name}{group}"
