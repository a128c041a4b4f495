"""Which calls of a pipeline run again with those that have failed for now."""

from collections.abc import Callable, Collection, Sequence

from rmq_spark.protocol.calls import Call, Read

Calls = Sequence[Call | Read]
# Takes the calls of a pipeline, and the indices of those that have failed. Returns the indices of
# all that must run again, in order.
Widened = Callable[[Calls, Collection[int]], list[int]]


def with_reads_behind(calls: Calls, failed: Collection[int]) -> list[int]:
    """Add the reads right behind each call: they show what it has left."""
    found: set[int] = set()
    for at, call in enumerate(calls):
        if at in failed or (at - 1 in found and not isinstance(call, Call)):
            found.add(at)
    return sorted(found)


def with_slot_behind(calls: Calls, failed: Collection[int]) -> list[int]:
    """Add the later calls of the same slot too: each would be undone by one that ran behind it."""
    slots: set[str] = set()
    found: set[int] = set()
    for at, call in enumerate(calls):
        if isinstance(call, Call) and (at in failed or call.keys[0] in slots):
            slots.add(call.keys[0])
            found.add(at)
    return with_reads_behind(calls, found.union(failed))
