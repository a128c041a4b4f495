"""The types of topics, and the values that their messages carry.

To add a type, subclass TopicType and list it at the end.
"""

from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.keys import AT_ONCE, HIGHEST_SCORE, LOWEST_SCORE
from rmq_spark.topics.parsing import (
    Parser,
    duration_or_whole,
    moment,
    ms_since_1970,
    wait_ms,
    whole,
)

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
    limits: ClassVar[str]
    """The lowest and the highest value, for errors."""
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
    limits = f"{lowest} to {LONGEST_WAIT_MS}"
    accepted = f"whole milliseconds, {limits}, or a duration such as '30s'"
    parser = duration_or_whole(lowest, LONGEST_WAIT_MS)
    meaning = "in place of `fixedTime`, the wait from when Redis stores the message"

    def score_of(self, value: Any) -> Any:
        """Turn delays into scores for the send script: their negatives (lua/include/dated.lua)."""
        return -value


class TopicType(MessageValue):
    """The type of a topic: which value its messages have, and how that sorts them.

    TopicType has RANGE_MERGE, PRIORITY and FIXED_TIME. Functions also take their names as text:
    "RangeMerge", "Priority", "FixedTime".

    Code that treats types differently asks the type's one object. TOPIC_TYPES lists them.
    """

    RANGE_MERGE: ClassVar["TopicType"]
    PRIORITY: ClassVar["TopicType"]
    FIXED_TIME: ClassVar["TopicType"]

    name: ClassVar[str]
    """The name of the type, in definitions and options."""

    # -- the value that each message of the type has: the type is its description (MessageValue)

    delay: ClassVar[MessageValue | None] = None
    """The delay that a message may have in place of the value; None if it cannot."""

    # -- the score that the store sorts messages by

    send_script: ClassVar[str]
    """The script that stores messages. It decides which of two equal messages stays."""
    descending: ClassVar[bool] = False
    """Whether the highest score is delivered first; then every message is due."""
    has_due_times: ClassVar[bool] = True
    """Whether scores are due times in ms since 1970; otherwise they are priorities."""

    # -- the value of a message that is requeued without one

    requeue_value: ClassVar[int | None] = None
    """The default value of a requeue; None if the caller must give one."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<TopicType {self.name}>"

    @property
    def values(self) -> tuple[MessageValue, ...]:
        """The values of which each message has one."""
        return (self,) if self.delay is None else (self, self.delay)

    @cached_property
    def of_others(self) -> list[str]:
        """The keywords of values that only messages of other types have."""
        own = {of.keyword for of in self.values}
        known = [of.keyword for topic_type in TOPIC_TYPES.values() for of in topic_type.values]
        return [keyword for keyword in known if keyword not in own]

    # -- a lead ranks messages across all slots: the highest is delivered first

    def first_lead(self, now_ms: int) -> int:
        """Return a lead that no due message exceeds."""
        return HIGHEST_SCORE if self.descending else now_ms

    def score_at(self, lead: int, now_ms: int) -> int:
        """Return the score of a message at a lead: the lead, or the due time of that age."""
        return lead if self.descending else now_ms - lead


class RangeMerge(Wait, TopicType):
    """The type of messages with a time range in ms, which starts when Redis stores them."""

    name = "RangeMerge"
    value_name = "timeRange"
    keyword = "time_range"
    lowest = 1
    limits = f"{lowest} to {LONGEST_WAIT_MS}"
    accepted = f"whole milliseconds, {limits}, or a duration such as '30s'"
    parser = duration_or_whole(lowest, LONGEST_WAIT_MS)
    meaning = "the wait before the delivery, in which equal messages merge"
    send_script = "send_first"
    requeue_value = 1


class Priority(TopicType):
    """The type of messages with a priority; the last of equal messages decides."""

    name = "Priority"
    value_name = "priority"
    keyword = "priority"
    lowest = LOWEST_SCORE
    limits = f"{lowest} to {HIGHEST_SCORE}"
    accepted = f"a whole number, {limits}"
    parser = whole(lowest, HIGHEST_SCORE)
    meaning = "the highest goes first"
    send_script = "send_last"
    descending = True
    has_due_times = False


class FixedTime(TopicType):
    """The type of messages with a due time in ms since 1970; the last of equal messages decides.

    A store takes a score below 17 for a number of retries left. A time below 17 ms therefore means
    the time at which Redis stores the message.
    """

    name = "FixedTime"
    value_name = "fixedTime"
    keyword = "fixed_time"
    lowest = AT_ONCE
    limits = f"{lowest} (now) to {HIGHEST_SCORE}"
    accepted = f"ms since 1970, {limits}, or a datetime with a time zone"
    parser = moment("ms since 1970 (up to 16: now)")
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


__all__ = ["TOPIC_TYPES", "TopicType", "parse_topic_type"]

TopicType.RANGE_MERGE = RangeMerge()
TopicType.PRIORITY = Priority()
TopicType.FIXED_TIME = FixedTime()
TOPIC_TYPES = {
    topic_type.name: topic_type
    for topic_type in (TopicType.RANGE_MERGE, TopicType.PRIORITY, TopicType.FIXED_TIME)
}


def parse_topic_type(text: str) -> TopicType:
    """Find the type of that name, in any case. Raises InvalidOption."""
    for name, topic_type in TOPIC_TYPES.items():
        if name.lower() == text.strip().lower():
            return topic_type
    raise InvalidOption.of("topic_type", text, ", ".join(TOPIC_TYPES), "is unknown")
