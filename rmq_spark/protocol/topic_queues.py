"""The queues of a topic in one consumer group, which every request about them takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rmq_spark.protocol.calls import Call
from rmq_spark.topics.definition import KEEP_FIRST, TopicDefinition
from rmq_spark.topics.keys import Keys

# The keys of a slot, in the order of lua/include/slot.lua.
ALL_KINDS = "store retry dead deaths claims consumers stats bodies"


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
        """The argument for scripts: the waits before each retry, in ms, separated by commas."""
        return ",".join(map(str, self.definition.retry_backoff_ms))

    def keys_of(self, slot: int, kinds: str) -> tuple[str, ...]:
        """Return the keys of a slot. kinds: names of methods of Keys, such as "store retry"."""
        return keys_of(self.keys, slot, kinds)

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
    """Return the keys of a slot. kinds: names of methods of Keys, such as "store retry".

    Cached, because the hot paths need the same keys again and again.
    """
    return tuple(getattr(keys, kind)(slot) for kind in kinds.split())
