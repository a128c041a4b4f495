"""The definition of a topic: its type, its slots, its consumer groups, and its settings."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import crcmod.predefined

from rmq_spark.errors import ExclusiveSlot, InvalidOption, ScriptFailed
from rmq_spark.topics.keys import ACCEPTED_NAME, DEFAULT_GROUP, MOST_RETRIES, is_name
from rmq_spark.topics.parsing import Parser
from rmq_spark.topics.settings import (
    BACKOFF,
    BYTES,
    FRACTION,
    MOST_MESSAGES,
    RATE,
    RATE_UNITS_MS,
    RETRIES,
    TIME,
    YES_OR_NO,
    Kind,
    Setting,
    is_list,
    number,
    one_of,
    setting,
)
from rmq_spark.topics.types import TOPIC_TYPES, TopicType

DEFAULT_SLOT_AMOUNT = 64
MOST_SLOTS = 65_536
DEFAULT_GROUP_TEXT = "default"
# The payload that a message keeps when an equal one is sent: the last, or its own.
KEEP_LAST, KEEP_FIRST = "last", "first"
# What one rate limit is of.
TOPIC, SLOT = "topic", "slot"
# What becomes of a message that expires.
DROP, BURY = "drop", "dead"

_crc32 = crcmod.predefined.mkPredefinedCrcFun("crc-32")
_MOST_WAITING = 10**12
_LEAST_BYTES = 1024  # of a slot
# For what a rate allows in so long, readers wait before they claim, rather than for each message.
_TOGETHER_MS = 50


def check_topic_name(name: str) -> str:
    """Return a topic's name unchanged. Raises InvalidOption if no topic can have it."""
    if not is_name(name):
        raise InvalidOption.of("topic", name, ACCEPTED_NAME, "is not a topic name")
    return name


def check_slot_amount(value: str | int) -> int:
    """Return a number of slots. Raises InvalidOption unless it is a power of two, 1 to 65536."""
    try:
        amount = int(value) if isinstance(value, int | str) else 0
    except ValueError:
        amount = 0
    if not 1 <= amount <= MOST_SLOTS or amount & (amount - 1):
        raise InvalidOption.of("slot_amount", value, f"a power of two, 1 to {MOST_SLOTS}")
    return amount


def check_key_prefix(prefix: str) -> str:
    """Return a key prefix unchanged. Raises InvalidOption unless it is empty or ends in a colon."""
    if prefix and (not prefix.endswith(":") or set(prefix) & set("{}") or len(prefix) == 1):
        accepted = "a text that ends in ':' and has no braces, such as 'shop:'"
        raise InvalidOption.of("key_prefix", prefix, accepted)
    return prefix


def parse_group(text: str) -> str:
    """Parse a group's name; ``default`` names the default group. Raises InvalidOption."""
    name = text.strip() if isinstance(text, str) else ""
    if name == DEFAULT_GROUP_TEXT:
        return DEFAULT_GROUP
    if not is_name(name):
        accepted = f"{DEFAULT_GROUP_TEXT}, or {ACCEPTED_NAME}"
        raise InvalidOption.of("group", text, accepted, "is not a group name")
    return name


def parse_groups(text: str | Iterable[str], keyword: str = "groups") -> tuple[str, ...]:
    """Parse names of groups, as a list or separated by commas. Raises InvalidOption."""
    if isinstance(text, str):
        listed: Iterable[str] = [name for name in text.split(",") if name.strip()]
    else:
        listed = text if is_list(text) else ()
    names = tuple(DEFAULT_GROUP if name == DEFAULT_GROUP else parse_group(name) for name in listed)
    if not names:
        accepted = "names, in a list or separated by commas"
        raise InvalidOption.of(keyword, text, accepted, "has no name")
    if len(set(names)) < len(names):
        raise InvalidOption.of(keyword, list(names), "one or more names, each once")
    return names


def group_text(group: str) -> str:
    """Write a group's name as options and people write it: ``default`` for the empty one."""
    return group or DEFAULT_GROUP_TEXT


def _some_groups(given: str | Iterable[str], keyword: str = "paused_groups") -> tuple[str, ...]:
    return parse_groups(given, keyword) if given else ()


def _groups_text(groups: Iterable[str]) -> str:
    return ",".join(map(group_text, groups))


