"""The definition of a topic: its type, its slots, and the names of its keys in Redis."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, cast

import crcmod.predefined

from rmq_spark.errors import ExclusiveSlot, InvalidOption, ScriptFailed
from rmq_spark.topics.keys import ACCEPTED_NAME, DEFAULT_GROUP, MOST_RETRIES, NAME
from rmq_spark.topics.parsing import (
    FLAG,
    LONGEST_DURATION_MS,
    NotAccepted,
    Option,
    Parser,
    checked_text,
    choice,
    duration,
    duration_text,
    fraction,
    parse_duration_ms,
    whole,
)
from rmq_spark.topics.types import LONGEST_WAIT_MS, TOPIC_TYPES, TopicType

DEFAULT_SLOT_AMOUNT = 64
MOST_SLOTS = 65_536
DEFAULT_GROUP_TEXT = "default"
# The payload that a message keeps when an equal one is sent: the last, or its own.
KEEP_LAST, KEEP_FIRST = "last", "first"
# What one rate limit is of.
TOPIC, SLOT = "topic", "slot"
# What becomes of a message that expires.
DROP, BURY = "drop", "dead"

# RocketMQ's delays from its third level on, which its retries use.
ROCKETMQ_BACKOFF = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_crc32 = crcmod.predefined.mkPredefinedCrcFun("crc-32")
# A number without a unit is ms everywhere else. Here, somebody may mean days and lose messages.
_ACCEPTED_TIME = "`none`, or a duration with its unit: `12h`, `30d`"
# So many messages a time unit, or at once, are no limit in practice.
MOST_MESSAGES = 1_000_000
_RATE = re.compile(r"([0-9]{1,9})\s*/\s*([smhd])")
_RATE_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ACCEPTED_RATE = (
    f"`none`, or 1 to {MOST_MESSAGES} in a second, minute, hour or day: `100/s`, `5000/h`"
)
_ACCEPTED_BURST = f"`none`, or a whole number, `1` to `{MOST_MESSAGES}`"
# Units of bytes as in redis.conf.
_BYTES = re.compile(r"([0-9]{1,15})\s*(kb|mb|gb|)", re.IGNORECASE)
_BYTE_UNITS = {"gb": 2**30, "mb": 2**20, "kb": 2**10, "": 1}
_ACCEPTED_BYTES = "`none`, or bytes: `500mb`, `2gb`, in powers of 1024 as in redis.conf"
MOST_WAITING = 10**12
LEAST_BYTES, MOST_BYTES = 1024, 2**50  # of a slot, of a topic
_ACCEPTED_WAITING = f"`none`, or a whole number, from the number of slots to `{MOST_WAITING}`"
_MOST_DIGITS = 20
# For what a rate allows in so long, readers wait before they claim, rather than for each message.
_TOGETHER_MS = 50
_time = duration(1, LONGEST_WAIT_MS)


def check_topic_name(name: str) -> str:
    """Return a topic's name unchanged. Raises InvalidOption if no topic can have it."""
    if not re.fullmatch(NAME, name):
        raise InvalidOption.of("topic", name[:250], ACCEPTED_NAME, "is not a topic name")
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


def check_group(group: str) -> str:
    """Return a group's name unchanged; it is empty for the default group. Raises InvalidOption."""
    if group != DEFAULT_GROUP and (not re.fullmatch(NAME, group) or group == DEFAULT_GROUP_TEXT):
        raise InvalidOption.of("group", group, ACCEPTED_NAME, "is not a group name")
    return group


def parse_group(text: str) -> str:
    """Parse a group's name; ``default`` names the default group. Raises InvalidOption."""
    name = text.strip() if isinstance(text, str) else text
    if name == DEFAULT_GROUP_TEXT:
        return DEFAULT_GROUP
    if not isinstance(name, str) or name == "":
        accepted = f"{DEFAULT_GROUP_TEXT}, or {ACCEPTED_NAME}"
        raise InvalidOption.of("group", text, accepted, "is not a group name")
    return check_group(name)


def parse_groups(text: str | Iterable[str]) -> tuple[str, ...]:
    """Parse names of groups, as a list or separated by commas. Raises InvalidOption."""
    listed = [name for name in text.split(",") if name.strip()] if isinstance(text, str) else text
    names = tuple(DEFAULT_GROUP if name == DEFAULT_GROUP else parse_group(name) for name in listed)
    if not names:
        accepted = "names, in a list or separated by commas"
        raise InvalidOption.of("groups", text, accepted, "has no name")
    if len(set(names)) < len(names):
        raise InvalidOption.of("groups", list(names), "one or more names, each once")
    return names


