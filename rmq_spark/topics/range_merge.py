"""RangeMerge: a message is due some time after the first of its equals was sent."""

from datetime import timedelta
from typing import Any

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.durations import ACCEPTED as ACCEPTED_DURATION
from rmq_spark.topics.durations import parse_duration_ms
from rmq_spark.topics.scores import HIGHEST_SCORE
from rmq_spark.topics.topic_type import TopicType
from rmq_spark.topics.whole_numbers import is_whole, parse_whole

# A time range is added to a time in ms, and the sum must stay exact.
LONGEST_TIME_RANGE_MS = HIGHEST_SCORE // 2
_MS_A_DAY = 86_400_000


class RangeMerge(TopicType):
    """Messages with a time range in ms, which runs from Redis' time of storing them."""

    name = "RangeMerge"
    value_name = "timeRange"
    keyword = "time_range"
    lowest = 1
    highest = LONGEST_TIME_RANGE_MS
    accepted = f"whole milliseconds, {lowest} to {highest}"
    accepted_text = "ms, or a duration such as 30s"
    send_script = "send_first"
    requeue_value = 1

    def number_of(self, value: Any) -> int | None:
        """Turn ms or a timedelta into ms."""
        if isinstance(value, timedelta):
            return value // timedelta(milliseconds=1)
        return super().number_of(value)

    def parse(self, name: str, text: str) -> int:
        """Read ms or a duration. Raises InvalidOption."""
        if is_whole(text):
            return parse_whole(name, text, self.lowest, self.highest)
        time_range_ms = parse_duration_ms(name, text)
        if time_range_ms > self.highest:
            days = self.highest // _MS_A_DAY
            raise InvalidOption(f"{name}={text!r} is too long. Accepted: up to {days}d.")
        if time_range_ms < self.lowest:
            raise InvalidOption(f"{name}={text!r} is 0. Accepted: {ACCEPTED_DURATION}.")
        return time_range_ms

    def requeue_score(self, value: Any, now_ms: int) -> Any:
        """The due time."""
        return now_ms + value
