"""Points in time as options write them."""

import re
from collections.abc import Callable
from datetime import datetime

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.durations import parse_duration_ms
from rmq_spark.topics.scores import HIGHEST_SCORE
from rmq_spark.topics.whole_numbers import is_whole, parse_whole

_FROM_NOW = re.compile(r"\s*([+-]?)\s*([0-9]+(?:\.[0-9]+)?\s*[A-Za-z]+)\s*")


def parse_moment_ms(name: str, text: str) -> int:
    """Read a point in time as ms since 1970; ``name`` is the option it came from.

    text: ms since 1970, or ISO 8601 with a zone. Raises InvalidOption for anything else.
    """
    if is_whole(text):
        return parse_whole(name, text, 0, HIGHEST_SCORE)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidOption(
            f"{name}={text!r} is not accepted. Accepted: ms since 1970, or ISO 8601 with a "
            "zone such as 2030-01-01T08:00:00+01:00."
        )
    return int(moment.timestamp() * 1000)


def parse_moment_from_now_ms(name: str, text: str, now_ms: Callable[[], int]) -> int:
    """Read a point in time as parse_moment_ms does, or one that is said from now.

    ``30s`` is in 30 seconds, ``-1h`` was an hour ago, ``now`` is now. now_ms: reads the clock.
    Raises InvalidOption.
    """
    if text.strip() == "now":
        return now_ms()
    match = _FROM_NOW.fullmatch(text)
    if match is None:
        try:
            return parse_moment_ms(name, text)
        except InvalidOption as error:
            raise InvalidOption(f"{error} Or from now: 30s, -1h, now.") from None
    wait_ms = parse_duration_ms(name, match[2])
    moment = now_ms() + (-wait_ms if match[1] == "-" else wait_ms)
    if not 0 <= moment <= HIGHEST_SCORE:
        raise InvalidOption(f"{name}={text!r} is too far from now. Accepted: such as 30s or -1h.")
    return moment
