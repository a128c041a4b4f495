"""The names of keys in Redis."""

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_GROUP = ""


@dataclass(frozen=True)
class Keys:
    """The names of the keys of one topic and consumer group.

    The braces are a hash tag: in a Redis Cluster all keys of a slot lie on one cluster node. Every
    key begins with the prefix, so one ACL pattern covers them.
    """

    topic: str
    prefix: str = ""
    group: str = DEFAULT_GROUP

    def _tagged(self, kind: str, slot: int) -> str:
        suffix = f"@{self.group}" if self.group else ""
        return f"{self.prefix}{kind}_{{{self.prefix}{self.topic}_{slot}}}{suffix}"

    def store(self, slot: int) -> str:
        """Name the ZSET of a slot: content -> due time in ms, priority, or retries left."""
        if self.group:
            return f"{self.prefix}{{{self.prefix}{self.topic}_{slot}}}@{self.group}"
        return f"{self.prefix}{self.topic}_{slot}"

    def claim(self, slot: int, name: str) -> str:
        """Name the ZSET of a claim: content -> score in the store. name: consumer:seq:ordinal."""
        return f"{self._tagged('prepare', slot)}:{name}"

    def bodies(self, slot: int) -> str:
        """Name the HASH of a slot: content or key of a waiting message -> body."""
        return self._tagged("bodies", slot)

    def claim_bodies(self, slot: int, name: str) -> str:
        """Name the HASH of a claim: its bodies and contents, in parts. name: as for claim."""
        return f"{self._tagged('bodies', slot)}:{name}"

    def claims_of(self, slot: int, names: Iterable[str]) -> list[str]:
        """Name the ZSETs of several claims."""
        return [self.claim(slot, name) for name in names]

    def part(self, slot: int) -> str:
        """Name the ZSET of a slot that is there only within the script claim."""
        return f"{self._tagged('prepare', slot)}:part"

    def retry(self, slot: int) -> str:
        """Name the ZSET of a slot: content -> due second * 1000 + retries left."""
        return self._tagged("retry", slot)

    def dead(self, slot: int) -> str:
        """Name the ZSET of a slot: content -> time in ms at which it became dead."""
        return self._tagged("dead", slot)

    def deaths(self, slot: int) -> str:
        """Name the HASH of a slot: content of a dead message -> consumer and reason."""
        return self._tagged("deaths", slot)

    def claims(self, slot: int) -> str:
        """Name the HASH of a slot: consumer:seq:ordinal -> record."""
        return self._tagged("claims", slot)

    def old_prepare(self, slot: int) -> str:
        """Name the ZSET in which an earlier version kept the messages of all claims."""
        return self._tagged("prepare", slot)

    def old_first(self, slot: int) -> str:
        """Name the HASH in which an earlier version kept the first scores of claims."""
        return self._tagged("first", slot)

    def consumers(self, slot: int) -> str:
        """Name the HASH of a slot: consumer -> header; and @epoch, @paused."""
        return self._tagged("consumers", slot)

    def stats(self, slot: int) -> str:
        """Name the HASH of a slot: counter -> number."""
        return self._tagged("stats", slot)

    def stages(self, slot: int) -> str:
        """Name the HASH of a slot: stage -> its start in ms, messages published; for all groups."""
        return f"{self.prefix}stages_{{{self.prefix}{self.topic}_{slot}}}"

    def stage(self, slot: int, name: str) -> str:
        """Name the LIST of a stage: score, content, score, content, ... as sent; for all groups."""
        return f"{self.prefix}stage_{{{self.prefix}{self.topic}_{slot}}}:{name}"


def topics_key(prefix: str = "") -> str:
    """Name the HASH of all topics: topic -> definition as JSON."""
    return f"{prefix}rmq_topics"


def consumer_key(consumer: str, prefix: str = "") -> str:
    """Name the HASH of a consumer: its run, settled and topic."""
    return f"{prefix}consumer:{consumer}"


def sink_key(query: str, prefix: str = "") -> str:
    """Name the HASH of an exactly-once sink: its last sealed batch and what is left to publish."""
    return f"{prefix}sink:{query}"


def listener_key(batch: str, prefix: str = "") -> str:
    """Name the HASH of a batch of each_message: its counts, by task."""
    return f"{prefix}listener:{batch}"
