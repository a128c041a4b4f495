"""The names of keys in Redis, and the scores in them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_GROUP = ""
# A name of a topic, a group or a consumer, as a part of the name of a key.
NAME = r"[A-Za-z0-9._-]{1,200}"
ACCEPTED_NAME = "1 to 200 of . _ - A-Z a-z 0-9, not all dots"
# What the script figures reads of a slot, beside its store.
_OF_FIGURES = ("retry", "dead", "claims", "stats", "consumers")
# That many keys of each slot, the store's first, are what of_figures names.
KEYS_OF_FIGURES = 1 + len(_OF_FIGURES)
# From RMQ's design: a message is delivered once and retried up to 16 times. In a store, a score of
# 16 or less is a number of retries left, so the lowest score of a first delivery is 17.
MOST_RETRIES = 16
LOWEST_SCORE = MOST_RETRIES + 1
# A message of a claim that was lost is suspect. Its score in the store is negative: retries left,
# plus so much for each level of suspicion (lua/include/records.lua).
SUSPECT_LEVEL = 32
# Scores are IEEE doubles, which are exact for whole numbers up to here.
HIGHEST_SCORE = 2**53
# As the score of a FixedTime message that is sent, this means the time at which Redis stores it.
# A negative score is a delay with its sign changed (lua/include/dated.lua).
AT_ONCE = 0


def is_name(value: object) -> bool:
    """Return whether a topic, a group, a consumer or a schedule can have this name."""
    if not isinstance(value, str) or re.fullmatch(NAME, value) is None:
        return False
    return value.strip(".") != ""  # as a part of an address or a path, . and .. mean another one


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
        """Name the HASH of a claim: its bodies, in parts. name: as for claim."""
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

    def consumers(self, slot: int) -> str:
        """Name the HASH of a slot: consumer -> header; and @epoch, @paused."""
        return self._tagged("consumers", slot)

    def stats(self, slot: int) -> str:
        """Name the HASH of a slot: counter -> number."""
        return self._tagged("stats", slot)

    def of_figures(self, slots: Iterable[int]) -> list[str]:
        """Name what figures reads of slots, quicker than name by name: all topics have millions."""
        begin, end = f"_{{{self.prefix}{self.topic}_", f"}}@{self.group}" if self.group else "}"
        kinds = [f"{self.prefix}{kind}" for kind in _OF_FIGURES]
        names = []
        for slot in slots:
            tag = f"{begin}{slot}{end}"
            names += [self.store(slot), *[kind + tag for kind in kinds]]
        return names

    def rate(self, slot: int = 0) -> str:
        """Name the HASH that counts what a group's rate limit still allows; or each slot's own."""
        return self._tagged("rate", slot)

    def stages(self, slot: int) -> str:
        """Name the HASH of a slot: stage -> its start in ms, messages published; for all groups."""
        return f"{self.prefix}stages_{{{self.prefix}{self.topic}_{slot}}}"

    def stage(self, slot: int, name: str) -> str:
        """Name the LIST of a stage: score, content, score, content, ... as sent; for all groups."""
        return f"{self.prefix}stage_{{{self.prefix}{self.topic}_{slot}}}:{name}"

    def recent(self, slot: int) -> str:
        """Name the ZSET of a slot: content -> when it was accepted, in ms; for all groups."""
        return f"{self.prefix}recent_{{{self.prefix}{self.topic}_{slot}}}"

    def schedules(self, slot: int) -> str:
        """Name the HASH of a slot: schedule -> note of its last occurrence; for all groups."""
        return f"{self.prefix}schedules_{{{self.prefix}{self.topic}_{slot}}}"


def topics_key(prefix: str = "") -> str:
    """Name the HASH of all topics: topic -> definition as JSON."""
    return f"{prefix}rmq_topics"


def deletions_key(prefix: str = "") -> str:
    """Name the HASH of deletions in progress: topic -> when it lapses, in ms, and definition."""
    return f"{prefix}rmq_deletions"


def schedules_key(prefix: str = "") -> str:
    """Name the HASH of all schedules: schedule -> definition as JSON."""
    return f"{prefix}rmq_schedules"


def consumer_key(consumer: str, prefix: str = "") -> str:
    """Name the HASH of a consumer: its run, settled and topic."""
    return f"{prefix}consumer:{consumer}"


def sink_key(query: str, prefix: str = "") -> str:
    """Name the HASH of an exactly-once sink: its last sealed batch and what is left to publish."""
    return f"{prefix}sink:{query}"


def listener_key(batch: str, prefix: str = "") -> str:
    """Name the HASH of a batch of each_message: its counts, by task."""
    return f"{prefix}listener:{batch}"


def deliveries_of(score: int) -> int:
    """Return how often a message may be delivered, by its score of 16 or less in a store."""
    return -score % SUSPECT_LEVEL if score < 0 else score
