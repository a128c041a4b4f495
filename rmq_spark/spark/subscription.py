"""The topics that a query reads: a list of names, or all topics whose names match a pattern."""

import re
from dataclasses import dataclass

from rmq_spark.client.broker import Broker
from rmq_spark.topics.definition import TopicDefinition

_PATTERN = "pattern:"  # a topic's name cannot contain a colon


@dataclass(frozen=True)
class Subscription:
    """The topics and the consumer group that a query reads.

    names: the topics, each once. pattern: a regular expression that must match whole names, used
    instead of names. owns: whether the query owns slots through ZooKeeper. Without ownership, a
    pattern skips exclusive topics.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    group: str = ""
    owns: bool = False

    @property
    def text(self) -> str:
        """The text that a checkpoint stores: sorted names, separated by commas, or the pattern."""
        if self.pattern is not None:
            return f"{_PATTERN}{self.pattern}"
        return ",".join(sorted(self.names))

    @property
    def is_single(self) -> bool:
        """Whether the subscription names exactly one topic."""
        return self.pattern is None and len(self.names) == 1

    def continues(self, earlier: str) -> bool:
        """Return whether a query can continue from a checkpoint with the text ``earlier``.

        You can add topics to a list of names, but not remove them. A pattern must stay the same.
        """
        if self.pattern is not None or earlier.startswith(_PATTERN):
            return self.text == earlier
        return set(earlier.split(",")) <= set(self.names)

    def find(self, broker: Broker) -> list[TopicDefinition]:
        """Read the definitions of the topics, sorted by name.

        A pattern skips topics without the consumer group and, without ownership, exclusive topics.
        Raises UnknownTopic for a named topic that does not exist.
        """
        if self.pattern is None:
            return broker.definitions(sorted(self.names))
        matches = re.compile(self.pattern).fullmatch
        return [
            topic
            for topic in broker.topics(matches)
            if self.group in topic.groups and (self.owns or not topic.exclusive)
        ]
