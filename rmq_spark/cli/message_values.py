"""The value that orders a message in its topic: a time range, a fixed time or a priority."""

from collections.abc import Iterable
from dataclasses import replace

from rmq_spark.cli.output import without_none
from rmq_spark.client.messages import Message
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.options.topic_options import VALUES
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.parsers import ACCEPTED_RELATIVE, moment_or_relative
from rmq_spark.topics.topic_types import TOPIC_TYPES, TopicType


def given_types(
    time_range: str | None, priority: int | None, fixed_time: str | None
) -> dict[TopicType, str]:
    """Collect the values that a command line gives, as texts by the topic type that takes them."""
    given = without_none({"time_range": time_range, "priority": priority, "fixed_time": fixed_time})
    return {
        of_type: str(given[of_type.keyword])
        for of_type in TOPIC_TYPES.values()
        if of_type.keyword in given
    }


def parse_values(queue: Queue, given: dict[TopicType, str]) -> dict[str, int]:
    """Parse the values of ``given_types``. Returns numbers by keyword of ``Queue.send``.

    Times are in ms. Raises InvalidOption for a text that is not accepted.
    """
    return {
        of_type.keyword: replace(
            VALUES[of_type.keyword],
            name=_flag(of_type),
            parser=moment_or_relative(queue.now_ms) if of_type.can_be_past else of_type.parser,
        ).parse(text)
        for of_type, text in given.items()
    }


def refuse_other_values(topic: TopicDefinition, given: Iterable[TopicType], done: str) -> None:
    """Raise InvalidOption if a value of another type than the topic's is given.

    done: what the command would have done, for the error, such as "sent".
    """
    others = [_flag(of_type) for of_type in given if of_type != topic.type]
    if others:
        raise InvalidOption(
            f"{', '.join(others)} is not for topic {topic.name}, which is {topic.type}. Accepted: "
            f"{_flag(topic.type)}. Nothing was {done}."
        )


def message_with(values: dict[str, int]) -> Message:
    """Return a message without content that has these values, to check or score them."""
    return Message(b"", **values)  # type: ignore[arg-type]


def require_value(topic: TopicDefinition, values: Message, done: str) -> None:
    """Check that ``values`` has the value that the topic type needs.

    done: what the command would have done, for the error, such as "sent". Raises InvalidMessage if
    the value is missing.
    """
    of_type = topic.type
    if of_type.value_in(values) is None:
        accepted = of_type.parser.accepted_plain
        if of_type.can_be_past:
            accepted = ACCEPTED_RELATIVE
        raise InvalidMessage(
            f"Topic {topic.name} is {of_type}. Add {_flag(of_type)}. Accepted: {accepted}. "
            f"Nothing was {done}."
        )


def _flag(of_type: TopicType) -> str:
    return f"--{of_type.keyword.replace('_', '-')}"
