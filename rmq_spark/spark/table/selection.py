"""The part of a topic's queues that is read as a table, and the options that select it."""

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
    """A selection of queues, slots and times.

    slots: None for all. times: a range in ms since 1970. It selects messages by due time in the
    store and the retry queue, by claim time in the prepare queue, and by time of death in the dead
    queue.
    """

    queues: tuple[QueueKind, ...]
    slots: frozenset[int] | None = None
    times: Bounds = UNBOUNDED

    def slots_of(self, topic: TopicDefinition) -> list[int]:
        """Return the slots to read, sorted. Raises InvalidOption for a slot that does not exist."""
        if self.slots is None:
            return list(range(topic.slot_amount))
        beyond = [slot for slot in self.slots if slot >= topic.slot_amount]
        if beyond:
            raise InvalidOption(
                f"slots names {min(beyond)}, but topic {topic.name} does not have that slot. "
                f"Accepted: 0 to {topic.slot_amount - 1}."
            )
        return sorted(self.slots)

    def scores_of(self, kind: QueueKind, topic: TopicDefinition) -> Bounds | None:
        """Return the range of scores to read from one queue.

        Returns None if times are bounded but the queue has no times: the store of a Priority topic.
        """
        times = self.times
        if times == UNBOUNDED or kind is QueueKind.DEAD:
            return times
        if kind is QueueKind.STORE:
            # The score of a rolled-back message is a number of retries, below all times: skip it.
            return times.within(LOWEST_SCORE, None) if topic.type.has_due_times else None
        # These scores are full seconds in ms plus the retries left and a rank, which are below 1 s.
        return Bounds(_round_up_to_second(times.low), _round_up_to_second(times.high))


def _round_up_to_second(ms: int | None) -> int | None:
    return None if ms is None else -(-ms // 1000) * 1000


@dataclass(frozen=True)
class TableOptions:
    """The options of a read of queues as a table. num_partitions: None to choose by size."""

    connection: ConnectionOptions
    key_prefix: str
    topic: str
    group: str
    scope: Scope
    num_partitions: int | None


def is_table(given: Mapping[str, str]) -> bool:
    """Return whether the options ask for a table: they contain ``queue``."""
    return any(TABLE.find(name) is QUEUE for name in given)


def parse_table_options(given: Mapping[str, str]) -> TableOptions:
    """Parse the options of a table.

    Raises InvalidOption if topic or queue is missing, and for an option that is not accepted.
    """
    values = TABLE.parse(given)
    topic, queues = values.get(TOPIC), values.get(QUEUE)
    if topic is None:
        raise InvalidOption("The option topic is missing. Accepted: the name of a topic.")
    if queues is None:
        raise InvalidOption(
            f"The option queue is missing. Accepted: {QUEUE.parser.accepted_plain}."
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
