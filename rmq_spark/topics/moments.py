"""Points in time as options write them."""

from datetime import datetime

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.scores import HIGHEST_SCORE
from rmq_spark.topics.whole_numbers import is_whole, parse_whole


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
