"""Options: their declaration, and the parsers that turn their texts into values."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, TypeVar

from rmq_spark.errors import InvalidOption, quoted
from rmq_spark.topics.keys import HIGHEST_SCORE

Duration = int | timedelta | str
"""A wait as plain Python gives it: ms, a timedelta, or a number with its unit such as "30s"."""
T_co = TypeVar("T_co", covariant=True)
HIGHEST_WHOLE = 2**31 - 1
_MOMENT_EXAMPLE = "2030-01-01T08:00:00+01:00"
ACCEPTED_RELATIVE = "30s (from now), -1h (ago), now, ISO 8601 with a zone, or ms since 1970"
_RELATIVE = re.compile(r"\s*([+-]?)\s*([0-9]+(?:\.[0-9]+)?\s*[A-Za-z]+)\s*")
# People count seconds, but a number means ms: at the command line, a smaller one than this (1973)
# is a mistake, except 0.
_EARLIEST_TYPED_MS = 10**11
_START = datetime(1970, 1, 1, tzinfo=UTC)
# The last ms that Python can show in every time zone: no zone is a day away from UTC.
LAST_SHOWN_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000) - 1
_WHOLE = re.compile(r"\s*-?[0-9]+\s*")
_DECIMAL = re.compile(r"\s*[0-9]*\.?[0-9]+\s*")
_MOST_DIGITS = 20  # Python refuses to read a number of some thousand digits
T = TypeVar("T")
_REDIS = "redis."
_NAME_OF_REDIS = re.compile(r"\bredis\.[a-zA-Z]+")
# Writes the name of an option as the caller's users type it: socketTimeout, --redis-url.
Spelling = Callable[[str], str]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
# Longer ones are typing errors. The bound also keeps scores of the retry queue exact, which add
# the retries left to the due second * 1000.
LONGEST_DURATION_MS = 366 * _UNITS_MS["d"]
ACCEPTED_DURATION = "a number with its unit, one of ms, s, m, h or d, such as 500ms, 60s or 5m"


def parse_duration_ms(name: str, text: str) -> int:
    """Parse a duration such as ``60s`` into whole ms, rounded down. name: for the InvalidOption."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    unit = _UNITS_MS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InvalidOption.of(name, text, ACCEPTED_DURATION, "is not a duration")
    return int(Decimal(match.group(1)) * unit)


def wait_ms(given: object) -> int | None:
    """Turn a Duration into whole milliseconds, rounded down; None for any other value."""
    if isinstance(given, timedelta):
        return given // timedelta(milliseconds=1)
    if isinstance(given, str):
        try:
            return parse_duration_ms("", given)
        except InvalidOption:
            return None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def parse_wait_ms(name: str, given: Duration) -> int:
    """Turn a Duration into whole ms, 0 or more. name: for the InvalidOption."""
    ms = wait_ms(given)
    if ms is None or ms < 0:
        accepted = f"{ACCEPTED_DURATION}; a timedelta; or whole milliseconds"
        raise InvalidOption.of(name, given, accepted, "is not a duration")
    return ms


def duration_text(ms: int) -> str:
    """Write a duration in ms in the largest unit that gives a whole number."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def check_amount(name: str, given: object) -> None:
    """Raise InvalidOption unless the value of a parameter is a whole number, 1 or more."""
    if not isinstance(given, int) or given < 1:
        raise InvalidOption.of(name, given, "a whole number, 1 or more")


class NotAccepted(ValueError):
    """An error for a text. reason: such as "is too long". accepted: if it differs."""

    def __init__(self, reason: str = "is not accepted", accepted: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.accepted = accepted


@dataclass(frozen=True)
class Parser(Generic[T_co]):
    """A function that reads a value from a text, and a description of the texts it accepts.

    read: turns a text into the value; raises NotAccepted, or InvalidOption with a whole sentence.
    accepted: the texts that are accepted, with examples and bounds in backticks, which the
    reference page shows and a test tries. remedy: a sentence for errors. choices: the texts, if it
    accepts only these.
    """

    read: Callable[[str], T_co]
    accepted: str
    remedy: str = ""
    choices: tuple[str, ...] = ()

    @property
    def accepted_plain(self) -> str:
        """The accepted texts as errors show them, without backticks."""
        return self.accepted.replace("`", "")


def whole(low: int, high: int = HIGHEST_WHOLE) -> Parser[int]:
    """Make a parser of whole numbers from low to high."""
    return Parser(
        lambda text: _whole_within(text, low, high), f"a whole number, `{low}` to `{high}`"
    )


def fraction() -> Parser[float]:
    """Make a parser of decimals from 0 to 1."""

    def read(text: str) -> float:
        if not _DECIMAL.fullmatch(text) or len(text) > _MOST_DIGITS or not float(text) <= 1:
            raise NotAccepted
        return float(text)

    return Parser(read, "a number, `0` to `1`")


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

    return Parser(read, ", ".join(f"`{value}`" for value in values), choices=values)


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


def time_at(ms: int) -> datetime:
    """Convert ms since 1970 to a time in UTC, exactly. Raises OverflowError beyond year 9999."""
    return _START + timedelta(milliseconds=ms)


def moment_or_relative(now_ms: Callable[[], int]) -> Parser[int]:
    """Make a parser of times that people type, relative to now or not. It refuses seconds as ms."""

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
    time = time_at(number).isoformat(timespec="milliseconds")
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

# In an address with a user, which somebody may give to an option that takes none.
_PASSWORD = re.compile(r":[^:@]+@")


@dataclass(frozen=True)
class Option(Generic[T_co]):
    """An option with its parser, default and help.

    help: one or two sentences without the last period, with Markdown's backticks.
    default: the text to parse when users give none. otherwise: without a default, a few words for
    what applies, such as "no limit". is_secret: the value is, or may contain, a password, so no
    error quotes it. see: the section of a page that explains more.
    """

    name: str
    parser: Parser[T_co]
    help: str
    default: str | None = None
    otherwise: str = ""
    is_secret: bool = False
    see: str = ""

    def parse(self, text: str) -> T_co:
        """Parse a text into the option's value. Raises InvalidOption."""
        is_secret = self.is_secret or (isinstance(text, str) and _PASSWORD.search(text))
        try:
            if not isinstance(text, str):
                raise NotAccepted
            return self.parser.read(text)
        except NotAccepted as refused:
            reason, accepted = refused.reason, refused.accepted or self.parser.accepted_plain
        except InvalidOption as error:
            if not is_secret:
                raise error.called(self.name) from None
            reason, accepted = "", self.parser.accepted_plain
        shown = f"{self.name}={quoted(text)} {reason}"
        if is_secret:
            hidden = "its value is not shown: it may contain a password"
            shown = f"{self.name} is not accepted ({hidden})"
        remedy = f" {self.parser.remedy}" if self.parser.remedy else ""
        raise InvalidOption(f"{shown}. Accepted: {accepted}.{remedy}")

    @property
    def default_value(self) -> T_co:
        """The parsed default. Raises KeyError for an option without one."""
        if self.default is None:
            raise KeyError(f"The option {self.name} has no default.")
        return self.parse(self.default)

    @property
    def plain_help(self) -> str:
        """The help as a terminal shows it, without backticks."""
        return self.help.replace("`", "")

    def called(self, name: str) -> "Option[T_co]":
        """Return the option under another name, such as a command's argument."""
        return replace(self, name=name)

    def spelled(self, spelling: Spelling) -> "Option[T_co]":
        """Return the option as users spell it, in its name and in what errors advise."""
        parser = replace(self.parser, remedy=spell(self.parser.remedy, spelling))
        return replace(self, name=spelling(self.name), parser=parser)


