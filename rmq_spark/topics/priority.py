"""Priority: the waiting message with the highest number is delivered first."""

from rmq_spark.topics.parsers import whole
from rmq_spark.topics.scores import HIGHEST_SCORE, LOWEST_SCORE
from rmq_spark.topics.topic_type import TopicType


class Priority(TopicType):
    """The type of messages with a priority; the last of equal messages decides."""

    name = "Priority"
    value_name = "priority"
    keyword = "priority"
    lowest = LOWEST_SCORE
    accepted = f"a whole number, {lowest} to {HIGHEST_SCORE}"
    parser = whole(lowest, HIGHEST_SCORE)
    meaning = "the highest goes first"
    send_script = "send_last"
    descending = True
    has_due_times = False
