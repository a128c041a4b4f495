"""Messages that plain Python sends, and the rules for their values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.topics.definition import TopicDefinition


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    content: the bytes that consumers get; messages with equal content merge. Text is sent as UTF-8.
    slot_basis: messages with the same slot_basis are consumed one after another; None uses the
    content. Always derive it from the content in the same way: one content with two slot_basis
    values is two messages.
    time_range: for RangeMerge, ms or a timedelta. priority: for Priority. fixed_time: for
    FixedTime, ms since 1970 or a datetime with a time zone.
    """

    content: bytes | str
    slot_basis: bytes | str | None = None
    time_range: int | timedelta | None = None
    priority: int | None = None
    fixed_time: int | datetime | None = None


def pairs_by_slot(
    messages: Iterable[Message | bytes | str],
    defaults: Message,
    topic: TopicDefinition,
    *,
    refuse_before_ms: int | None = None,
) -> dict[int, list[Any]]:
    """Check messages and group them by slot, as score, content, score, content, ...

    defaults: supplies the values that a message lacks. refuse_before_ms: a fixed time that is not
    after this is refused. Raises InvalidMessage with the index of the first message that is
    refused, its value and the accepted values.
    """
    if isinstance(messages, str | bytes):
        raise InvalidMessage(
            f"send takes a list of messages, not a single {type(messages).__name__}. Write "
            "send([...])."
        )
    by_slot: dict[int, list[Any]] = {}
    for index, given in enumerate(messages):
        message = given if isinstance(given, Message) else Message(given)
        content = _bytes_of("content", message.content, index)
        basis = message.slot_basis if message.slot_basis is not None else defaults.slot_basis
        key = content if basis is None else _bytes_of("slot_basis", basis, index)
        value = topic.type.value_in(message)
        default = topic.type.value_in(defaults) if value is None else value
        number = _number_of(topic, default, index)
        if refuse_before_ms is not None and number <= refuse_before_ms:
            raise InvalidMessage(
                f"Message {index} of topic {topic.name}: fixed_time {number} is not after now "
                f"({refuse_before_ms}), and past_fixed_time is fail. Nothing was sent."
            )
        by_slot.setdefault(topic.slot_of(key), []).extend((topic.type.score_of(number), content))
    return by_slot


def contents_by_slot(
    contents: Iterable[bytes | str] | Mapping[int, Sequence[bytes | str]],
    slot_basis: bytes | str | None,
    topic: TopicDefinition,
) -> dict[int, list[bytes]]:
    """Group contents by slot, as bytes.

    contents: a list, or lists by slot. slot_basis: the one with which all contents of a list were
    sent; None if they were sent without. Raises InvalidMessage for a content that is neither bytes
    nor text. Raises InvalidOption for a slot that does not exist, or a slot_basis together with
    lists by slot.
    """
    _refuse_single(contents)
    if isinstance(contents, Mapping):
        if slot_basis is not None:
            raise InvalidOption(
                f"slot_basis={slot_basis!r} is not accepted with contents by slot, which name "
                "their slots. Accepted: a list of contents with slot_basis; contents by slot alone."
            )
        for listed in contents.values():
            _refuse_single(listed)
        return {
            topic.check_slot(slot): [_bytes_of("content", one, at) for at, one in enumerate(listed)]
            for slot, listed in contents.items()
        }
    by_slot: dict[int, list[bytes]] = {}
    for at, given in enumerate(contents):
        content = _bytes_of("content", given, at)
        by_slot.setdefault(topic.slot_of(content if slot_basis is None else slot_basis), []).append(
            content
        )
    return by_slot


def _refuse_single(contents: object) -> None:
    """Raise InvalidMessage for one content in the place of a list of them."""
    if isinstance(contents, str | bytes):
        raise InvalidMessage(
            f"contents={contents!r} is one {type(contents).__name__}, each letter of which would "
            "be a content. Accepted: a list of contents, or lists by slot."
        )


def requeue_score(value: Message, topic: TopicDefinition, now_ms: int) -> int:
    """Return the score in the store for messages that are requeued from the dead queue.

    value: holds their due time or priority; without a due time, they are due at once. Raises
    InvalidMessage if the topic's type needs a value.
    """
    of_type = topic.type
    given = of_type.value_in(value)
    if given is None and of_type.requeue_value is None:
        raise InvalidMessage(
            f"Topic {topic.name} is {of_type}, so requeued messages need a {of_type.keyword}. "
            f"Accepted: {of_type.parser.accepted_plain}. Nothing was requeued."
        )
    number = _number_of(topic, of_type.requeue_value if given is None else given, 0)
    return int(of_type.requeue_score(number, now_ms))


def _bytes_of(name: str, value: Any, index: int) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return str.encode(value)
    except (TypeError, UnicodeEncodeError):  # not text, or text with half a surrogate pair
        raise InvalidMessage(
            f"Message {index}: {name} is {value!r}. Accepted: bytes or str. Nothing was sent."
        ) from None


def _number_of(topic: TopicDefinition, value: Any, index: int) -> int:
    of_type = topic.type
    number = of_type.number_of(value)
    if number is None or not of_type.lowest <= number <= of_type.highest:
        raise InvalidMessage(
            f"Message {index} of topic {topic.name}: {of_type.keyword} is {value!r}. Accepted for "
            f"a {of_type} topic: {of_type.accepted}. Nothing was sent."
        )
    return number
