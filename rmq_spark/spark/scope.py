"""Which part of a topic's queues is read as a table: narrowed by options and by filters."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rmq_spark.queue.pages import UNBOUNDED, Bounds, QueueKind
from rmq_spark.queue.topic import LOWEST_SCORE, TopicDefinition

_STORE, _PREPARE, _RETRY, _DEAD = QueueKind
# The columns a bound of which says where to look, and the queues that have them at all: elsewhere
# they are null, which no comparison matches.
_HAVING = {
    "duetime": {_STORE, _RETRY, _PREPARE},
    "priority": {_STORE, _PREPARE},
    "preparedat": {_PREPARE},
    "diedat": {_DEAD},
}
# The column that a queue is sorted by; a store of priorities has its own.
_SORTED_BY = {_STORE: "duetime", _RETRY: "duetime", _PREPARE: "preparedat", _DEAD: "diedat"}


@dataclass(frozen=True)
class Scope:
    """Queues, slots (None: all) and, for columns of _HAVING, bounds: times in ms, or priorities.

    times: what each queue is sorted by, where it is a time.
    """

    queues: tuple[QueueKind, ...]
    slots: frozenset[int] | None = None
    slot_bounds: Bounds = UNBOUNDED
    times: Bounds = UNBOUNDED
    columns: tuple[tuple[str, Bounds], ...] = ()

    def slots_of(self, topic: TopicDefinition) -> list[int]:
        """The slots to read."""
        wanted: Iterable[int] = range(topic.slot_amount) if self.slots is None else self.slots
        return sorted(
            slot for slot in wanted if slot < topic.slot_amount and slot in self.slot_bounds
        )

    def scores_of(self, kind: QueueKind, topic: TopicDefinition) -> Bounds | None:
        """The scores to read of a queue; None where nothing of it is wanted."""
        if kind not in self.queues:
            return None
        bounded = dict(self.columns)
        if any(kind not in _HAVING[column] for column in bounded):
            return None
        by_priority = kind is _STORE and topic.type.descending
        column = "priority" if by_priority else _SORTED_BY[kind]
        if kind is _STORE and {"priority", "duetime"} & (bounded.keys() - {column}):
            return None
        scores = bounded.get(column, UNBOUNDED)
        if self.times != UNBOUNDED:
            if by_priority:
                return None
            scores = scores.within(self.times.low, self.times.high)
        return _of_kind(kind, scores)

    def narrowed(self, filters: Iterable[Filter]) -> "Scope":
        """Without what does not match all of these; what cannot be told is left in."""
        scope = self
        for wanted in filters:
            scope = scope._narrowed_by(wanted)
        return scope

    def _narrowed_by(self, wanted: Filter) -> "Scope":
        column = ".".join(getattr(wanted, "attribute", ())).lower()
        values = _values_of(wanted)
        if column == "queue" and values is not None:
            return replace(self, queues=tuple(kind for kind in self.queues if kind in values))
        if column == "slot" and values is not None:
            known = self.slots if self.slots is not None else frozenset(values)
            return replace(self, slots=known & frozenset(values))
        bounds = _bounds_of(wanted)
        if bounds is None:
            return self
        if column == "slot":
            return replace(self, slot_bounds=self.slot_bounds.within(bounds.low, bounds.high))
        if column not in _HAVING:
            return self
        columns = dict(self.columns)
        columns[column] = columns.get(column, UNBOUNDED).within(bounds.low, bounds.high)
        return replace(self, columns=tuple(columns.items()))


def _of_kind(kind: QueueKind, wanted: Bounds) -> Bounds:
    """Bounds of a column as bounds of scores."""
    if wanted == UNBOUNDED or kind is _DEAD:
        return wanted
    if kind is _STORE:  # without the retries, whose scores are no times
        return wanted.within(LOWEST_SCORE, None)
    # Full seconds, beside which a score has what is left of retries, and a rank.
    return Bounds(_second_from(wanted.low), _second_from(wanted.high))


def _second_from(ms: int | None) -> int | None:
    return None if ms is None else -(-ms // 1000) * 1000


def _values_of(wanted: Filter) -> Collection[Any] | None:
    """The values that a filter accepts, where it names them."""
    if isinstance(wanted, EqualTo | EqualNullSafe):
        return [wanted.value]
    return wanted.value if isinstance(wanted, In) else None


def _bounds_of(wanted: Filter) -> Bounds | None:
    """What a filter accepts, as bounds; None where it is none of numbers or times."""
    value = _micros(getattr(wanted, "value", None))
    if value is None:
        return None
    from_here, beyond = -(-value // 1000), value // 1000 + 1
    if isinstance(wanted, EqualTo):
        return Bounds(from_here, beyond)
    if isinstance(wanted, GreaterThan):
        return Bounds(low=beyond)
    if isinstance(wanted, GreaterThanOrEqual):
        return Bounds(low=from_here)
    if isinstance(wanted, LessThan):
        return Bounds(high=from_here)
    return Bounds(high=beyond) if isinstance(wanted, LessThanOrEqual) else None


def _micros(value: Any) -> int | None:
    """A thousand times a number, or the us of a time: so both become ms or numbers alike."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        whole = int(value.replace(microsecond=0).timestamp())
        return whole * 1_000_000 + value.microsecond
    if isinstance(value, int) and not isinstance(value, bool):
        return value * 1000
    return None
