"""RangeMerge: a message is due a time range after the first equal message was stored."""

from rmq_spark.topics.message_value import LONGEST_WAIT_MS, Wait
from rmq_spark.topics.parsers import duration_or_whole
from rmq_spark.topics.topic_type import TopicType


class RangeMerge(Wait, TopicType):
    """The type of messages with a time range in ms, which starts when Redis stores them."""

    name = "RangeMerge"
    value_name = "timeRange"
    keyword = "time_range"
    lowest = 1
    accepted = f"whole milliseconds, {lowest} to {LONGEST_WAIT_MS}, or a duration"
    parser = duration_or_whole(lowest, LONGEST_WAIT_MS)
    meaning = "the wait before the delivery, in which equal messages merge"
    send_script = "send_first"
    requeue_value = 1
