"""Whole numbers as options write them."""

import re

from rmq_spark.errors import InvalidOption

_WHOLE = re.compile(r"\s*-?[0-9]+\s*")


def is_whole(text: str) -> bool:
    """Whether a text is a whole number."""
    return _WHOLE.fullmatch(text) is not None


def parse_whole(name: str, text: str, lowest: int, highest: int) -> int:
    """Read a whole number; ``name`` is the option it came from.

    Raises InvalidOption for another text, and for a number below lowest or above highest.
    """
    if not is_whole(text) or not lowest <= int(text) <= highest:
        raise InvalidOption(
            f"{name}={text!r} is not accepted. Accepted: a whole number, {lowest} to {highest}."
        )
    return int(text)
