"""The definition of a topic: its type, its slots, and the names of its keys in Redis."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import crcmod.predefined

from rmq_spark.errors import ExclusiveSlot, InvalidOption, ScriptFailed
from rmq_spark.topics.durations import LONGEST_DURATION_MS, parse_duration_ms
from rmq_spark.topics.keys import DEFAULT_GROUP
from rmq_spark.topics.message_value import LONGEST_WAIT_MS
from rmq_spark.topics.parsers import NotAccepted, duration
from rmq_spark.topics.scores import MOST_RETRIES
from rmq_spark.topics.topic_types import TOPIC_TYPES, TopicType

DEFAULT_SLOT_AMOUNT = 64
MOST_SLOTS = 65_536
DEFAULT_GROUP_TEXT = "default"
# The settings of a topic that may change, and those that stay as they were at its creation.
CHANGEABLE = (
    *("max_retries", "retry_backoff", "exclusive", "paused", "groups"),
    *("on_expiry", "dead_retention"),
)
LASTING = ("keyed", "payload")
# The payload that a message keeps when an equal one is sent: the last, or its own.
KEEP_LAST, KEEP_FIRST = "last", "first"
# What becomes of a message that expires.
DROP, BURY = "drop", "dead"

# RocketMQ's delays from its third level on, which its retries use.
ROCKETMQ_BACKOFF = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_crc32 = crcmod.predefined.mkPredefinedCrcFun("crc-32")


def check_topic_name(name: str) -> str:
    """Return a topic's name unchanged. Raises InvalidOption if no topic can have it."""
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"topic={name[:250]!r} is not a topic name. Accepted: 1 to 200 of the characters "
            "A-Z a-z 0-9 . _ -",
            name="topic",
        )
    return name


def check_slot_amount(value: str | int) -> int:
    """Return a number of slots. Raises InvalidOption unless it is a power of two, 1 to 65536."""
    try:
        amount = int(value)
    except ValueError:
        amount = 0
    if not 1 <= amount <= MOST_SLOTS or amount & (amount - 1):
        raise InvalidOption(
            f"slot_amount={value!r} is not accepted. Accepted: a power of two, 1 to {MOST_SLOTS}.",
            name="slot_amount",
        )
    return amount


def check_word(name: str, value: str, accepted: Sequence[str]) -> None:
    """Raise InvalidOption unless a setting has one of the accepted values."""
    if value not in accepted:
        text = f"{name}={value!r} is not accepted. Accepted: {', '.join(accepted)}."
        raise InvalidOption(text, name=name)


def check_key_prefix(prefix: str) -> str:
    """Return a key prefix unchanged. Raises InvalidOption unless it is empty or ends in a colon."""
    if prefix and (not prefix.endswith(":") or set(prefix) & set("{}") or len(prefix) == 1):
        raise InvalidOption(
            f"key_prefix={prefix!r} is not accepted. Accepted: a text that ends in ':' and has no "
            "braces, such as 'shop:'.",
            name="key_prefix",
        )
    return prefix


def parse_retry_backoff(text: str) -> tuple[int, ...]:
    """Parse the waits in ms before the first, second, ... retry; the last one repeats.

    text: ``none``, ``rocketmq``, or up to 16 durations with units. Raises InvalidOption.
    """
    if not isinstance(text, str):
        raise InvalidOption(
            f"retry_backoff={text!r} is not a text. Accepted: {_ACCEPTED_BACKOFF}.",
            name="retry_backoff",
        )
    named = {"none": "", "rocketmq": ROCKETMQ_BACKOFF}
    words = named.get(text.strip().lower(), text).replace(",", " ").split()
    waits = tuple(parse_duration_ms("retry_backoff", word) for word in words)
    if text.strip().lower() != "none" and not waits:
        raise InvalidOption(
            f"retry_backoff={text!r} has no duration. Accepted: {_ACCEPTED_BACKOFF}.",
            name="retry_backoff",
        )
    check_retry_backoff(waits)
    return waits


def check_retry_backoff(waits: tuple[int, ...]) -> None:
    """Check the waits before retries, in ms. Raises InvalidOption for too many or a wrong one."""
    fits = all(1 <= wait <= LONGEST_DURATION_MS for wait in waits)
    if len(waits) > MOST_RETRIES or not fits:
        raise InvalidOption(
            f"retry_backoff={list(waits)} (ms) is not accepted. Accepted: {_ACCEPTED_BACKOFF}.",
            name="retry_backoff",
        )


_ACCEPTED_BACKOFF = (
    f"none, rocketmq, or 1 to {MOST_RETRIES} durations above 0 and up to 366d, such as "
    "'10s, 30s, 1m'; the last one repeats"
)


# A number without a unit is ms everywhere else. Here, somebody may mean days and lose the dead.
ACCEPTED_RETENTION = "`none`, or a duration with its unit: `12h`, `30d`"
_retention = duration(1, LONGEST_WAIT_MS)


