"""The values that messages carry: a time range, a priority, a fixed time or a delay."""

from typing import Any, ClassVar

from rmq_spark.topics.durations import wait_ms
from rmq_spark.topics.parsers import Parser, duration_or_whole
from rmq_spark.topics.scores import HIGHEST_SCORE

# A wait is added to a time in ms, and the sum must stay exact.
LONGEST_WAIT_MS = HIGHEST_SCORE // 2


class MessageValue:
    """A value that messages carry: its names, what it accepts, and its score."""

    value_name: ClassVar[str]
    """The name of the value's column and option."""
    keyword: ClassVar[str]
    """The name of the value's field of Message and keyword of send."""
    lowest: ClassVar[int]
    highest: ClassVar[int] = HIGHEST_SCORE
    accepted: ClassVar[str]
    """The values that a program may give, for errors."""
    parser: ClassVar[Parser[int]]
    """The parser of the value as people write it in options."""
    meaning: ClassVar[str]
    """The meaning of the value, for help texts."""
    is_time: ClassVar[bool] = True
    """Whether the value decides when a message is due."""
    can_be_past: ClassVar[bool] = False
    """Whether the value is a time, which pastFixedTime=fail refuses unless it is after now."""

    def value_in(self, values: object) -> Any:
        """Return this value from a message or from options; None if it is not set."""
        return getattr(values, self.keyword)

    def number_of(self, value: Any) -> int | None:
        """Turn a value of Python into a whole number; None if it cannot be one."""
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def score_of(self, value: Any) -> Any:
        """Turn accepted values (a number or a NumPy array) into scores for the send script."""
        return value

    def requeue_score(self, value: Any, now_ms: int) -> Any:
        """Turn accepted values (a number or a NumPy array) into scores in the store."""
        return value


class Wait(MessageValue):
    """A value that is a wait in ms, which starts when Redis stores the message."""

    highest = LONGEST_WAIT_MS

    def number_of(self, value: Any) -> int | None:
        """Turn a Duration into ms; None for any other value."""
        return wait_ms(value)

    def requeue_score(self, value: Any, now_ms: int) -> Any:
        """Turn waits into scores in the store: due times in ms since 1970."""
        return now_ms + value


class Delay(Wait):
    """The wait of a FixedTime message, in place of its time."""

    value_name = "delay"
    keyword = "delay"
    lowest = 0
    accepted = f"whole milliseconds, {lowest} to {LONGEST_WAIT_MS}, or a duration"
    parser = duration_or_whole(lowest, LONGEST_WAIT_MS)
    meaning = "in place of `fixedTime`, the wait from when Redis stores the message"

    def score_of(self, value: Any) -> Any:
        """Turn delays into scores for the send script: their negatives (lua/include/dated.lua)."""
        return -value
