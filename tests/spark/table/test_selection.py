"""Which part of a topic is read as a table, by options. Pure."""

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.pages import UNBOUNDED, Bounds, QueueKind
from rmq_spark.spark.tables import Scope
from rmq_spark.topics.definition import TopicDefinition, TopicType

from ..driving import refused

STORE, PREPARE, RETRY, DEAD = QueueKind
ALL = Scope(tuple(QueueKind))
TIMED = TopicDefinition("T", TopicType.FIXED_TIME, 8)
RANKED = TopicDefinition("P", TopicType.PRIORITY, 8)


def scores(scope, topic=TIMED):
    """What is read of each queue of which anything is."""
    found = {kind: scope.scores_of(kind, topic) for kind in QueueKind}
    return {kind: bounds for kind, bounds in found.items() if bounds is not None}


def test_without_bounds_all_is_read():
    assert scores(ALL) == dict.fromkeys(QueueKind, UNBOUNDED)
    assert ALL.slots_of(TIMED) == list(range(8))


def test_times_bound_each_queue_by_what_it_is_sorted_by():
    scope = Scope(tuple(QueueKind), times=Bounds(5_001, 9_500))
    seconds = Bounds(6_000, 10_000)
    assert scores(scope) == {
        STORE: Bounds(5_001, 9_500),
        PREPARE: seconds,
        RETRY: seconds,
        DEAD: Bounds(5_001, 9_500),
    }


def test_priorities_have_no_time():
    assert STORE not in scores(Scope(tuple(QueueKind), times=Bounds(5_000)), RANKED)


def test_what_waits_for_a_retry_in_the_store_has_no_due_time():
    assert scores(Scope((STORE,), times=Bounds(high=9)))[STORE] == Bounds(17, 9)


def test_slots_are_those_named():
    assert Scope((STORE,), slots=frozenset({5, 2})).slots_of(TIMED) == [2, 5]
    with refused(InvalidOption, "slots names 8", "Accepted: 0 to 7"):
        Scope((STORE,), slots=frozenset({2, 8, 9})).slots_of(TIMED)
