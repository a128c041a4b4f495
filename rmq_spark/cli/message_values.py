"""The value that orders a message in its topic, such as a priority or a fixed time."""

from collections.abc import Iterable
from dataclasses import replace

from rmq_spark.client.messages import Message
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.options.topic_options import VALUES
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.message_value import MessageValue
from rmq_spark.topics.parsers import ACCEPTED_RELATIVE, moment_or_relative
from rmq_spark.topics.topic_types import TOPIC_TYPES, TopicType
from rmq_spark.views.shown_texts import without_none


def given_values(
    time_range: str | None, priority: int | None, fixed_time: str | None, delay: str | None
) -> dict[MessageValue, str]:
    """Collect the values that a command line gives, as texts.

    Raises InvalidOption for two values that exclude each other.
    """
    given = without_none(
        {"time_range": time_range, "priority": priority, "fixed_time": fixed_time, "delay": delay}
    )
    for of_type in TOPIC_TYPES.values():
        both = [_flag(of) for of in of_type.values if of.keyword in given]
        if len(both) > 1:
            raise InvalidOption(f"{' and '.join(both)} exclude each other. Accepted: one of them.")
    return {
        of: str(given[of.keyword])
        for of_type in TOPIC_TYPES.values()
        for of in of_type.values
        if of.keyword in given
    }


def types_of(given: Iterable[MessageValue]) -> list[TopicType]:
    """Return the topic types that take one of these values."""
    wanted = set(given)
    return [of_type for of_type in TOPIC_TYPES.values() if not wanted.isdisjoint(of_type.values)]


def parse_values(queue: Queue, given: dict[MessageValue, str]) -> dict[str, int]:
    """Parse the values of ``given_values``. Returns numbers by keyword of ``Queue.send``.

    Times are in ms. Raises InvalidOption for a text that is not accepted.
    """
    return {
        of.keyword: replace(
            VALUES[of.keyword],
            name=_flag(of),
            parser=moment_or_relative(queue.now_ms) if of.can_be_past else of.parser,
        ).parse(text)
        for of, text in given.items()
    }


def refuse_other_values(topic: TopicDefinition, given: Iterable[MessageValue], done: str) -> None:
    """Raise InvalidOption if a value is given that is for another type than the topic's.

    done: what the command would have done, for the error, such as "sent".
    """
    others = [_flag(of) for of in given if of not in topic.type.values]
    if others:
        raise InvalidOption(
            f"{', '.join(others)} is not for topic {topic.name}, which is {topic.type}. Accepted: "
            f"{_flags(topic.type)}. Nothing was {done}."
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
    if all(of.value_in(values) is None for of in of_type.values):
        accepted = of_type.parser.accepted_plain
        if of_type.can_be_past:
            accepted = ACCEPTED_RELATIVE
        raise InvalidMessage(
            f"Topic {topic.name} is {of_type}. Add {_flags(of_type)}. Accepted: {accepted}. "
            f"Nothing was {done}."
        )


def _flags(of_type: TopicType) -> str:
    return " or ".join(map(_flag, of_type.values))


def _flag(of: MessageValue) -> str:
    return f"--{of.keyword.replace('_', '-')}"
