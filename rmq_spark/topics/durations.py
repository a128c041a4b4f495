"""Durations as options write them: a number and its unit."""

import re
from datetime import timedelta
from decimal import Decimal

from rmq_spark.errors import InvalidOption

Duration = int | timedelta | str
"""A wait as plain Python gives it: ms, a timedelta, or a number with its unit such as "30s"."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
# Longer ones are typing errors. The bound also keeps scores of the retry queue exact, which add
# the retries left to the due second * 1000.
LONGEST_DURATION_MS = 366 * _UNITS_MS["d"]
ACCEPTED = "a number with its unit, one of ms, s, m, h or d, such as 500ms, 60s or 5m"


def parse_duration_ms(name: str, text: str) -> int:
    """Parse a duration such as ``60s`` into whole milliseconds, rounded down.

    name: the option's name, for the error. Raises InvalidOption without a number or unit.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    unit = _UNITS_MS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InvalidOption(f"{name}={text!r} is not a duration. Accepted: {ACCEPTED}.", name=name)
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
    """Turn a Duration into whole milliseconds, 0 or more. Raises InvalidOption.

    name: of the parameter, for the error.
    """
    ms = wait_ms(given)
    if ms is None or ms < 0:
        raise InvalidOption(
            f"{name}={given!r} is not a duration. Accepted: {ACCEPTED}; a timedelta; or whole "
            "milliseconds.",
            name=name,
        )
    return ms


def duration_text(ms: int) -> str:
    """Write a duration in ms in the largest unit that gives a whole number."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"