def _some_groups(given: str | Iterable[str]) -> tuple[str, ...]:
    return parse_groups(given) if given else ()


def group_text(group: str) -> str:
    """Write a group's name as options and people write it: ``default`` for the empty one."""
    return group or DEFAULT_GROUP_TEXT


def parse_retry_backoff(given: str | Iterable[int]) -> tuple[int, ...]:
    """Parse the waits before the first, second, ... retry; the last one repeats. Returns ms.

    given: ``none``, ``rocketmq``, or up to 16 durations with units; or ms. Raises InvalidOption.
    """
    if isinstance(given, str):
        word = given.strip().lower()
        named = {"none": "", "rocketmq": ROCKETMQ_BACKOFF}
        words = named.get(word, given).replace(",", " ").split()
        waits = tuple(parse_duration_ms("retry_backoff", one) for one in words)
        fits = word == "none" or bool(waits)
    else:
        waits = tuple(given) if isinstance(given, Iterable) else (0,)
        fits = True
    if not (fits and len(waits) <= MOST_RETRIES and all(map(_is_wait, waits))):
        raise InvalidOption.of(
            *("retry_backoff", given),
            f"none, rocketmq, or 1 to {MOST_RETRIES} durations above 0 and up to 366d, such as "
            "'10s, 30s, 1m'; the last one repeats",
        )
    return waits


def _is_wait(ms: object) -> bool:
    return isinstance(ms, int) and 1 <= ms <= LONGEST_DURATION_MS


def parse_time(keyword: str) -> Callable[[str | int | timedelta | None], int | None]:
    """Make a parser of ``none``, a text with a unit, or ms, to ms; None: no limit."""

    def parse(value: str | int | timedelta | None) -> int | None:
        parsed: Any = value
        if isinstance(value, timedelta):
            parsed = value // timedelta(milliseconds=1)
        elif isinstance(value, str):
            try:
                parsed = None if _is_none(value) else _time.read(value)
            except NotAccepted:
                parsed = value
        if parsed is not None and not (type(parsed) is int and 1 <= parsed <= LONGEST_WAIT_MS):
            raise InvalidOption.of(keyword, value, _ACCEPTED_TIME.replace("`", ""))
        return parsed

    return parse


def _is_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() == "none")


def _time_text(ms: int | None) -> str:
    return "none" if ms is None else duration_text(ms)


def parse_rate(value: str | None) -> str | None:
    """Parse a number of messages in a time, such as "100/s"; None or ``none``: no limit."""
    if _is_none(value):
        return None
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found or not 1 <= int(found[1]) <= MOST_MESSAGES:
        raise InvalidOption.of("rate", value, _ACCEPTED_RATE.replace("`", ""))
    return f"{int(found[1])}/{found[2]}"


def parse_number(
    keyword: str, most: int, accepted: str
) -> Callable[[str | int | None], int | None]:
    """Make a parser of ``none`` or a whole number, 1 to most; None: no number."""

    def parse(value: str | int | None) -> int | None:
        if _is_none(value):
            return None
        is_text = (
            isinstance(value, str) and value.strip().isdecimal() and len(value) <= _MOST_DIGITS
        )
        number = int(value) if is_text or type(value) is int else 0  # type: ignore[arg-type]
        if not 1 <= number <= most:
            raise InvalidOption.of(keyword, value, accepted.replace("`", ""))
        return number

    return parse


def parse_bytes(keyword: str) -> Callable[[str | int | None], int | None]:
    """Make the parser of bytes: a number, or a text such as "500mb"; None or ``none``: no limit."""

    def parse(value: str | int | None) -> int | None:
        if _is_none(value):
            return None
        found = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
        number = int(found[1]) * _BYTE_UNITS[found[2].lower()] if found else value
        if type(number) is not int or not 1 <= number <= MOST_BYTES:
            raise InvalidOption.of(keyword, value, _ACCEPTED_BYTES.replace("`", ""))
        return number

    return parse


def _bytes_text(given: int | None) -> str:
    if given is None:
        return "none"
    unit, size = next(one for one in _BYTE_UNITS.items() if given % one[1] == 0)
    return f"{given // size}{unit}"


