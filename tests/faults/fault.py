"""What a fault is, and where the phases are in which it is injected."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.local.redis import LocalRedis

from ..rounds.moments import Places
from .past import Past

Phases = Mapping[str, Places]
# The sinks that read a batch once. "twice" is a foreachBatch of two actions without persist.
ONE_READ = ("parquet", "keyed")
SINKS = (*ONE_READ, "twice")
# Where Redis runs in a cell: one server, or a Redis Cluster of three masters.
ONE, CLUSTER = SERVERS = ("one server", "Cluster")


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    inject: gets the cell and the moment that is held, and tells whether it hit something. places:
    by the sink's name, where each phase is entered. lease: the consumer's visibilityTimeout.
    guarantee: the producer's deliveryGuarantee. client: further options redis.* of all queries.
    sinks: those it is tried on. past: keeps the state that Redis falls back to, for such a fault.
    least_keys: of a keyed topic; fewer would not fill Redis, because messages merge. servers: on
    which it is tried. fails_over: whether a replica is to take over soon.
    """

    name: str
    text: str
    inject: Callable[[Any, Any], bool]
    places: Callable[[str], Phases]
    promise: str = "exactly once"
    lease: str = "60s"
    guarantee: str = "exactlyOnce"
    client: Mapping[str, str] = field(default_factory=dict)
    speculates: bool = False
    sinks: tuple[str, ...] = ONE_READ
    past: Callable[[LocalRedis], Past] | None = None
    least_keys: int = 1
    servers: tuple[str, ...] = SERVERS
    fails_over: bool = False


def of_consumer(sink: str) -> Phases:
    """A claim, the sink's task, or what follows it, and the commit of a batch."""
    last = {"parquet": "end", "keyed": "written", "twice": "between"}[sink]
    return {
        "read": Places(scripts=("claim",)),
        "write": Places(gates=("rows", last)),
        "commit": Places(scripts=("commit",)),
    }


def of_producer(_: str) -> Phases:
    """Its source's rows, what its tasks store, and the driver's commit."""
    return {
        "read": Places(gates=("producer-rows",)),
        "write": Places(scripts=("stage",)),
        "commit": Places(scripts=("seal", "publish", "conclude")),
    }


def of_plain_producer(_: str) -> Phases:
    """Without staging a call is all there is: before Redis has it, and before it has answered."""
    return {
        "read": Places(gates=("producer-rows",)),
        "write": Places(scripts=("send_at",), sides=("request",)),
        "commit": Places(scripts=("send_at",), sides=("reply",)),
    }


def of_task(_: str) -> Phases:
    """A task that reads, that writes, and whose rows are all written."""
    return {
        "read": Places(scripts=("claim",)),
        "write": Places(gates=("rows",)),
        "commit": Places(gates=("end",)),
    }


def of_failing_task(_: str) -> Phases:
    """The same places; the task fails there instead of halting."""
    places = {"read": "first", "write": "rows", "commit": "end"}
    return {phase: Places(gates=(place,), action="fail") for phase, place in places.items()}


def of_calls(*sides: str, then: str = "pass", hold: bool = True):
    """Calls of the consumer and of the producer."""

    def places(_: str) -> Phases:
        called = {
            "read": ("claim",),
            "write": ("rollback", "stage"),
            "commit": ("commit", "seal", "publish", "conclude"),
        }
        return {
            phase: Places(scripts=scripts, sides=sides, then=then, hold=hold)
            for phase, scripts in called.items()
        }

    return places
