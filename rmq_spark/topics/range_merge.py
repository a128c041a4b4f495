"""RangeMerge: a message is due a time range after the first equal message was stored."""

from datetime import timedelta
from typing import Any

from rmq_spark.topics.parsers import duration_or_whole
from rmq_spark.topics.scores import HIGHEST_SCORE
from rmq_spark.topics.topic_type import TopicType

# A time range is added to a time in ms, and the sum must stay exact.
LONGEST_TIME_RANGE_MS = HIGHEST_SCORE // 2


class RangeMerge(TopicType):
    """The type of messages with a time range in ms, which starts when Redis stores them."""

    name = "RangeMerge"
    value_name = "timeRange"
    keyword = "time_range"
    lowest = 1
    highest = LONGEST_TIME_RANGE_MS
    accepted = f"whole milliseconds, {lowest} to {highest}"
    parser = duration_or_whole(lowest, highest)
    meaning = "the wait before the delivery, in which equal messages merge"
    send_script = "send_first"
    requeue_value = 1

    def number_of(self, value: Any) -> int | None:
        """Turn ms or a timedelta into ms; None for any other value."""
        if isinstance(value, timedelta):
            return value // timedelta(milliseconds=1)
        return super().number_of(value)

    def requeue_score(self, value: Any, now_ms: int) -> Any:
        """Turn time ranges into scores in the store: due times in ms since 1970."""
        return now_ms + value
