"""Messages as plain Python sends and receives them, and the rules their values obey."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.topics.definition import HIGHEST_SCORE, LOWEST_SCORE, TopicDefinition, TopicType

# A time range is added to a time in ms, and the sum must stay exact.
LONGEST_TIME_RANGE_MS = HIGHEST_SCORE // 2

ACCEPTED_VALUES = {
    TopicType.RANGE_MERGE: f"whole milliseconds, 1 to {LONGEST_TIME_RANGE_MS}",
    TopicType.PRIORITY: f"a whole number, {LOWEST_SCORE} to {HIGHEST_SCORE}",
    TopicType.FIXED_TIME: f"ms since 1970, 0 to {HIGHEST_SCORE}, or a time with a zone",
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    content: what consumers get, and what equal messages are merged by; text is sent as UTF-8.
    slot_basis: messages with the same one are consumed one after another; the content if None.
    Derive it from the content, always in the same way: a content with two of them is two messages.
    time_range: RangeMerge, ms or timedelta. priority: Priority. fixed_time: FixedTime, ms since
    1970 or a datetime that knows its zone.
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
    """Check all messages. Return, by slot, score, content, score, content, ...

    ``defaults`` gives the values that a message has not. ``refuse_before_ms``: a fixed time not
    after this is refused. Raises InvalidMessage naming the message's index, the value and what is
    accepted; then none of them is returned.
    """
    if isinstance(messages, str | bytes):
        raise InvalidMessage(
            f"send takes a list of messages; given was one {type(messages).__name__}, each letter "
            "of which would be a message. Write send([...])."
        )
    by_slot: dict[int, list[Any]] = {}
    for index, given in enumerate(messages):
        message = given if isinstance(given, Message) else Message(given)
        content = _bytes_of("content", message.content, index)
        basis = message.slot_basis if message.slot_basis is not None else defaults.slot_basis
        key = content if basis is None else _bytes_of("slot_basis", basis, index)
        score = _score(message, defaults, topic, index)
        if refuse_before_ms is not None and score <= refuse_before_ms:
            raise InvalidMessage(
                f"Message {index} of topic {topic.name}: fixed_time {score} is not after now "
                f"({refuse_before_ms}), and past_fixed_time is fail. Nothing was sent."
            )
        by_slot.setdefault(topic.slot_of(key), []).extend((score, content))
    return by_slot


def contents_by_slot(
    contents: Iterable[bytes | str] | Mapping[int, Sequence[bytes | str]],
    slot_basis: bytes | str | None,
    topic: TopicDefinition,
) -> dict[int, list[bytes]]:
    """Return contents by slot, as bytes.

    contents: a list, or lists by slot. slot_basis: the one that all of a list were sent with; None
    where they were sent without. Raises InvalidMessage for another thing than bytes or text,
    InvalidOption for a slot that is not there.
    """
    if isinstance(contents, str | bytes):
        raise InvalidMessage(
            f"contents={contents!r} is one {type(contents).__name__}, each letter of which would "
            "be a content. Accepted: a list of contents, or lists by slot."
        )
    if isinstance(contents, Mapping):
        if slot_basis is not None:
            raise InvalidOption(
                f"slot_basis={slot_basis!r} is not accepted with contents by slot, which name "
                "their slots. Accepted: a list of contents with slot_basis; contents by slot alone."
            )
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


def requeue_score(value: Message, topic: TopicDefinition, now_ms: int) -> int:
    """Return the score in the store of messages that come back from the DeadQueue.

    value: says when or with which priority; without, they are due at once. Raises InvalidMessage
    where a Priority topic is given no priority.
    """
    if topic.type is TopicType.PRIORITY and value.priority is None:
        raise InvalidMessage(
            f"Topic {topic.name} is Priority: nothing says which priority dead messages come back "
            f"with. Give a priority, {LOWEST_SCORE} or more. Nothing was brought back."
        )
    due_now = {
        TopicType.FIXED_TIME: Message(b"", fixed_time=now_ms),
        TopicType.RANGE_MERGE: Message(b"", time_range=1),
    }
    score = _score(value, due_now.get(topic.type, value), topic, 0)
    return now_ms + score if topic.type is TopicType.RANGE_MERGE else score


def _bytes_of(name: str, value: Any, index: int) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return str.encode(value)
    except (TypeError, UnicodeEncodeError):  # no text, or one with half a surrogate pair
        raise InvalidMessage(
            f"Message {index}: {name} is {value!r}. Accepted: bytes or str. Nothing was sent."
        ) from None


def _score(message: Message, defaults: Message, topic: TopicDefinition, index: int) -> int:
    name = {"timeRange": "time_range", "fixedTime": "fixed_time"}.get(
        topic.type.value_name, topic.type.value_name
    )
    value = getattr(message, name)
    if value is None:
        value = getattr(defaults, name)
    score = _whole(value)
    lowest = {TopicType.RANGE_MERGE: 1, TopicType.PRIORITY: LOWEST_SCORE, TopicType.FIXED_TIME: 0}
    highest = LONGEST_TIME_RANGE_MS if topic.type is TopicType.RANGE_MERGE else HIGHEST_SCORE
    if score is None or not lowest[topic.type] <= score <= highest:
        raise InvalidMessage(
            f"Message {index} of topic {topic.name}: {name} is {value!r}. Accepted for a "
            f"{topic.type.value} topic: {ACCEPTED_VALUES[topic.type]}. Nothing was sent."
        )
    # A time below 17 ms after 1970 would be taken for a retry count.
    return max(score, LOWEST_SCORE) if topic.type is TopicType.FIXED_TIME else score


def _whole(value: Any) -> int | None:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return int(value.timestamp() * 1000)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