def parse_dead_retention(value: str | int | timedelta | None) -> int | None:
    """Parse how long dead messages are kept, in ms; None to keep them forever.

    value: ``none``, a text with a unit, or a number of ms. Raises InvalidOption.
    """
    parsed: Any = value
    if isinstance(value, timedelta):
        parsed = value // timedelta(milliseconds=1)
    elif isinstance(value, str):
        try:
            parsed = None if value.strip().lower() == "none" else _retention.read(value)
        except NotAccepted:
            parsed = value
    return check_dead_retention(parsed)


def check_dead_retention(value: Any) -> int | None:
    """Return a retention in ms, or None for none, unchanged. Raises InvalidOption for another."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_whole and 1 <= value <= LONGEST_WAIT_MS):
        raise InvalidOption(
            f"dead_retention={value!r} is not accepted. Accepted: "
            f"{ACCEPTED_RETENTION.replace('`', '')}.",
            name="dead_retention",
        )
    return cast(int | None, value)


@dataclass(frozen=True)
class TopicDefinition:
    """The definition of a topic, which all its users share. Type and slots never change.

    max_retries: deliveries after the first, 0 to 16. retry_backoff_ms: the waits before the first,
    second, ... retry; the last one repeats; empty for none. groups: the consumer groups, each of
    which gets a copy of every message; the empty name is the default group. keyed: whether messages
    merge by a key beside their content. payload: which content a key keeps, "last" or "first".
    on_expiry: what becomes of a message that expires, "drop" or "dead". dead_retention_ms: how long
    dead messages are kept; None to keep them forever.
    """

    name: str
    type: TopicType
    slot_amount: int = DEFAULT_SLOT_AMOUNT
    max_retries: int = MOST_RETRIES
    retry_backoff_ms: tuple[int, ...] = ()
    exclusive: bool = False
    paused: bool = False
    groups: tuple[str, ...] = (DEFAULT_GROUP,)
    keyed: bool = False
    payload: str = KEEP_LAST
    on_expiry: str = DROP
    dead_retention_ms: int | None = None

    def __post_init__(self) -> None:
        check_topic_name(self.name)
        check_slot_amount(self.slot_amount)
        for name in ("exclusive", "paused", "keyed"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOption(
                    f"{name}={getattr(self, name)!r} is not accepted. Accepted: True or False."
                )
        is_whole = isinstance(self.max_retries, int) and not isinstance(self.max_retries, bool)
        if not (is_whole and 0 <= self.max_retries <= MOST_RETRIES):
            raise InvalidOption(
                f"max_retries={self.max_retries!r} is not accepted. Accepted: a whole number, 0 to "
                f"{MOST_RETRIES}.",
                name="max_retries",
            )
        check_retry_backoff(self.retry_backoff_ms)
        check_word("payload", self.payload, (KEEP_LAST, KEEP_FIRST))
        check_word("on_expiry", self.on_expiry, (DROP, BURY))
        check_dead_retention(self.dead_retention_ms)
        if self.payload != KEEP_LAST and not self.keyed:
            raise InvalidOption(
                f"payload={self.payload!r} is for keyed topics, where a message has a payload "
                "beside its key. Accepted here: last. Or create the topic with keyed=true."
            )
        if not self.groups or len(set(self.groups)) < len(self.groups):
            raise InvalidOption(
                f"groups={list(self.groups)} is not accepted. Accepted: one or more names, each "
                "once."
            )
        for group in self.groups:
            check_group(group)

    def to_json(self) -> str:
        """Write the definition as the JSON that Redis stores in ``rmq_topics``."""
        return json.dumps(
            {
                "deadRetention": self.dead_retention_ms,
                "exclusive": self.exclusive,
                "groups": list(self.groups),
                "keyed": self.keyed,
                "maxRetries": self.max_retries,
                "onExpiry": self.on_expiry,
                "paused": self.paused,
                "payload": self.payload,
                "retryBackoff": list(self.retry_backoff_ms),
                "slotAmount": self.slot_amount,
                "topicType": self.type.name,
            },
            sort_keys=True,
        )

    @staticmethod
    def from_json(name: str, text: str | bytes) -> "TopicDefinition":
        """Read a definition that to_json wrote. Raises ScriptFailed for any other text."""
        try:
            fields = cast(dict[str, Any], json.loads(text))
            return TopicDefinition(
                name=name,
                type=TOPIC_TYPES[fields["topicType"]],
                slot_amount=fields["slotAmount"],
                max_retries=fields["maxRetries"],
                retry_backoff_ms=tuple(fields["retryBackoff"]),
                exclusive=fields["exclusive"],
                paused=fields["paused"],
                groups=tuple(fields["groups"]),
                # Definitions of version 0.1 lack these.
                keyed=fields.get("keyed", False),
                payload=fields.get("payload", KEEP_LAST),
                on_expiry=fields.get("onExpiry", DROP),
                dead_retention_ms=fields.get("deadRetention"),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ScriptFailed(
                f"The definition of topic {name} in rmq_topics cannot be read ({error}): {text!r}. "
                "Delete that field of rmq_topics and define the topic again."
            ) from error

    @property
    def usual_group(self) -> str:
        """The group of those who name none: the default group, else the first one."""
        return DEFAULT_GROUP if DEFAULT_GROUP in self.groups else self.groups[0]

    def takes_messages_of(self, other: "TopicDefinition") -> bool:
        """Return whether messages that were checked for another definition fit this one."""
        settings = ("type", "slot_amount", "keyed")
        return all(getattr(self, name) == getattr(other, name) for name in settings)

    def changed(self, **changes: Any) -> "TopicDefinition":
        """Return the definition with these fields changed. Raises InvalidOption."""
        return replace(self, **changes)

    def slot_of(self, basis: bytes | str) -> int:
        """Return the slot of a message with this slotBasis (or, without one, this content).

        Text is hashed as UTF-8. Raises InvalidOption for another type.
        """
        if not isinstance(basis, str | bytes):
            raise InvalidOption(f"slot_basis={basis!r} is not accepted. Accepted: bytes or str.")
        return slot_of(basis.encode() if isinstance(basis, str) else basis, self.slot_amount)

    def check_slot(self, slot: int) -> int:
        """Return a slot unchanged. Raises InvalidOption if the topic has no such slot."""
        if not isinstance(slot, int) or not 0 <= slot < self.slot_amount:
            raise InvalidOption(
                f"slot={slot!r} is not a slot of topic {self.name}. Accepted: 0 to "
                f"{self.slot_amount - 1}."
            )
        return slot


def check_group(group: str) -> str:
    """Return a group's name unchanged; it is empty for the default group. Raises InvalidOption."""
    if group != DEFAULT_GROUP and (not _NAME.fullmatch(group) or group == DEFAULT_GROUP_TEXT):
        raise InvalidOption(
            f"group={group!r} is not a group name. Accepted: 1 to 200 of A-Z a-z 0-9 . _ -",
            name="group",
        )
    return group


