"""Parsers, which turn the texts of options into values, and the texts that each accepts."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.durations import ACCEPTED as ACCEPTED_DURATION
from rmq_spark.topics.durations import LONGEST_DURATION_MS, duration_text, parse_duration_ms
from rmq_spark.topics.scores import HIGHEST_SCORE

T_co = TypeVar("T_co", covariant=True)
HIGHEST_WHOLE = 2**31 - 1
_MOMENT_EXAMPLE = "2030-01-01T08:00:00+01:00"
ACCEPTED_RELATIVE = "30s (from now), -1h (ago), now, ISO 8601 with a zone, or ms since 1970"
_RELATIVE = re.compile(r"\s*([+-]?)\s*([0-9]+(?:\.[0-9]+)?\s*[A-Za-z]+)\s*")
# People count seconds, but a number means ms: at the command line, a smaller one than this (1973)
# is a mistake, except 0.
_EARLIEST_TYPED_MS = 10**11
_START = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"\s*-?[0-9]+\s*")
_MOST_DIGITS = 20  # Python refuses to read a number of some thousand digits


def check_amount(name: str, given: object) -> None:
    """Raise InvalidOption unless the value of a parameter is a whole number, 1 or more."""
    if not isinstance(given, int) or given < 1:
        raise InvalidOption(
            f"{name}={given!r} is not accepted. Accepted: a whole number, 1 or more.", name=name
        )


class NotAccepted(ValueError):
    """An error for a text that a parser does not accept.

    reason: what is wrong with the text, such as "is too long". accepted: the texts that are
    accepted, if they differ from the parser's.
    """

    def __init__(self, reason: str = "is not accepted", accepted: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.accepted = accepted


@dataclass(frozen=True)
class Parser(Generic[T_co]):
    """A function that reads a value from a text, and a description of the texts it accepts.

    read: turns a text into the value; raises NotAccepted, or InvalidOption with a whole sentence.
    accepted: the texts that are accepted, with examples and bounds in backticks, which the
    reference page shows and a test tries. remedy: a sentence for errors.
    """

    read: Callable[[str], T_co]
    accepted: str
    remedy: str = ""

    @property
    def accepted_plain(self) -> str:
        """The accepted texts as errors show them, without backticks."""
        return self.accepted.replace("`", "")


def whole(low: int, high: int = HIGHEST_WHOLE) -> Parser[int]:
    """Make a parser of whole numbers from low to high."""
    return Parser(
        lambda text: _whole_within(text, low, high), f"a whole number, `{low}` to `{high}`"
    )


def duration(low_ms: int, high_ms: int = LONGEST_DURATION_MS, remedy: str = "") -> Parser[int]:
    """Make a parser of durations within these bounds, in ms."""
    bounds = f"a duration, `{duration_text(low_ms)}` to `{duration_text(high_ms)}`"
    return Parser(lambda text: _duration_within(text, low_ms, high_ms), bounds, remedy)


def choice(*values: str) -> Parser[str]:
    """Make a parser of one of these words, in any case."""

    def read(text: str) -> str:
        for value in values:
            if value.lower() == text.strip().lower():
                return value
        raise NotAccepted

    return Parser(read, ", ".join(f"`{value}`" for value in values))


def checked_text(check: Callable[[str], object], accepted: str, remedy: str = "") -> Parser[str]:
    """Make a parser that returns a text unchanged, unless the check raises."""

    def read(text: str) -> str:
        check(text)
        return text

    return Parser(read, accepted, remedy)


def moment(unit: str) -> Parser[int]:
    """Make a parser of times in ms since 1970. unit: the unit's name on the reference page."""
    accepted = f"`0` to `{HIGHEST_SCORE}` {unit}, or ISO 8601 with a zone: `{_MOMENT_EXAMPLE}`"
    return Parser(_moment_ms, accepted)


def _moment_ms(text: str) -> int:
    if _WHOLE.fullmatch(text):
        return _whole_within(text, 0, HIGHEST_SCORE)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise NotAccepted from None
    if time.tzinfo is None:
        raise NotAccepted("has no time zone")
    return ms_since_1970(time)


def ms_since_1970(time: datetime) -> int:
    """Convert a time with a zone to ms since 1970, exactly: a float would lose a millisecond."""
    return (time - _START) // timedelta(milliseconds=1)


def moment_or_relative(now_ms: Callable[[], int]) -> Parser[int]:
    """Make a parser of times that people type, which may be relative to now.

    It refuses numbers of ms that look like seconds. now_ms: reads the clock.
    """

    def read(text: str) -> int:
        if text.strip() == "now":
            return now_ms()
        match = _RELATIVE.fullmatch(text)
        if match is None:
            time_ms = _moment_ms(text)
            if _WHOLE.fullmatch(text) and 0 < time_ms < _EARLIEST_TYPED_MS:
                raise _seconds_typed(time_ms)
            return time_ms
        wait_ms = _duration_within(match[2], 0, HIGHEST_SCORE)
        time_ms = now_ms() + (-wait_ms if match[1] == "-" else wait_ms)
        if not 0 <= time_ms <= HIGHEST_SCORE:
            raise NotAccepted("is too far from now")
        return time_ms

    return Parser(read, ACCEPTED_RELATIVE)


def _seconds_typed(number: int) -> NotAccepted:
    time = datetime.fromtimestamp(number / 1000, UTC).isoformat(timespec="milliseconds")
    accepted = f"{number}s if you mean seconds from now, {number}000 if you mean seconds since 1970"
    return NotAccepted(f"would be {time.replace('+00:00', 'Z')}", accepted)


def duration_or_whole(low_ms: int, high_ms: int) -> Parser[int]:
    """Make a parser of durations in ms, with or without a unit."""

    def read(text: str) -> int:
        within = _whole_within if _WHOLE.fullmatch(text) else _duration_within
        return within(text, low_ms, high_ms)

    return Parser(read, f"`{low_ms}` to `{high_ms}` ms, or a duration: `30s`")


def _whole_within(text: str, low: int, high: int) -> int:
    is_whole = _WHOLE.fullmatch(text) and len(text.strip()) <= _MOST_DIGITS
    if not is_whole or not low <= int(text) <= high:
        raise NotAccepted
    return int(text)


def _duration_within(text: str, low_ms: int, high_ms: int) -> int:
    try:
        value = parse_duration_ms("", text)
    except InvalidOption:
        raise NotAccepted("is not a duration", ACCEPTED_DURATION) from None
    if value < low_ms:
        raise NotAccepted("is too short")
    if value > high_ms:
        raise NotAccepted("is too long")
    return value


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise NotAccepted
    return text.strip().lower() == "true"


def _readable_file(text: str) -> str:
    if not (os.path.isfile(text) and os.access(text, os.R_OK)):
        raise NotAccepted
    return text


TEXT = Parser(str, "text")
FLAG = Parser(_flag, "`true` or `false`")
FILE = Parser(_readable_file, "a file that can be read")
MOMENT = moment("ms since 1970")
