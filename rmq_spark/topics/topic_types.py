"""The types of topics. To add one, write its module and list it here (CONTRIBUTING.md)."""

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.fixed_time import FixedTime
from rmq_spark.topics.priority import Priority
from rmq_spark.topics.range_merge import RangeMerge
from rmq_spark.topics.topic_type import TopicType

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
    raise InvalidOption(
        f"topic_type={text!r} is unknown. Accepted: {', '.join(TOPIC_TYPES)}.", name="topic_type"
    )
