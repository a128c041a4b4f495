"""The state of all topics at one moment, for people and for programs that collect metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.errors import ScriptFailed, ServerError, WrongKeyType
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import ConsumerSeen, Figures
from rmq_spark.topics.definition import TopicDefinition, group_text

# A consumer not seen for this long counts as gone: a lease lasts a minute by default.
CONSUMER_SEEN_MS = 60_000


@dataclass(frozen=True)
class Row:
    """The state of one consumer group of a topic at one moment."""

    topic: str
    group: str
    figures: Figures
    definition: TopicDefinition
    consumers: list[ConsumerSeen]
    now_ms: int

    @property
    def exclusive(self) -> bool:
        """Whether only the owner of a slot may read it."""
        return self.definition.exclusive

    @property
    def due(self) -> int:
        """The number of messages that may be delivered now."""
        return self.figures.store.due + self.figures.retry.due

    @property
    def delayed(self) -> int:
        """The number of stored messages that are not due yet."""
        return self.figures.store.count - self.figures.store.due

    @property
    def oldest_age_ms(self) -> int | None:
        """The time for which the oldest due message has been due, in ms; None if nothing is due."""
        first = self.figures.store.oldest_ms
        return None if first is None else max(0, self.now_ms - first)


def look(
    broker: Broker,
    names: Sequence[str] | None = None,
    failed: Callable[[Queue, ServerError], None] | None = None,
) -> list[Row]:
    """Return a row for each group of all topics, or of the topics in ``names`` that exist.

    failed: called with a queue whose keys cannot be read (of another version, or of another type)
    and the error, which is raised without it; the queue then has no row.
    """
    rows = []
    for topic in broker.topics(lambda name: names is None or not names or name in names):
        for group in topic.groups:
            # Not Broker.queue, which would fail if the topic was deleted in the meantime.
            queue = Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group)
            try:
                rows.append(_row(queue))
            except (ScriptFailed, WrongKeyType) as error:
                if failed is None:
                    raise
                failed(queue, error)
    return rows


def _row(queue: Queue) -> Row:
    topic, now_ms = queue.definition, queue.now_ms()
    known = queue.ask(reading.consumers, now_ms)
    consumers = [seen for seen in known if seen.ms_ago < CONSUMER_SEEN_MS]
    name, figures = group_text(queue.keys.group), queue.figures()
    return Row(topic.name, name, figures, topic, consumers, now_ms)
