"""What a topic's type decides; range_merge.py and its neighbours are the types."""

from typing import Any, ClassVar

from rmq_spark.topics.parsers import Parser
from rmq_spark.topics.scores import HIGHEST_SCORE


class TopicType:
    """What distinguishes the topics of one type from those of the others.

    Every place in the package that treats types differently asks the type's one object.
    topic_types.py lists them.
    """

    RANGE_MERGE: ClassVar["TopicType"]
    PRIORITY: ClassVar["TopicType"]
    FIXED_TIME: ClassVar["TopicType"]

    name: ClassVar[str]
    """How definitions, options and people write the type."""

    # -- the value that each message of the type has

    value_name: ClassVar[str]
    """The column and the option that give it."""
    keyword: ClassVar[str]
    """The field of Message and the keyword of send that give it."""
    lowest: ClassVar[int]
    highest: ClassVar[int] = HIGHEST_SCORE
    accepted: ClassVar[str]
    """What a program may give, for errors."""
    parser: ClassVar[Parser[int]]
    """How a person writes it."""
    meaning: ClassVar[str]
    """What it says, for help texts."""
    can_be_past: ClassVar[bool] = False
    """Whether it is a time, which pastFixedTime=fail refuses unless it is after now."""

    # -- the score that the store sorts messages by

    send_script: ClassVar[str]
    """The script that stores messages: it decides which of two equal ones stays."""
    descending: ClassVar[bool] = False
    """Whether the highest score is delivered first, and all are due."""
    has_due_times: ClassVar[bool] = True
    """Whether scores are due times in ms since 1970; otherwise they are priorities."""

    # -- what a message gets that a requeue brings back without a value

    requeue_value: ClassVar[int | None] = None
    """The value for it; None: the caller must give one."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<TopicType {self.name}>"

    def value_in(self, values: object) -> Any:
        """The type's own value among those of a message, or of options; None without one."""
        return getattr(values, self.keyword)

    def number_of(self, value: Any) -> int | None:
        """Turn a value as Python gives it into a whole number; None where it is not one."""
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def score_of(self, value: Any) -> Any:
        """Turn accepted values, a number or a NumPy array, into what the send script takes."""
        return value

    def requeue_score(self, value: Any, now_ms: int) -> Any:
        """Turn accepted values, a number or a NumPy array, into scores in the store."""
        return value

    # -- a place says how far ahead a message stands in the topic, whatever its slot

    def first_place(self, now_ms: int) -> int:
        """A place that no due message stands ahead of."""
        return HIGHEST_SCORE if self.descending else now_ms

    def score_at(self, place: int, now_ms: int) -> int:
        """The score of a message at a place: itself, or the due time of that age."""
        return place if self.descending else now_ms - place