_GROUPS = Kind(
    lambda _, given: parse_groups(given),
    Parser(parse_groups, "names, separated by commas: `billing,audit`"),
    _groups_text,
)
_SOME_GROUPS = Kind(
    lambda _, given: _some_groups(given),
    Parser(_some_groups, "names, separated by commas; or nothing"),
    _groups_text,
)


@dataclass(frozen=True)
class TopicDefinition:
    """The definition of a topic, which all its users share. Type and slots never change.

    max_retries: deliveries after the first, 0 to 16. retry_backoff_ms: the waits before the first,
    second, ... retry; the last one repeats; empty for none. retry_jitter: by up to which part of
    its wait, 0 to 1, a retry comes early, at random. paused_groups: those that are paused although
    the topic is not. groups: the consumer groups, each of which gets a copy of every message; the
    empty name is the default group. keyed: whether messages merge by a key beside their content.
    payload: which content a key keeps, "last" or "first". on_expiry: what becomes of a message that
    expires, "drop" or "dead". dead_retention_ms: how long dead messages are kept; None to keep them
    forever. rate: how many messages the consumers of a group get together, such as "100/s"; None
    for no limit. burst: how many of them at once, after a pause; None for one second's worth.
    max_messages, max_bytes: how much may wait in each group, in messages, and in bytes of Redis'
    memory; None for no limit. time_to_live_ms: how long after it is due a message expires that is
    sent without an expiry; None for never. unique_for_ms: for how long after a message was accepted
    an equal one is not accepted; None to accept it.
    """

    name: str
    type: TopicType
    slot_amount: int = DEFAULT_SLOT_AMOUNT
    max_retries: int = setting(
        MOST_RETRIES, RETRIES, "maxRetries", "Deliveries after the first", flag="--retries"
    )
    retry_backoff_ms: tuple[int, ...] = setting(
        (),
        BACKOFF,
        "retryBackoff",
        "Waits before the first, second, ... retry; the last one repeats",
        flag="--backoff",
        keyword="retry_backoff",
    )
    retry_jitter: float = setting(
        0.0,
        FRACTION,
        "retryJitter",
        "By up to which part of its wait a retry comes early, at random; 1 spreads retries over "
        "the whole wait of `retryBackoff`",
        flag="--jitter",
    )
    exclusive: bool = setting(
        False,
        YES_OR_NO,
        "exclusive",
        "Whether only the owner of a slot may read it",
        in_writes=False,
    )
    paused: bool = setting(
        False, YES_OR_NO, "paused", "Whether nobody gets messages", in_writes=False
    )
    paused_groups: tuple[str, ...] = setting(
        (), _SOME_GROUPS, "pausedGroups", "Consumer groups that get no messages", in_writes=False
    )
    groups: tuple[str, ...] = setting(
        (DEFAULT_GROUP,),
        _GROUPS,
        "groups",
        "Consumer groups; each gets a copy of every message",
    )
    keyed: bool = setting(
        False,
        YES_OR_NO,
        "keyed",
        "Whether messages of a new topic merge by a column `key`, and content is their payload",
        is_lasting=True,
    )
    payload: str = setting(
        KEEP_LAST,
        one_of(KEEP_LAST, KEEP_FIRST),
        "payload",
        "Which content a message of a new keyed topic keeps when its key is sent again",
        is_lasting=True,
    )
    on_expiry: str = setting(
        DROP,
        one_of(DROP, BURY),
        "onExpiry",
        "What happens to messages of a new topic that expire: dropped, or moved to the dead queue",
        flag="--on-expiry",
    )
    dead_retention_ms: int | None = setting(
        None,
        TIME,
        "deadRetention",
        "How long dead messages of a new topic are kept; `rmq expire` deletes older ones",
        flag="--dead-retention",
        keyword="dead_retention",
    )
    rate: str | None = setting(
        None,
        RATE,
        "rate",
        "How many messages all consumers of a group together get at most",
        flag="--rate",
    )
    burst: int | None = setting(
        None,
        number(MOST_MESSAGES),
        "burst",
        "With `rate`: how many messages may come at once after a pause",
        "`none`: one second's worth",
        flag="--burst",
    )
    rate_by: str = setting(
        TOPIC,
        one_of(TOPIC, SLOT),
        "rateBy",
        "With `rate`: whether the whole topic has one limit, or each slot one of its own",
        flag="--rate-by",
    )
    max_messages: int | None = setting(
        None,
        number(_MOST_WAITING, "from the number of slots"),
        "maxMessages",
        "How many messages may wait in each consumer group at most; each slot has the same share "
        "of it",
        flag="--max-messages",
    )
    max_bytes: int | None = setting(
        None,
        BYTES,
        "maxBytes",
        "How much of Redis' memory messages that wait may take in each consumer group; each slot "
        "has the same share of it",
        flag="--max-bytes",
    )
    time_to_live_ms: int | None = setting(
        None,
        TIME,
        "timeToLive",
        "How long after they are due messages expire that are sent without an expiry",
        flag="--time-to-live",
        in_writes=False,  # there, it is that of the rows
        keyword="time_to_live",
    )
    unique_for_ms: int | None = setting(
        None,
        TIME,
        "uniqueFor",
        "For how long after a message was accepted an equal one is not accepted again, even if "
        "the first is consumed by then",
        flag="--unique-for",
        keyword="unique_for",
    )

    def __post_init__(self) -> None:
        check_topic_name(self.name)
        check_slot_amount(self.slot_amount)
        for one in SETTINGS.values():
            object.__setattr__(self, one.field, one.accept(one.of(self)))
        unknown = [group_text(one) for one in self.paused_groups if one not in self.groups]
        if unknown:
            raise InvalidOption(
                f"paused_groups names {', '.join(unknown)}, no group of topic {self.name}. "
                f"Accepted: {', '.join(map(group_text, self.groups))}."
            )
        if self.burst is not None and self.rate is None:
            raise InvalidOption(
                f"burst={self.burst} is for topics with a rate limit. Accepted here: none. Or set "
                "rate too, such as rate='100/s'."
            )
        if self.rate_by != TOPIC and self.rate is None:
            raise InvalidOption(
                f"rate_by={self.rate_by!r} is for topics with a rate limit. Accepted here: "
                f"{TOPIC!r}. Or set rate too, such as rate='100/s'."
            )
        if self.max_messages is not None and self.max_messages < self.slot_amount:
            raise InvalidOption(
                f"max_messages={self.max_messages} leaves slots without a share: topic {self.name} "
                f"has {self.slot_amount}. Accepted: {self.slot_amount} or more, or none."
            )
        if self.max_bytes is not None and self.max_bytes < self.slot_amount * _LEAST_BYTES:
            raise InvalidOption(
                f"max_bytes={self.max_bytes} is less than {_LEAST_BYTES} for each of the "
                f"{self.slot_amount} slots of topic {self.name}. Accepted: "
                f"{self.slot_amount * _LEAST_BYTES} or more, or none."
            )
        if self.payload != KEEP_LAST and not self.keyed:
            raise InvalidOption(
                f"payload={self.payload!r} is for keyed topics, where a message has a payload "
                "beside its key. Accepted here: last. Or create the topic with keyed=true."
            )

    def to_json(self) -> str:
        """Write the definition as the JSON that Redis stores in ``rmq_topics``."""
        fixed = {"slotAmount": self.slot_amount, "topicType": self.type.name}
        settings = {one.option.name: one.of(self) for one in SETTINGS.values()}
        return json.dumps(fixed | settings, sort_keys=True)

    @staticmethod
    def from_json(name: str, text: str | bytes) -> "TopicDefinition":
        """Read a definition that to_json wrote. Raises ScriptFailed for any other text."""
        try:
            fields = cast(dict[str, Any], json.loads(text))
            return TopicDefinition(
                name,
                TOPIC_TYPES[fields["topicType"]],
                fields["slotAmount"],
                **{
                    one.field: fields[one.option.name]
                    for one in SETTINGS.values()
                    if one.option.name in fields
                },
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ScriptFailed(
                f"The definition of topic {name} in rmq_topics cannot be read ({error}): {text!r}. "
                "Use the version of rmq-spark that wrote it. Or delete that field of rmq_topics, "
                "and define the topic again."
            ) from error

    def text_of(self, keyword: str) -> str:
        """Return the value of a setting as its option takes it. keyword: as in SETTINGS."""
        return SETTINGS[keyword].kind.text(SETTINGS[keyword].of(self))

    @property
    def interval_ms(self) -> float:
        """The time in ms for which the rate limit allows one message; 0 without a limit."""
        number, _, unit = (self.rate or "").partition("/")
        return RATE_UNITS_MS[unit] / int(number) if number else 0.0

    @property
    def most_at_once(self) -> int:
        """The burst: how many messages a group that has rested gets at once."""
        return self.burst or max(1, int(1000 / self.interval_ms))

    @property
    def messages_a_claim(self) -> int:
        """How many messages readers claim at a time, so that claims are neither many nor large."""
        if self.rate is None:
            return MOST_MESSAGES
        return min(self.most_at_once, max(1, int(_TOGETHER_MS / self.interval_ms)))

    @cached_property
    def shares(self) -> dict[str, int]:
        """What may wait in each slot: "messages", "bytes", or both; without limits, nothing."""
        limits = {"messages": self.max_messages, "bytes": self.max_bytes}
        return {unit: most // self.slot_amount for unit, most in limits.items() if most is not None}

    @property
    def usual_group(self) -> str:
        """The group of those who name none: the default group, else the first one."""
        return DEFAULT_GROUP if DEFAULT_GROUP in self.groups else self.groups[0]

    def takes_messages_of(self, other: "TopicDefinition") -> bool:
        """Return whether messages that were checked for another definition fit this one."""
        settings = ("type", "slot_amount", "keyed")
        return other is self or all(
            getattr(self, name) == getattr(other, name) for name in settings
        )

    def changed(self, **changes: Any) -> "TopicDefinition":
        """Return the definition with these fields changed. Raises InvalidOption.

        What belongs to a rate limit ends with it.
        """
        if changes.get("rate", self.rate) is None:
            changes = {"burst": None, "rate_by": TOPIC} | changes
        return replace(self, **changes)

    def is_paused(self, group: str) -> bool:
        """Return whether a consumer group gets no messages."""
        return self.paused or group in self.paused_groups

    def slot_of(self, basis: bytes | str) -> int:
        """Return the slot of a slotBasis, or of a key or content. Text is hashed as UTF-8."""
        if not isinstance(basis, str | bytes):
            raise InvalidOption.of("slot_basis", basis, "bytes or str")
        return slot_of(basis.encode() if isinstance(basis, str) else basis, self.slot_amount)

    def check_slot(self, slot: int) -> int:
        """Return a slot unchanged. Raises InvalidOption if the topic has no such slot."""
        if not isinstance(slot, int) or not 0 <= slot < self.slot_amount:
            why = f"is not a slot of topic {self.name}"
            raise InvalidOption.of("slot", slot, f"0 to {self.slot_amount - 1}", why)
        return slot


def _settings() -> Iterator[Setting]:
    for one in fields(TopicDefinition):
        if declared := one.metadata.get("setting"):
            yield replace(declared, field=one.name, keyword=declared.keyword or one.name)


SETTINGS: Mapping[str, Setting] = {one.keyword: one for one in _settings()}
FLAGS = {keyword: one for keyword, one in SETTINGS.items() if one.flag}
LASTING = tuple(keyword for keyword, one in SETTINGS.items() if one.is_lasting)


def parse_settings(done: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to fields of TopicDefinition. Raises InvalidOption for an unknown one.

    done: what the caller does with them, for the error: "set" or "changed".
    """
    known = [keyword for keyword in SETTINGS if done == "set" or keyword not in LASTING]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        accepted = ("slot_amount", *known) if done == "set" else known
        raise InvalidOption(
            f"{', '.join(unknown)} of a topic cannot be {done}. Accepted: {', '.join(accepted)}."
        )
    return {
        one.field: one.accept(settings[keyword])
        for keyword, one in SETTINGS.items()
        if keyword in settings
    }


def refuse_exclusive(topic: TopicDefinition) -> None:
    """Raise ExclusiveSlot for an exclusive topic: only the owner of a slot may consume it."""
    if topic.exclusive:
        raise ExclusiveSlot(
            f"The topic {topic.name} is exclusive: only readers that own its slots may read it. "
            "Give the reader a ZooKeeper (zookeeper.hosts in Spark, zookeeper= in plain Python, "
            "rmq listen --zookeeper), look with rmq peek, or share the topic with "
            f"broker.alter({topic.name!r}, exclusive=False), or "
            f"rmq alter {topic.name} --no-exclusive."
        )


def slot_of(basis: bytes, slot_amount: int) -> int:
    """Compute the slot of a basis: its CRC-32 (ISO-HDLC), modulo the number of slots.

    crcmod defines it. Spark's sink calls zlib's crc32, which gives the same in 0.4 of the time.
    """
    return cast(int, _crc32(basis)) % slot_amount


def by_slots(bases: Iterable[bytes], slot_amount: int) -> dict[int, list[bytes]]:
    """Group bases by their slots."""
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    crc32 = _crc32
    for basis in bases:
        found[crc32(basis) % slot_amount].append(basis)
    return found
