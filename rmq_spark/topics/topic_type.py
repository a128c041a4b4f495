"""The base class of topic types; range_merge.py, fixed_time.py and priority.py are the types."""

from typing import Any, ClassVar

from rmq_spark.topics.parsers import Parser
from rmq_spark.topics.scores import HIGHEST_SCORE


class TopicType:
    """A type of topics: the value that its messages carry and the scores that sort them.

    Code that treats types differently asks the type's one object. topic_types.py lists them.
    """

    RANGE_MERGE: ClassVar["TopicType"]
    PRIORITY: ClassVar["TopicType"]
    FIXED_TIME: ClassVar["TopicType"]

    name: ClassVar[str]
    """The name of the type, in definitions and options."""

    # -- the value that each message of the type has

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
    can_be_past: ClassVar[bool] = False
    """Whether the value is a time, which pastFixedTime=fail refuses unless it is after now."""

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

    def value_in(self, values: object) -> Any:
        """Return the type's value from a message or from options; None if it is not set."""
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

    # -- a lead ranks messages across all slots: the highest is delivered first

    def first_lead(self, now_ms: int) -> int:
        """Return a lead that no due message exceeds."""
        return HIGHEST_SCORE if self.descending else now_ms

    def score_at(self, lead: int, now_ms: int) -> int:
        """Return the score of a message at a lead: the lead, or the due time of that age."""
        return lead if self.descending else now_ms - lead