def _number_text(number: int | None) -> str:
    return "none" if number is None else str(number)


_parse_burst = parse_number("burst", MOST_MESSAGES, _ACCEPTED_BURST)
_parse_max_messages = parse_number("max_messages", MOST_WAITING, _ACCEPTED_WAITING)
_parse_max_bytes = parse_bytes("max_bytes")
_parse_dead_retention = parse_time("dead_retention")
_parse_time_to_live = parse_time("time_to_live")
_parse_unique_for = parse_time("unique_for")


def _retries(value: Any) -> Any:
    if type(value) is not int or not 0 <= value <= MOST_RETRIES:
        raise InvalidOption.of("max_retries", value, f"a whole number, 0 to {MOST_RETRIES}")
    return value


def _jitter(value: Any) -> Any:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise InvalidOption.of("retry_jitter", value, "a number, 0 to 1")
    return float(value)


def _one_of(name: str, *accepted: Any) -> Callable[[Any], Any]:
    def accept(value: Any) -> Any:
        if not any(value is one or (isinstance(one, str) and value == one) for one in accepted):
            raise InvalidOption.of(name, value, " or ".join(map(str, accepted)))
        return value

    return accept


@dataclass(frozen=True)
class Setting:
    """A setting of a topic, declared with its field of TopicDefinition.

    From it come the keyword of Broker.create and alter, the option of a write, and the name in the
    JSON in Redis. field, keyword: the names of the field and of the keyword, which are the same
    unless the field's has a unit at its end. option: its name and its form as text. accept: turns a
    value that a program gives into the field's; raises InvalidOption. text: writes the field's
    value as a text that the option takes. flag: that of ``rmq create`` and ``rmq alter``, whose
    commands and the console then take the text. is_lasting: whether it stays as it was when the
    topic was created. in_writes: whether the sink takes it for a topic that it creates.
    """

    option: Option[Any]
    accept: Callable[[Any], Any]
    text: Callable[[Any], str] = str
    flag: str = ""
    is_lasting: bool = False
    in_writes: bool = True
    keyword: str = ""
    field: str = ""

    @property
    def json_name(self) -> str:
        """The name of the field in JSON for programs: that of the option, and the field's unit."""
        return self.option.name + ("" if self.field == self.keyword else "Ms")

    def of(self, topic: "TopicDefinition") -> Any:
        """Return the value that a topic has."""
        return getattr(topic, self.field)


def _setting(default: Any, accept: Callable[[Any], Any], option: Option[Any], **more: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(option, accept, **more)})


