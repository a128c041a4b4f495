"""Requests as values: calls of scripts, plain reads, and functions that read the replies.

And the queues of a topic in one consumer group, which every request about them takes.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Generic, TypeVar

from rmq_spark.protocol.packing import Pairs
from rmq_spark.topics.definition import KEEP_FIRST, TopicDefinition
from rmq_spark.topics.keys import Keys

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# A client holds all requests and replies of a pipeline in memory at once.
CALLS_A_PIPELINE = 256

# A Redis command that changes nothing: its name, a key, and its other arguments.
Read = tuple[Any, ...]
# The keys of a slot, in the order of lua/include/slot.lua.
ALL_KINDS = "store retry dead deaths claims consumers stats bodies"


@dataclass(frozen=True)
class Call:
    """A call of a script.

    pairs: score, content, score, content, ..., packed or not. bodies: content, body, content, body,
    ... in the same order. Each becomes one argument behind args, unless it is empty.
    """

    script: str
    keys: Sequence[str]
    args: Sequence[Any] = ()
    pairs: Pairs = ()
    bodies: Pairs = ()


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """Calls of scripts and plain reads, and a function that turns their replies into an answer.

    calls: in the order in which the server runs those of one slot. parse: takes the replies, in
    order. calls_a_pipeline: the number of calls that a client sends at once. last_counts: whether a
    call that runs again is followed by the later calls of its slot, so that these count.
    """

    calls: Sequence[Call | Read]
    parse: Callable[[list[Any]], T_co]
    calls_a_pipeline: int = CALLS_A_PIPELINE
    last_counts: bool = False


def all_of(requests: Iterable[Request[T]]) -> Request[list[T]]:
    """Combine requests into one. The answers are in the same order."""
    asked = list(requests)

    def parse(replies: list[Any]) -> list[T]:
        left = iter(replies)
        return [one.parse(list(islice(left, len(one.calls)))) for one in asked]

    return Request([call for one in asked for call in one.calls], parse)


# Requests that follow from each other: yields each one, is sent its answer, and returns the answer
# to all of them.
Conversation = Generator[Request[Any], Any, T]


def repeated(
    calls: Sequence[Call],
    next_call: Callable[[int, Any], Call | None],
    calls_a_pipeline: int = CALLS_A_PIPELINE,
) -> Conversation[list[list[Any]]]:
    """Make calls that each do a bounded part of their work, and repeat them until all is done.

    next_call: takes the index of a call and its reply, and returns the call that goes on; None if
    none must.
    Returns for each call the replies to it and to those that went on.
    """
    replies: list[list[Any]] = [[] for _ in calls]
    left = dict(enumerate(calls))
    while left:
        answers = yield Request(list(left.values()), list, calls_a_pipeline)
        again = {}
        for at, reply in zip(left, answers, strict=True):
            replies[at].append(reply)
            following = next_call(at, reply)
            if following is not None:
                again[at] = following
        left = again
    return replies


def while_more(calls: Sequence[Call], flag: int) -> Callable[[int, Any], Call | None]:
    """Return a next_call that repeats each call as it is. flag: an index in the replies."""
    return lambda at, reply: calls[at] if reply[flag] else None


def text_of(number: int | None) -> str:
    """Format a number as an argument of a script; None becomes the empty text."""
    return "" if number is None else str(number)


def fields_of(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a hash, from a reply of RESP2 (a list) or RESP3 (a dict)."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))


@dataclass(frozen=True)
class TopicQueues:
    """The definition of a topic, and its keys in one consumer group."""

    definition: TopicDefinition
    keys: Keys

    @property
    def slots(self) -> range:
        """All slots of the topic."""
        return range(self.definition.slot_amount)

    @property
    def descending(self) -> int:
        """The flag for scripts: 1 if the highest score is delivered first, else 0."""
        return int(self.definition.type.descending)

    @property
    def has_due_times(self) -> int:
        """The flag for scripts: 1 if scores are due times, else 0."""
        return int(self.definition.type.has_due_times)

    @property
    def sends_times(self) -> int:
        """The flag for scripts: 1 if a due time may have passed when it is sent, else 0."""
        return int(self.definition.type.send_script == "send_at")

    @property
    def keeps_first_body(self) -> int:
        """The flag for scripts: 1 if a message that waits keeps its payload, else 0."""
        return int(self.definition.payload == KEEP_FIRST)

    @property
    def backoff(self) -> str:
        """The argument for scripts: the waits before each retry, and their jitter."""
        jitter = self.definition.retry_jitter
        waits = ",".join(map(str, self.definition.retry_backoff_ms))
        return f"{waits}~{jitter!r}" if waits and jitter else waits

    def keys_of(self, slot: int, kinds: str) -> tuple[str, ...]:
        """Return the keys of a slot. kinds: names of methods of Keys, such as "store retry"."""
        return keys_of(self.keys, slot, kinds)

    @cached_property
    def limits(self) -> str:
        """The argument for scripts: the limits on what the topic takes; empty without any."""
        return self.some_limits()

    def some_limits(self, *, on_waiting: bool = True, on_equal: bool = True) -> str:
        """Return the argument with the limits on what may wait, or on equal messages, or both."""
        shares = self.definition.shares if on_waiting else {}
        unique_ms = self.definition.unique_for_ms if on_equal else None
        texts = list(map(text_of, (shares.get("messages"), shares.get("bytes"), unique_ms)))
        return " ".join(texts) if any(texts) else ""

    def keys_of_groups(self, slot: int) -> list[str]:
        """Return the keys of a slot into which a message is sent: of all groups, and for all."""
        keys: list[str] = []
        for of_group in self._keys_of_groups:
            keys += keys_of(of_group, slot, "store retry stats bodies")
        return [*keys, self.keys.recent(slot)] if self.definition.unique_for_ms else keys

    @cached_property
    def _keys_of_groups(self) -> list[Keys]:
        return [self.of_group(group).keys for group in self.definition.groups]

    def claims_and_bodies(self, slot: int, names: Sequence[str]) -> list[str]:
        """Return the keys of several claims, and then those of their bodies."""
        bodies = [self.keys.claim_bodies(slot, name) for name in names]
        return [*self.keys.claims_of(slot, names), *bodies]

    def calls(
        self, script: str, kinds: str, slots: Iterable[int], args: Sequence[Any]
    ) -> list[Call]:
        """Return the same call of a script for several slots. kinds: as for keys_of."""
        return [Call(script, self.keys_of(slot, kinds), args) for slot in slots]

    def of_group(self, group: str) -> "TopicQueues":
        """Return the same topic's queues in another consumer group."""
        keys = self.keys
        return TopicQueues(self.definition, Keys(keys.topic, keys.prefix, group))


@lru_cache(maxsize=8192)
def keys_of(keys: Keys, slot: int, kinds: str) -> tuple[str, ...]:
    """Return keys of a slot, as TopicQueues does. Cached: hot paths need them again and again."""
    return tuple(getattr(keys, kind)(slot) for kind in kinds.split())