def spell(text: str, spelling: Spelling) -> str:
    """Spell the options of ``redis.*`` in a text, which must not quote values of users."""
    return _NAME_OF_REDIS.sub(lambda name: spelling(name[0]), text)


class Values:
    """The typed values of options, or their defaults. spelling: how users spell the names."""

    def __init__(self, given: Mapping[str, Any], spelling: Spelling = str) -> None:
        self._given = given
        self.spelling = spelling

    def refusal(self, text: str) -> InvalidOption:
        """Return an error. text: as for spell."""
        return InvalidOption(spell(text, self.spelling))

    def __contains__(self, option: Option[Any]) -> bool:
        """Return whether users gave this option."""
        return option.name in self._given

    def __getitem__(self, option: Option[T]) -> T:
        """Return the value given, or the default. Raises KeyError if there is neither."""
        value: T = self._given[option.name] if option in self else option.default_value
        return value

    def get(self, option: Option[T]) -> T | None:
        """Return the value given, or the default, or None if there is neither."""
        return None if option not in self and option.default is None else self[option]


@dataclass(frozen=True)
class OptionTable:
    """The options that one place accepts together. Names are case-insensitive.

    owner: the place, for errors, such as "the rmq source". passed_over: names in lower case to
    ignore, because others put them among the options.
    """

    owner: str
    options: tuple[Option[Any], ...]
    passed_over: frozenset[str] = frozenset()

    def parse(self, given: Mapping[str, str], spelling: Spelling = str) -> Values:
        """Parse texts by names. spelling: how users spell options. Raises InvalidOption."""
        own = {name: text for name, text in given.items() if name.lower() not in self.passed_over}
        unknown = [name for name in own if self.find(name) is None]
        if unknown:
            raise InvalidOption(self._unknown(unknown, spelling))
        pairs = ((self.find(name), text) for name, text in own.items())
        values = {o.name: o.spelled(spelling).parse(text) for o, text in pairs if o}
        return Values(values, spelling)

    def find(self, name: str) -> Option[Any] | None:
        """Find the option with this name; None if there is none."""
        return self._by_key.get(_key(name))

    @cached_property
    def _by_key(self) -> dict[str, Option[Any]]:
        return {_key(option.name): option for option in self.options}

    def _unknown(self, names: list[str], spelling: Spelling) -> str:
        near = {key for name in names for key in self._nearest(name)}
        meant = ", ".join(spelling(self._by_key[key].name) for key in sorted(near))
        # A misspelt option of redis.* needs the list of redis.* only.
        prefixes = {name.lower().rpartition(".")[0] for name in names}
        prefix = prefixes.pop() if len(prefixes) == 1 else ""
        of_prefix = [option.name for option in self.options if option.name.startswith(prefix)]
        accepted = of_prefix or [option.name for option in self.options]
        return (
            f"Unknown option for {self.owner}: {', '.join(map(spelling, sorted(names)))}. "
            f"{f'Did you mean {meant}? ' if meant else ''}"
            f"Accepted: {', '.join(map(spelling, accepted))}."
        )

    def _nearest(self, name: str) -> list[str]:
        """Find a similar option. All of redis.* are similar to each other, so compare the rest."""
        from difflib import get_close_matches  # seldom needed, and not cheap to import

        prefix, dot, rest = _key(name).rpartition(".")
        begin = prefix + dot
        known = {key.removeprefix(begin): key for key in self._by_key if key.startswith(begin)}
        if not known:
            return get_close_matches(_key(name), self._by_key, 1)
        return [known[one] for one in get_close_matches(rest, known, 1)]


def _key(name: str) -> str:
    """Normalize a name for comparison. redis-py has underscores in names, so both forms work."""
    key = name.lower()
    return key.replace("_", "") if key.startswith(_REDIS) else key