@dataclass(frozen=True)
class TopicDefinition:
    """The definition of a topic, which all its users share. Type and slots never change.

    max_retries: deliveries after the first, 0 to 16. retry_backoff_ms: the waits before the first,
    second, ... retry; the last one repeats; empty for none. retry_jitter: the part of such a wait,
    0 to 1, that each retry shortens by chance. paused_groups: those that are paused although the
    topic is not. groups: the consumer groups, each of
    which gets a copy of every message; the empty name is the default group. keyed: whether messages
    merge by a key beside their content. payload: which content a key keeps, "last" or "first".
    on_expiry: what becomes of a message that expires, "drop" or "dead". dead_retention_ms: how long
    dead messages are kept; None to keep them forever. rate: how many messages the consumers of a
    group get together, such as "100/s"; None for no limit. burst: how many of them at once, after a
    pause; None for those of one second. max_messages, max_bytes: how much may wait in each group,
    in messages, and in bytes of Redis' memory; None for no limit. time_to_live_ms: how long after
    they are due messages expire that are sent without an expiry; None for never. unique_for_ms: for
    how long after a message was accepted an equal one is not accepted; None to accept it.
    """

    name: str
    type: TopicType
    slot_amount: int = DEFAULT_SLOT_AMOUNT
    max_retries: int = _setting(
        MOST_RETRIES,
        _retries,
        Option(
            "maxRetries",
            whole(0, MOST_RETRIES),
            "Deliveries after the first",
            otherwise=f"`{MOST_RETRIES}`",
        ),
        flag="--retries",
    )
    retry_backoff_ms: tuple[int, ...] = _setting(
        (),
        parse_retry_backoff,
        Option(
            "retryBackoff",
            checked_text(
                parse_retry_backoff,
                f"`none`, `rocketmq`, or up to {MOST_RETRIES} durations: `10s, 30s, 1m`",
            ),
            "Waits before the first, second, ... retry; the last one repeats",
            otherwise="`none`",
        ),
        text=lambda waits: ", ".join(map(duration_text, waits)) or "none",
        flag="--backoff",
        keyword="retry_backoff",
    )
    retry_jitter: float = _setting(
        0.0,
        _jitter,
        Option(
            "retryJitter",
            fraction(),
            "The part of a wait of `retryBackoff` that each retry shortens by chance; 1 spreads "
            "retries over the whole wait",
            otherwise="`0`",
        ),
        text="{:g}".format,
        flag="--jitter",
    )
    exclusive: bool = _setting(
        False,
        _one_of("exclusive", True, False),
        Option("exclusive", FLAG, "Whether only the owner of a slot may read it"),
        in_writes=False,
    )
    paused: bool = _setting(
        False,
        _one_of("paused", True, False),
        Option("paused", FLAG, "Whether nobody gets messages"),
        in_writes=False,
    )
    paused_groups: tuple[str, ...] = _setting(
        (),
        _some_groups,
        Option(
            "pausedGroups",
            Parser(_some_groups, "names, separated by commas; or nothing"),
            "Consumer groups that get no messages",
        ),
        text=lambda groups: ",".join(map(group_text, groups)),
        in_writes=False,
    )
    groups: tuple[str, ...] = _setting(
        (DEFAULT_GROUP,),
        parse_groups,
        Option(
            "groups",
            Parser(parse_groups, "names, separated by commas: `billing,audit`"),
            "Consumer groups; each gets a copy of every message",
            otherwise=f"`{DEFAULT_GROUP_TEXT}`",
        ),
    )
    keyed: bool = _setting(
        False,
        _one_of("keyed", True, False),
        Option(
            "keyed",
            FLAG,
            "Whether messages of a new topic merge by a column `key`, and content is their payload",
            otherwise="`false`",
        ),
        is_lasting=True,
    )
    payload: str = _setting(
        KEEP_LAST,
        _one_of("payload", KEEP_LAST, KEEP_FIRST),
        Option(
            "payload",
            choice(KEEP_LAST, KEEP_FIRST),
            "Which content a message of a new keyed topic keeps when its key is sent again",
            otherwise=f"`{KEEP_LAST}`",
        ),
        is_lasting=True,
    )
    on_expiry: str = _setting(
        DROP,
        _one_of("on_expiry", DROP, BURY),
        Option(
            "onExpiry",
            choice(DROP, BURY),
            "What happens to messages of a new topic that expire: dropped, or moved to the dead "
            "queue",
            otherwise=f"`{DROP}`",
        ),
        flag="--on-expiry",
    )
    dead_retention_ms: int | None = _setting(
        None,
        _parse_dead_retention,
        Option(
            "deadRetention",
            Parser(_parse_dead_retention, _ACCEPTED_TIME),
            "How long dead messages of a new topic are kept; `rmq expire` deletes older ones",
            otherwise="`none`",
        ),
        text=_time_text,
        flag="--dead-retention",
        keyword="dead_retention",
    )
    rate: str | None = _setting(
        None,
        parse_rate,
        Option(
            "rate",
            Parser(parse_rate, _ACCEPTED_RATE),
            "How many messages all consumers of a group together get at most",
            otherwise="`none`",
        ),
        text=lambda rate: rate or "none",
        flag="--rate",
    )
    burst: int | None = _setting(
        None,
        _parse_burst,
        Option(
            "burst",
            Parser(_parse_burst, _ACCEPTED_BURST),
            "With `rate`: how many messages may come at once after a pause",
            otherwise="`none`: those of one second",
        ),
        text=_number_text,
        flag="--burst",
    )
    rate_by: str = _setting(
        TOPIC,
        _one_of("rate_by", TOPIC, SLOT),
        Option(
            "rateBy",
            choice(TOPIC, SLOT),
            "With `rate`: whether the whole topic has one limit, or each slot one of its own",
            otherwise=f"`{TOPIC}`",
        ),
        flag="--rate-by",
    )
    max_messages: int | None = _setting(
        None,
        _parse_max_messages,
        Option(
            "maxMessages",
            Parser(_parse_max_messages, _ACCEPTED_WAITING),
            "How many messages may wait in each consumer group at most; each slot has the same "
            "share of it",
            otherwise="`none`",
        ),
        text=_number_text,
        flag="--max-messages",
    )
    max_bytes: int | None = _setting(
        None,
        _parse_max_bytes,
        Option(
            "maxBytes",
            Parser(_parse_max_bytes, _ACCEPTED_BYTES),
            "How much of Redis' memory messages that wait may take in each consumer group; each "
            "slot has the same share of it",
            otherwise="`none`",
        ),
        text=_bytes_text,
        flag="--max-bytes",
    )
    time_to_live_ms: int | None = _setting(
        None,
        _parse_time_to_live,
        Option(
            "timeToLive",
            Parser(_parse_time_to_live, _ACCEPTED_TIME),
            "How long after they are due messages expire that are sent without an expiry",
            otherwise="`none`",
        ),
        text=_time_text,
        flag="--time-to-live",
        in_writes=False,  # there, it is that of the rows
        keyword="time_to_live",
    )
    unique_for_ms: int | None = _setting(
        None,
        _parse_unique_for,
        Option(
            "uniqueFor",
            Parser(_parse_unique_for, _ACCEPTED_TIME),
            "For how long after a message was accepted an equal one is not accepted again, even "
            "if the first is consumed by then",
            otherwise="`none`",
        ),
        text=_time_text,
        flag="--unique-for",
        keyword="unique_for",
    )

    def __post_init__(self) -> None:
        check_topic_name(self.name)
        check_slot_amount(self.slot_amount)
        for setting in SETTINGS.values():
            object.__setattr__(self, setting.field, setting.accept(setting.of(self)))
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
        if self.max_bytes is not None and self.max_bytes < self.slot_amount * LEAST_BYTES:
            raise InvalidOption(
                f"max_bytes={self.max_bytes} is less than {LEAST_BYTES} for each of the "
                f"{self.slot_amount} slots of topic {self.name}. Accepted: "
                f"{self.slot_amount * LEAST_BYTES} or more, or none."
            )
        if self.payload != KEEP_LAST and not self.keyed:
            raise InvalidOption(
                f"payload={self.payload!r} is for keyed topics, where a message has a payload "
                "beside its key. Accepted here: last. Or create the topic with keyed=true."
            )

    def to_json(self) -> str:
        """Write the definition as the JSON that Redis stores in ``rmq_topics``."""
        fixed = {"slotAmount": self.slot_amount, "topicType": self.type.name}
        settings = {setting.option.name: setting.of(self) for setting in SETTINGS.values()}
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
                    setting.field: fields[setting.option.name]
                    for setting in SETTINGS.values()
                    if setting.option.name in fields
                },
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ScriptFailed(
                f"The definition of topic {name} in rmq_topics cannot be read ({error}): {text!r}. "
                "Delete that field of rmq_topics and define the topic again."
            ) from error

    def text_of(self, keyword: str) -> str:
        """Return the value of a setting as its option takes it. keyword: as in SETTINGS."""
        return SETTINGS[keyword].text(SETTINGS[keyword].of(self))

    @property
    def interval_ms(self) -> float:
        """The time in ms for which the rate limit allows one message; 0 without a limit."""
        number, _, unit = (self.rate or "").partition("/")
        return _RATE_UNITS_MS[unit] / int(number) if number else 0.0

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

    @property
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
        return all(getattr(self, name) == getattr(other, name) for name in settings)

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


SETTINGS: Mapping[str, Setting] = {setting.keyword: setting for setting in _settings()}
FLAGS = {keyword: setting for keyword, setting in SETTINGS.items() if setting.flag}
LASTING = tuple(keyword for keyword, setting in SETTINGS.items() if setting.is_lasting)


def parse_settings(done: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to fields of TopicDefinition. Raises InvalidOption for an unknown one.

    done: what the caller does with them, for the error: "set" or "changed".
    """
    known = [one for one, setting in SETTINGS.items() if done == "set" or not setting.is_lasting]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        accepted = ("slot_amount", *known) if done == "set" else known
        raise InvalidOption(
            f"{', '.join(unknown)} of a topic cannot be {done}. Accepted: {', '.join(accepted)}."
        )
    return {
        setting.field: setting.accept(settings[keyword])
        for keyword, setting in SETTINGS.items()
        if keyword in settings
    }


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
