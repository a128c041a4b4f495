"""Which topics a query reads: those it names, or all whose names match a pattern."""

import re
from dataclasses import dataclass

from rmq_spark.client.broker import Broker
from rmq_spark.topics.definition import TopicDefinition

_PATTERN = "pattern:"  # no topic's name has a colon


@dataclass(frozen=True)
class Subscription:
    """names: of the topics, each once. pattern: instead of them, what whole names match.

    group: the consumer group that is read in each. owns: whether slots are owned through ZooKeeper;
    else a pattern leaves exclusive topics out.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    group: str = ""
    owns: bool = False

    @property
    def text(self) -> str:
        """How it stands in a checkpoint: the names by commas, in order."""
        if self.pattern is not None:
            return f"{_PATTERN}{self.pattern}"
        return ",".join(sorted(self.names))

    @property
    def is_single(self) -> bool:
        """Whether it is one topic by its very definition."""
        return self.pattern is None and len(self.names) == 1

    def continues(self, earlier: str) -> bool:
        """Whether a query may go on from a checkpoint with this text: topics may be added."""
        if self.pattern is not None or earlier.startswith(_PATTERN):
            return self.text == earlier
        return set(earlier.split(",")) <= set(self.names)

    def find(self, broker: Broker) -> list[TopicDefinition]:
        """The topics as they are defined now, by name; of a pattern, those that it may read.

        Raises UnknownTopic for one that is named and does not exist.
        """
        if self.pattern is None:
            return broker.definitions(sorted(self.names))
        matches = re.compile(self.pattern).fullmatch
        return [
            topic
            for topic in broker.topics(matches)
            if self.group in topic.groups and (self.owns or not topic.exclusive)
        ]
