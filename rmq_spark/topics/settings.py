"""Settings of topics: how one is declared, and the kinds of values that settings have."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.keys import MOST_RETRIES
from rmq_spark.topics.parsing import (
    FLAG,
    LONGEST_DURATION_MS,
    Option,
    Parser,
    checked_text,
    choice,
    duration_text,
    fraction,
    parse_duration_ms,
    wait_ms,
    whole,
)
from rmq_spark.topics.types import LONGEST_WAIT_MS

# RocketMQ's delays from its third level on, which its retries use.
ROCKETMQ_BACKOFF = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
# So many messages a time unit, or at once, are no limit in practice.
MOST_MESSAGES = 1_000_000
RATE_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE = re.compile(r"([0-9]{1,9})\s*/\s*([smhd])")
# Units of bytes as in redis.conf.
_BYTES = re.compile(r"([0-9]{1,15})\s*(kb|mb|gb|)", re.IGNORECASE)
_BYTE_UNITS = {"gb": 2**30, "mb": 2**20, "kb": 2**10, "": 1}
_MOST_BYTES = 2**50
_MOST_DIGITS = 20


@dataclass(frozen=True)
class Kind:
    """A kind of values that settings have.

    accept: takes the keyword of a setting and a value that a program gives. Returns the field's
    value, or raises InvalidOption. parser: reads the value from the text of an option. text: writes
    the field's value as a text that the parser takes.
    """

    accept: Callable[[str, Any], Any]
    parser: Parser[Any]
    text: Callable[[Any], str] = str


@dataclass(frozen=True)
class Setting:
    """A setting of a topic, declared with its field of TopicDefinition.

    From it come the keyword of Broker.create and alter, the option of a write, and the name in the
    JSON in Redis. field, keyword: the names of the field and of the keyword, which are the same
    unless the field's has a unit at its end. option: its name, and its help. flag: that of ``rmq
    create`` and ``rmq alter``, whose commands and the console then take the text. is_lasting:
    whether it stays as it was when the topic was created. in_writes: whether the sink takes it for
    a topic that it creates.
    """

    option: Option[Any]
    kind: Kind
    flag: str = ""
    is_lasting: bool = False
    in_writes: bool = True
    keyword: str = ""
    field: str = ""

    @property
    def json_name(self) -> str:
        """The name of the field in JSON for programs: that of the option, and the field's unit."""
        return self.option.name + ("" if self.field == self.keyword else "Ms")

    def of(self, topic: Any) -> Any:
        """Return the value that a TopicDefinition has."""
        return getattr(topic, self.field)

    def accept(self, value: Any) -> Any:
        """Turn a value that a program gives into the field's. Raises InvalidOption."""
        return self.kind.accept(self.keyword, value)


def setting(
    default: Any, kind: Kind, name: str, help_text: str, otherwise: str = "", **more: Any
) -> Any:
    """Declare a field of TopicDefinition.

    name, help_text, otherwise: of its option; otherwise is the default if you leave it out. more:
    further fields of Setting.
    """
    text = kind.text(default)
    option = Option(name, kind.parser, help_text, otherwise=otherwise or (text and f"`{text}`"))
    return field(default=default, metadata={"setting": Setting(option, kind, **more)})


def one_of(*values: str) -> Kind:
    """Make the kind of values that are one of some words."""
    return Kind(partial(_accept_one, values), choice(*values))


def _accept_one(values: tuple[Any, ...], keyword: str, value: Any) -> Any:
    if not any(value is one or (isinstance(one, str) and value == one) for one in values):
        raise InvalidOption.of(keyword, value, " or ".join(map(str, values)))
    return value


YES_OR_NO = Kind(partial(_accept_one, (True, False)), FLAG, lambda value: str(value).lower())


def _accept_retries(keyword: str, value: Any) -> Any:
    if type(value) is not int or not 0 <= value <= MOST_RETRIES:
        raise InvalidOption.of(keyword, value, RETRIES.parser.accepted_plain)
    return value


RETRIES = Kind(_accept_retries, whole(0, MOST_RETRIES))


def _accept_fraction(keyword: str, value: Any) -> Any:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise InvalidOption.of(keyword, value, FRACTION.parser.accepted_plain)
    return float(value)


FRACTION = Kind(_accept_fraction, fraction(), "{:g}".format)


def is_list(given: object) -> bool:
    """Return whether a value lists others. Nobody means the numbers of which bytes consist."""
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray)


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
        waits = tuple(given) if is_list(given) else (0,)
        fits = True
    are_waits = all(type(ms) is int and 1 <= ms <= LONGEST_DURATION_MS for ms in waits)
    if not (fits and len(waits) <= MOST_RETRIES and are_waits):
        raise InvalidOption.of(
            *("retry_backoff", given),
            f"none, rocketmq, or 1 to {MOST_RETRIES} durations above 0 and up to 366d, such as "
            "'10s, 30s, 1m'; the last one repeats",
        )
    return waits


BACKOFF = Kind(
    lambda _, value: parse_retry_backoff(value),
    checked_text(
        parse_retry_backoff,
        f"`none`, `rocketmq`, or up to {MOST_RETRIES} durations: `10s, 30s, 1m`",
    ),
    lambda waits: ", ".join(map(duration_text, waits)) or "none",
)


def _or_none(read: Callable[[Any], Any], accepted: str, text: Callable[[Any], str] = str) -> Kind:
    """Make the kind of values that may be ``none``, which is None in the field.

    read: turns any other value, also a text, into the field's; None if it is not accepted.
    """

    def accept(keyword: str, value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        found = read(value)
        if found is None:
            raise InvalidOption.of(keyword, value, accepted.replace("`", ""))
        return found

    return Kind(
        accept,
        Parser(partial(accept, "value"), accepted),
        lambda value: "none" if value is None else text(value),
    )


def _time_ms(value: Any) -> int | None:
    ms = wait_ms(value)
    return ms if ms is not None and 1 <= ms <= LONGEST_WAIT_MS else None


# A number without a unit is ms everywhere else. Here, somebody may mean days and lose messages.
TIME = _or_none(_time_ms, "`none`, or a duration with its unit: `12h`, `30d`", duration_text)


def _rate(value: Any) -> str | None:
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not 1 <= int(found[1]) <= MOST_MESSAGES:
        return None
    return f"{int(found[1])}/{found[2]}"


RATE = _or_none(
    _rate, f"`none`, or 1 to {MOST_MESSAGES} in a second, minute, hour or day: `100/s`, `5000/h`"
)


def number(most: int, least: str = "`1`") -> Kind:
    """Make the kind of whole numbers from 1 to ``most``. least: the lowest one, for errors."""

    def read(value: Any) -> int | None:
        is_text = (
            isinstance(value, str) and value.strip().isdecimal() and len(value) <= _MOST_DIGITS
        )
        found = int(value) if is_text or type(value) is int else 0
        return found if 1 <= found <= most else None

    return _or_none(read, f"`none`, or a whole number, {least} to `{most}`")


def _bytes(value: Any) -> int | None:
    found = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(found[1]) * _BYTE_UNITS[found[2].lower()] if found else value
    return size if type(size) is int and 1 <= size <= _MOST_BYTES else None


def _bytes_text(given: int) -> str:
    unit, size = next(one for one in _BYTE_UNITS.items() if given % one[1] == 0)
    return f"{given // size}{unit}"


BYTES = _or_none(
    _bytes, "`none`, or bytes: `500mb`, `2gb`, in powers of 1024 as in redis.conf", _bytes_text
)
