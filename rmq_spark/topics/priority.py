"""Priority: of the messages that wait, the one with the highest number comes first."""

from rmq_spark.topics.scores import HIGHEST_SCORE, LOWEST_SCORE
from rmq_spark.topics.topic_type import TopicType
from rmq_spark.topics.whole_numbers import parse_whole


class Priority(TopicType):
    """Messages with a priority; of equal ones the last decides."""

    name = "Priority"
    value_name = "priority"
    keyword = "priority"
    lowest = LOWEST_SCORE
    accepted = f"a whole number, {lowest} to {HIGHEST_SCORE}"
    accepted_text = f"{lowest} or more; higher goes first"
    send_script = "send_last"
    descending = True
    has_due_times = False

    def parse(self, name: str, text: str) -> int:
        """Read a whole number. Raises InvalidOption."""
        return parse_whole(name, text, self.lowest, self.highest)
