"""The queues of a topic in one consumer group, which every request about them takes."""

from dataclasses import dataclass
from functools import lru_cache

from rmq_spark.topics.definition import Keys, TopicDefinition


@dataclass(frozen=True)
class TopicQueues:
    """A topic, and the keys of one consumer group in it."""

    definition: TopicDefinition
    keys: Keys

    @property
    def slots(self) -> range:
        """All slots of the topic."""
        return range(self.definition.slot_amount)

    @property
    def descending(self) -> int:
        """1 where the highest score is delivered first, as scripts take it."""
        return int(self.definition.type.descending)

    @property
    def has_due_times(self) -> int:
        """1 where scores are due times, as scripts take it."""
        return int(self.definition.type.has_due_times)

    @property
    def sends_times(self) -> int:
        """1 where messages are sent with due times, which may have passed, as scripts take it."""
        return int(self.definition.type.send_script == "send_at")

    @property
    def backoff(self) -> str:
        """The waits before each retry, ms, as scripts take them."""
        return ",".join(map(str, self.definition.retry_backoff_ms))

    def keys_of(self, slot: int, kinds: str) -> tuple[str, ...]:
        """Return the keys of a slot by the names of their methods, such as "store retry"."""
        return keys_of(self.keys, slot, kinds)

    def of_group(self, group: str) -> "TopicQueues":
        """Return the same topic's queues in another consumer group."""
        keys = self.keys
        return TopicQueues(self.definition, Keys(keys.topic, keys.prefix, group))


@lru_cache(maxsize=8192)
def keys_of(keys: Keys, slot: int, kinds: str) -> tuple[str, ...]:
    """Return the keys of a slot by the names of their methods. Cached: the hot paths ask again."""
    return tuple(getattr(keys, kind)(slot) for kind in kinds.split())
