"""Which slots a query may claim: all of its topic, or those that are its own by ZooKeeper."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmq_spark.client.consumer import refuse_exclusive
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption, OwnershipError
from rmq_spark.ownership.ensemble import EnsembleOptions
from rmq_spark.protocol import reading
from rmq_spark.topics.definition import TopicDefinition

if TYPE_CHECKING:
    from rmq_spark.ownership.member import Member


_log = logging.getLogger(__name__)

# ZooKeeper looks for sessions that have ended once a tick, by default every 2 s.
NOTICED_WITHIN_S = 4.0


class AllSlots:
    """Every slot of a topic that others may read, too."""

    exclusive = False

    def __init__(self, definition: TopicDefinition) -> None:
        """Raises ExclusiveSlot for a topic whose slots are owned."""
        self.check(definition)
        self._epochs: dict[int, int | None] = dict.fromkeys(range(definition.slot_amount))

    def between_batches(self) -> Mapping[int, int | None]:
        """The slots, without epochs."""
        return self._epochs

    def wait_for_slots(self) -> None:
        """They are there."""

    def check(self, definition: TopicDefinition) -> None:
        """Raises ExclusiveSlot once the topic is consumed through ZooKeeper."""
        refuse_exclusive(definition)

    def figures(self) -> dict[str, int]:
        """Nothing to tell."""
        return {}

    def stop(self) -> None:
        """Nothing to leave."""


class OwnedSlots:
    """The slots of an exclusive topic that are this query's own, and under which epochs."""

    exclusive = True

    def __init__(self, ensemble: EnsembleOptions, queue: Queue, consumer: str) -> None:
        """Joins. Raises OwnershipUnavailable, OwnershipRefused, TopicMismatch."""
        self._ensemble = ensemble
        self._queue = queue
        self._checked: Mapping[int, int] = {}
        self._member = new_member(ensemble, queue, consumer).start()

    def between_batches(self) -> Mapping[int, int | None]:
        """The slots that may be claimed now; those that others are to have are let go.

        Raises OwnershipError where Redis knows of a later owner than ZooKeeper.
        """
        epochs = self._member.between_batches()
        self._check_epochs({s: e for s, e in epochs.items() if self._checked.get(s) != e})
        self._checked = epochs
        return dict(epochs)

    def _check_epochs(self, new: Mapping[int, int]) -> None:
        stored = self._queue.ask(reading.epochs, list(new)) if new else []
        for (slot, epoch), known in zip(new.items(), stored, strict=True):
            if known > epoch:
                raise OwnershipError(
                    f"Slot {slot} of topic {self._queue.definition.name} was consumed under the "
                    f"epoch {known}, but ZooKeeper at {self._ensemble.hosts} gives {epoch}: was "
                    "the ensemble replaced, or its data lost? When no query reads the topic "
                    "through another ensemble any more: rmq lower-epochs "
                    f"{self._queue.definition.name} (with --redis-url and --key-prefix as this "
                    "query has them)"
                )

    def wait_for_slots(self) -> None:
        """Waits until others have let go of what is assigned to it.

        No longer than it takes ZooKeeper to notice that one of them has died.
        """
        session_s = self._ensemble.session_timeout_ms / 1000
        if not self._member.wait_for_slots(1.5 * session_s + NOTICED_WITHIN_S):
            _log.warning(
                "rmq: topic %s: not all slots that are to be this query's are its own yet: it owns "
                "%d, and %d members read the topic",
                self._queue.definition.name,
                self._member.slots_owned,
                len(self._member.members),
            )

    def check(self, definition: TopicDefinition) -> None:
        """Raises OwnershipError when somebody has switched exclusive off."""
        if not definition.exclusive:
            raise OwnershipError(
                f"exclusive was switched off for the topic {definition.name}, so that others may "
                "read it as well. Start the query again: with zookeeper.hosts, which switches it "
                "on, or without."
            )

    def figures(self) -> dict[str, int]:
        """Return slotsOwned (slots of this query) and members (queries that share the topic)."""
        return {"slotsOwned": self._member.slots_owned, "members": len(self._member.members)}

    def stop(self) -> None:
        """Leaves."""
        self._member.stop()


def new_member(ensemble: EnsembleOptions, queue: Queue, consumer: str) -> "Member":
    """A member for a queue, not started. Raises InvalidOption where kazoo is missing."""
    try:
        from rmq_spark.ownership.member import Member
    except ModuleNotFoundError as error:
        if error.name != "kazoo":
            raise
        raise InvalidOption(
            "zookeeper.hosts needs the package kazoo. Remedy: pip install kazoo."
        ) from None
    group = f"@{queue.keys.group}" if queue.keys.group else ""
    return Member(
        ensemble, queue.definition, f"{queue.key_prefix}{queue.definition.name}{group}", consumer
    )
