"""Which part of a topic's queues is read as a table."""

from dataclasses import dataclass

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, QueueKind
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.scores import LOWEST_SCORE


@dataclass(frozen=True)
class Scope:
    """Queues, slots (None: all), and bounds in ms of the times that queues are sorted by.

    A store and a retry queue are sorted by due times, a PrepareQueue by times of claims, a
    DeadQueue by times of death.
    """

    queues: tuple[QueueKind, ...]
    slots: frozenset[int] | None = None
    times: Bounds = UNBOUNDED

    def slots_of(self, topic: TopicDefinition) -> list[int]:
        """The slots to read. Raises InvalidOption for one that the topic has not."""
        if self.slots is None:
            return list(range(topic.slot_amount))
        beyond = [slot for slot in self.slots if slot >= topic.slot_amount]
        if beyond:
            raise InvalidOption(
                f"slots names {min(beyond)}, but topic {topic.name} has the slots 0 to "
                f"{topic.slot_amount - 1}."
            )
        return sorted(self.slots)

    def scores_of(self, kind: QueueKind, topic: TopicDefinition) -> Bounds | None:
        """The scores to read of one of its queues; None where nothing in it has such a time."""
        times = self.times
        if times == UNBOUNDED or kind is QueueKind.DEAD:
            return times
        if kind is QueueKind.STORE:  # without retries: their scores are no times
            return times.within(LOWEST_SCORE, None) if topic.type.has_due_times else None
        # Full seconds, beside which a score has what is left of retries, and a rank.
        return Bounds(_second_from(times.low), _second_from(times.high))


def _second_from(ms: int | None) -> int | None:
    return None if ms is None else -(-ms // 1000) * 1000
