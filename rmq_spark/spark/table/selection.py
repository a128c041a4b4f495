"""Which part of a topic's queues is read as a table, and the options that say it."""

from collections.abc import Mapping
from dataclasses import dataclass

from rmq_spark.errors import InvalidOption
from rmq_spark.options.connection_options import KEY_PREFIX
from rmq_spark.options.source_options import NUM_PARTITIONS
from rmq_spark.options.table_options import ENDING_TIME, QUEUE, SLOTS, STARTING_TIME, TABLE, TOPIC
from rmq_spark.options.topic_options import GROUP
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, QueueKind
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.scores import LOWEST_SCORE
from rmq_spark.transport.connection import ConnectionOptions, connection_of


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


@dataclass(frozen=True)
class TableOptions:
    """What a table was asked for."""

    connection: ConnectionOptions
    key_prefix: str
    topic: str
    group: str
    scope: Scope
    num_partitions: int | None


def is_table(given: Mapping[str, str]) -> bool:
    """Whether these are the options of a table."""
    return any(TABLE.find(name) is QUEUE for name in given)


def parse_table_options(given: Mapping[str, str]) -> TableOptions:
    """Check the options of a table. Raises InvalidOption."""
    values = TABLE.parse(given)
    topic, queues = values.get(TOPIC), values.get(QUEUE)
    if topic is None:
        raise InvalidOption("The option topic is missing. Accepted: the name of a topic.")
    if queues is None:
        raise InvalidOption(
            f"The option queue is missing. Accepted: {QUEUE.parser.plainly_accepted}."
        )
    return TableOptions(
        connection=connection_of(values),
        key_prefix=values[KEY_PREFIX],
        topic=topic,
        group=values[GROUP],
        scope=Scope(
            queues=queues,
            slots=values.get(SLOTS),
            times=Bounds(values.get(STARTING_TIME), values.get(ENDING_TIME)),
        ),
        num_partitions=values.get(NUM_PARTITIONS),
    )
