"""The operations of a write: send, cancel, requeue, roll back, purge."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from rmq_spark.client.messages import Outgoing
from rmq_spark.client.queue import Queue
from rmq_spark.client.room import WaitForRoom
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.protocol import returning, sending
from rmq_spark.protocol.claims import Rollback
from rmq_spark.protocol.packing import PackedPairs
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.columns import COLUMNS, Rows, bytes_of, packed_by_slot, rows_by_slot
from rmq_spark.spark.sink.values import (
    BODY_COLUMNS,
    bodies_of_rows,
    check_delay_option,
    message_delays,
    retry_delays,
)
from rmq_spark.topics.definition import TopicDefinition, group_text
from rmq_spark.topics.types import TOPIC_TYPES, MessageValue, TopicType
from rmq_spark.topics.verdicts import Failure

# The columns for time ranges, priorities, fixed times and delays.
VALUES = tuple(of.value_name for of_type in TOPIC_TYPES.values() for of in of_type.values)


class Checked(NamedTuple):
    messages: Outgoing
    topic: TopicDefinition


class Operation(ABC):
    """The action of a write on its rows. creates: whether it may create a topic."""

    columns: tuple[str, ...]
    required: tuple[str, ...] = ()
    creates = False

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def check_topic(  # noqa: B027 - most operations need nothing more of a topic
        self, topic: TopicDefinition, columns: set[str]
    ) -> None:
        """Check that columns and options suffice for a topic."""

    def check_type(  # noqa: B027 - most operations need no value
        self, what: str, topic_type: TopicType, columns: set[str]
    ) -> None:
        """Check that columns and options suffice for a topic type. what: names it in the error."""

    @abstractmethod
    def work_of(self, queue: Queue, topic: TopicDefinition, rows: Rows) -> Any:
        """Check rows, and return what ``do`` takes. The queue may have a newer definition."""

    @abstractmethod
    def do(self, queue: Queue, work: Any) -> dict[str, int]:
        """Run the operation in Redis. Returns the number of messages by outcome."""


class Send(Operation):
    columns = ("key", "content", "slotBasis", *VALUES, *BODY_COLUMNS, "topic")
    creates = True

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self.on_full = WaitForRoom() if options.waits_for_room else None

    def check_topic(self, topic: TopicDefinition, columns: set[str]) -> None:
        check_delay_option(topic, columns, self._options)
        self.check_type(f"Topic {topic.name}", topic.type, columns)

    def check_type(self, what: str, topic_type: TopicType, columns: set[str]) -> None:
        names = [of.value_name for of in topic_type.values]
        given = [of for of in topic_type.values if of.value_in(self._options) is not None]
        if not given and columns.isdisjoint(names):
            unused = " delay is for FixedTime topics only." if "delay" in columns else ""
            raise InvalidOption(
                f"{what} is {topic_type}, but neither a column nor an option gives "
                f'{" or ".join(names)}.{unused} Add the column, or .option("{names[0]}", ...).'
            )

    def work_of(self, queue: Queue, topic: TopicDefinition, rows: Rows) -> Checked:
        names, options = rows.names(topic), self._options
        refuse_past = options.fail_past and topic.type.can_be_past
        expires_at = options.expires_at is not None or "expiresAt" in rows.columns
        now_ms = queue.now_ms() if refuse_past or expires_at else None
        default = topic.type.value_in(options)
        scores = scores_of_rows(
            *(topic, rows, default, options.delay, now_ms if refuse_past else None),
            lambda of, values: of.score_of(values),
        )
        due_ms = None
        if expires_at:
            due_ms = scores_of_rows(
                *(topic, rows, default, options.delay, None),
                lambda of, values: of.requeue_score(values, now_ms or 0) * topic.type.has_due_times,
            )
        bodies = bodies_of_rows(rows, topic, options, due_ms)
        slots = slots_of_rows(topic, rows, bytes_of(names), options)
        return Checked(Outgoing(*packed_by_slot(scores, names, slots, bodies)), topic)

    def do(self, queue: Queue, work: Checked) -> dict[str, int]:
        sent = queue.send_checked(*work, self.on_full)
        return asdict(sent)


class Cancel(Operation):
    columns = ("key", "content", "slotBasis", "slot", "topic")

    def work_of(self, queue: Queue, topic: TopicDefinition, rows: Rows) -> dict[int, list[bytes]]:
        texts = bytes_of(rows.names(topic))
        slots = slots_of_rows(topic, rows, texts, self._options)
        return {slot: texts[at].tolist() for slot, at in rows_by_slot(slots)}

    def do(self, queue: Queue, work: dict[int, list[bytes]]) -> dict[str, int]:
        """Cancel in all groups, or in that of the option. Counts a message once for each group."""
        groups = queue.definition.groups if self._options.group is None else (queue.keys.group,)
        cancelled = sum(queue.of_group(group).cancel(work) for group in groups)
        asked = len(groups) * sum(map(len, work.values()))
        return {"cancelled": cancelled, "not found": asked - cancelled}


class Requeue(Operation):
    """Moves messages from the dead queue to the store; their next delivery counts as the first."""

    columns = ("key", "content", "slotBasis", "slot", *VALUES, "topic")

    def check_topic(self, topic: TopicDefinition, columns: set[str]) -> None:
        check_delay_option(topic, columns, self._options)
        if topic.type.requeue_value is None:
            Send(self._options).check_topic(topic, columns)

    def work_of(self, queue: Queue, topic: TopicDefinition, rows: Rows) -> dict[int, PackedPairs]:
        names, options, now_ms = rows.names(topic), self._options, queue.now_ms()
        default = topic.type.value_in(options)
        if default is None:
            default = topic.type.requeue_value
        scores = scores_of_rows(
            *(topic, rows, default, options.delay, None),
            lambda of, values: of.requeue_score(values, now_ms),
        )
        slots = slots_of_rows(topic, rows, bytes_of(names), options)
        return packed_by_slot(scores, names, slots)[0]

    def do(self, queue: Queue, work: dict[int, PackedPairs]) -> dict[str, int]:
        requeued = queue.ask(sending.requeue, work)
        asked = sum(map(len, work.values())) // 2
        return {"requeued": requeued, "not found": asked - requeued}


class Purge(Cancel):
    def check_topic(self, topic: TopicDefinition, columns: set[str]) -> None:
        if self._options.group is None and len(topic.groups) > 1:
            raise InvalidOption(
                f"Topic {topic.name} has the consumer groups "
                f"{', '.join(map(group_text, topic.groups))}. Name the one whose dead messages to "
                'delete: .option("group", ...).'
            )

    def work_of(self, queue: Queue, topic: TopicDefinition, rows: Rows) -> dict[int, list[bytes]]:
        self.check_topic(topic, set(rows.columns))  # a column may name it
        return super().work_of(queue, topic, rows)

    def do(self, queue: Queue, work: dict[int, list[bytes]]) -> dict[str, int]:
        purged = queue.purge(work)
        return {"purged": purged, "not found": sum(map(len, work.values())) - purged}


class RollBack(Operation):
    columns = ("key", "content", "slot", "claimId", "delay", "reason", "topic")
    required = ("slot", "claimId")

    def work_of(self, queue: Queue, topic: TopicDefinition, rows: Rows) -> list[Rollback]:
        names, slots = rows.names(topic), rows.slots(topic).tolist()
        why = zip(rows.reasons(), retry_delays(rows, self._options.delay), strict=True)
        failures = [Failure(reason, delay_ms=delay_ms) for reason, delay_ms in why]
        columns = slots, rows.claim_ids(), bytes_of(names), failures
        return returning.grouped(zip(*columns, strict=True))

    def do(self, queue: Queue, work: list[Rollback]) -> dict[str, int]:
        """Roll back the messages. One that its claim no longer holds is left alone."""
        result = queue.ask(returning.rollbacks, work)
        return {"rolled back": result.rolled_back, "left alone": result.left_alone}


def check_names(topic: TopicDefinition, columns: set[str]) -> None:
    name = "key" if topic.keyed else "content"
    if name not in columns:
        raise InvalidMessage(
            f"The column {name} is missing; there are {', '.join(sorted(columns))}. Topic "
            f"{topic.name} is {'' if topic.keyed else 'not '}keyed: its messages merge by {name}. "
            f"Accepted: a column named {name}, {COLUMNS[name][1]}."
        )


OPERATIONS: dict[str, type[Operation]] = {
    "send": Send,
    "cancel": Cancel,
    "requeue": Requeue,
    "rollback": RollBack,
    "purge": Purge,
}


def scores_of_rows(
    topic: TopicDefinition,
    rows: Rows,
    default: int | None,
    default_delay_ms: int | None,
    not_before_ms: int | None,
    score_of: Callable[[MessageValue, Any], Any],
) -> Any:
    """Check the value or the delay of each row, and return its score, as an array."""
    delays = message_delays(rows, topic, default_delay_ms)
    if delays is None or topic.type.delay is None:
        return score_of(topic.type, rows.values(topic, default, not_before_ms))
    values = rows.values(topic, default, not_before_ms, delays.given)
    delayed = score_of(topic.type.delay, delays.ms)
    return np.where(delays.given, delayed, score_of(topic.type, values))


def slots_of_rows(topic: TopicDefinition, rows: Rows, names: Any, options: SinkOptions) -> Any:
    """Return the slots: the column, or the low bits of CRC-32 of slotBasis, key or content."""
    if "slot" in rows.columns:
        return rows.slots(topic)
    bases = rows.bases(names, options.slot_basis)
    slots = np.fromiter(map(zlib.crc32, bases), np.uint32, len(bases))
    return slots & np.uint32(topic.slot_amount - 1)
