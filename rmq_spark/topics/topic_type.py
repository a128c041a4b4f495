"""The base class of topic types; range_merge.py, fixed_time.py and priority.py are the types."""

from typing import ClassVar

from rmq_spark.topics.message_value import MessageValue
from rmq_spark.topics.scores import HIGHEST_SCORE


class TopicType(MessageValue):
    """A type of topics: the value that its messages carry and the scores that sort them.

    Code that treats types differently asks the type's one object. topic_types.py lists them.
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

    # -- a lead ranks messages across all slots: the highest is delivered first

    def first_lead(self, now_ms: int) -> int:
        """Return a lead that no due message exceeds."""
        return HIGHEST_SCORE if self.descending else now_ms

    def score_at(self, lead: int, now_ms: int) -> int:
        """Return the score of a message at a lead: the lead, or the due time of that age."""
        return lead if self.descending else now_ms - lead