def parse_group(text: str) -> str:
    """Parse a group's name as options write it. ``default`` names the default group.

    Raises InvalidOption for any other text that is not a group's name, such as an empty one.
    """
    name = text.strip() if isinstance(text, str) else text
    if name == DEFAULT_GROUP_TEXT:
        return DEFAULT_GROUP
    if not isinstance(name, str) or name == "":
        raise InvalidOption(
            f"group={text!r} is not a group name. Accepted: {DEFAULT_GROUP_TEXT}, or 1 to 200 of "
            "A-Z a-z 0-9 . _ -",
            name="group",
        )
    return check_group(name)


def parse_groups(text: str | Iterable[str]) -> tuple[str, ...]:
    """Parse names of groups, as a list or separated by commas. Raises InvalidOption."""
    listed = [name for name in text.split(",") if name.strip()] if isinstance(text, str) else text
    names = tuple(DEFAULT_GROUP if name == DEFAULT_GROUP else parse_group(name) for name in listed)
    if not names:
        raise InvalidOption(
            f"groups={text!r} has no name. Accepted: names, in a list or separated by commas.",
            name="groups",
        )
    return names


def group_text(group: str) -> str:
    """Write a group's name as options and people write it: ``default`` for the empty one."""
    return group or DEFAULT_GROUP_TEXT


def parse_settings(done: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Convert settings to fields of TopicDefinition. Raises InvalidOption for an unknown one.

    done: what the caller does with them, for the error: "set" or "changed".
    """
    known = (*LASTING, *CHANGEABLE) if done == "set" else CHANGEABLE
    unknown = sorted(set(settings) - set(known))
    if unknown:
        accepted = ("slot_amount", *known) if done == "set" else known
        raise InvalidOption(
            f"{', '.join(unknown)} of a topic cannot be {done}. Accepted: {', '.join(accepted)}."
        )
    fields = dict(settings)
    if "retry_backoff" in fields:
        fields["retry_backoff_ms"] = parse_retry_backoff(fields.pop("retry_backoff"))
    if "dead_retention" in fields:
        fields["dead_retention_ms"] = parse_dead_retention(fields.pop("dead_retention"))
    if "groups" in fields:
        fields["groups"] = parse_groups(fields["groups"])
    return fields


def refuse_exclusive(topic: TopicDefinition) -> None:
    """Raise ExclusiveSlot for an exclusive topic: only the owner of a slot may consume it."""
    if topic.exclusive:
        raise ExclusiveSlot(
            f"The topic {topic.name} is exclusive: only readers that own its slots may read it. "
            "Give the reader a ZooKeeper (zookeeper.hosts in Spark, zookeeper= in plain Python, "
            "--zookeeper at the command line), or share the topic with "
            f"broker.alter({topic.name!r}, exclusive=False)."
        )


def slot_of(basis: bytes, slot_amount: int) -> int:
    """Compute the slot of a basis: its CRC-32 (ISO-HDLC), modulo the number of slots.

    The sink computes the slots of a whole Arrow batch with ``slots_of_rows`` in
    ``rmq_spark.spark.sink.operations``.
    """
    return cast(int, _crc32(basis)) % slot_amount
