"""The topics to which a write sends its rows, or in which it finds them."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow.compute as pc

from rmq_spark.client.administration import new_definition
from rmq_spark.client.broker import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.client.remedies import describe_missing
from rmq_spark.errors import InvalidMessage, InvalidOption, UnknownTopic
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.columns import NOTHING_SENT, Rows
from rmq_spark.topics.definition import TopicDefinition, check_topic_name
from rmq_spark.topics.topic_types import TOPIC_TYPES
from rmq_spark.transport.server import Server


class SinkTopics:
    """The topics of one write, named by the option ``topic`` or by the column of that name.

    defines: whether the write may create a topic that does not exist yet.
    """

    def __init__(self, options: SinkOptions, defines: bool) -> None:
        self._options = options
        self._defines = defines

    def find(
        self,
        server: Server,
        name: str,
        check: Callable[[TopicDefinition], None] = lambda topic: None,
    ) -> TopicDefinition:
        """Read the definition of a topic, or create the topic if the write may do so.

        check: raises an error for a topic that does not suit the write, before it is created.
        Raises UnknownTopic if it does not exist and is not created, and TopicMismatch if its type
        or number of slots differs from the options. Raises InvalidOption for a name or a setting
        that is not accepted.
        """
        options = self._options
        broker = Broker(server, key_prefix=options.key_prefix)
        if not self._defines:
            broker.definition(check_topic_name(name))
        elif broker.find(name) is None:
            if options.topic_type is None:
                raise UnknownTopic(
                    f"{describe_missing(broker, name)} Correct the name; or, to create the topic "
                    'with this write, add .option("topicType", ...), one of '
                    f"{', '.join(TOPIC_TYPES)}."
                )
            amount = options.slot_amount
            check(new_definition(name, options.topic_type, amount, **options.settings))
        topic = broker.define(name, options.topic_type, options.slot_amount, **options.settings)
        check(topic)
        return topic

    def queue(self, server: Server, topic: TopicDefinition) -> Queue:
        """Open the queue of a topic for the group that an option names, or for its usual group.

        A claimId of the default group names no group: its rollback takes the group of this queue.
        """
        group = topic.usual_group if self._options.group is None else self._options.group
        return Queue(server, topic, key_prefix=self._options.key_prefix, group=group)

    def split(
        self, server: Server, known: dict[str, Queue], rows: Rows
    ) -> Iterator[tuple[Queue, Rows]]:
        """Split rows by topic. Yields the queue and the rows of each topic.

        The column ``topic`` takes precedence over the option. known: the queues that this task
        has opened so far; the method adds new ones. Raises InvalidMessage for a
        row whose topic is missing or not accepted, and the errors of ``find``.
        """
        default = self._options.topic
        if "topic" not in rows.columns:
            assert default is not None  # noqa: S101 - checked when the write began
            yield known[default], rows
            return
        accepted = "the name of a topic"
        rows.check_texts("topic", accepted)
        names = rows.columns["topic"]
        if default is not None:
            names = names.fill_null(default)
        if names.null_count:
            row = pc.index(pc.is_null(names), True).as_py()
            raise rows.refusal("topic", row, accepted)
        for name in pc.unique(names).to_pylist():
            try:
                if name not in known:
                    known[name] = self.queue(server, self.find(server, name))
            except InvalidOption as error:
                raise InvalidMessage(f"In the column topic: {error}{NOTHING_SENT}") from None
            at = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
            yield known[name], rows.only(at)
