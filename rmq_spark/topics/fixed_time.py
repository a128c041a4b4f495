"""FixedTime: each message has its own due time, or a delay until then."""

from datetime import datetime
from typing import Any

from rmq_spark.topics.message_value import Delay
from rmq_spark.topics.parsers import moment, ms_since_1970
from rmq_spark.topics.scores import AT_ONCE, HIGHEST_SCORE, LOWEST_SCORE
from rmq_spark.topics.topic_type import TopicType


class FixedTime(TopicType):
    """The type of messages with a due time in ms since 1970; the last of equal messages decides.

    A store takes a score below 17 for a number of retries left. A time below 17 ms therefore means
    the time at which Redis stores the message.
    """

    name = "FixedTime"
    value_name = "fixedTime"
    keyword = "fixed_time"
    lowest = AT_ONCE
    accepted = f"ms since 1970, {lowest} (now) to {HIGHEST_SCORE}, or a time with a zone"
    parser = moment("ms since 1970 (`0`: now)")
    meaning = "when it is due"
    can_be_past = True
    send_script = "send_at"
    delay = Delay()
    requeue_value = AT_ONCE

    def number_of(self, value: Any) -> int | None:
        """Turn ms since 1970, or a datetime that knows its zone, into ms since 1970."""
        if isinstance(value, datetime) and value.tzinfo is not None:
            return ms_since_1970(value)
        return super().number_of(value)

    def score_of(self, value: Any) -> Any:
        """Turn due times into scores: the time itself, or AT_ONCE for a time below 17 ms."""
        return value * (value >= LOWEST_SCORE)

    def requeue_score(self, value: Any, now_ms: int) -> Any:
        """Turn due times into scores in the store: the time itself, or now for one below 17 ms."""
        return value + (value < LOWEST_SCORE) * (now_ms - value)
