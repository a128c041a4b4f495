"""Messages that plain Python sends, and the rules for their values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from rmq_spark.client.message_bodies import (
    HeadersGiven,
    expiry_of,
    headers_of,
    key_of,
    packed_body,
    refuse_key,
)
from rmq_spark.client.tracing import SendSpan
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.protocol.bodies import Body
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.durations import Duration
from rmq_spark.topics.message_value import MessageValue


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    content: the bytes that consumers get; messages with equal content merge. Text is sent as UTF-8.
    slot_basis: messages with the same slot_basis are consumed one after another; None uses the
    content. Always derive it from the content in the same way: one content with two slot_basis
    values is two messages.
    time_range: for RangeMerge, a duration: ms, a timedelta, or text such as "30s". priority: for
    Priority. fixed_time: for FixedTime, ms since 1970 or a datetime with a time zone. delay: for
    FixedTime in place of fixed_time, a duration from when Redis stores the message.
    key: in a keyed topic, what messages merge by, 1 to 1024 bytes; content is then the payload,
    which may be None, and slot_basis None uses the key. headers: a mapping, or pairs of name and
    value; a value is bytes, str or None. time_to_live: a duration after the message is due, at
    which it expires. expires_at: the same as ms since 1970 or a datetime with a time zone.
    """

    content: bytes | str | None = None
    slot_basis: bytes | str | None = None
    time_range: Duration | None = None
    priority: int | None = None
    fixed_time: int | datetime | None = None
    delay: Duration | None = None
    key: bytes | str | None = None
    headers: HeadersGiven | None = None
    time_to_live: Duration | None = None
    expires_at: int | datetime | None = None


class Outgoing(NamedTuple):
    """Checked messages by slot, as score, content, score, content, ..., in a list or packed.

    bodies: content, body, content, body, ... in the same order, or nothing if no message has a
    body; an empty text stands for none. Of a keyed topic, content stands for the key here.
    """

    pairs: Mapping[int, Any]
    bodies: Mapping[int, Any]


def outgoing(
    messages: Iterable[Message | bytes | str],
    defaults: Message,
    topic: TopicDefinition,
    *,
    now_ms: Callable[[], int],
    refuse_past: bool = False,
    span: SendSpan | None = None,
) -> Outgoing:
    """Check messages and group them by slot.

    defaults: supplies the values that a message lacks. now_ms: reads Redis' clock. refuse_past: a
    fixed time that is not after now is refused; a delay never is. span: adds its context to the
    headers. Raises InvalidMessage with the index of the first message that is refused, its value
    and the accepted values.
    """
    if isinstance(messages, str | bytes | Message):
        raise InvalidMessage(
            f"send takes a list of messages, not a single {type(messages).__name__}. Write "
            "send([...])."
        )
    default = _value_in(defaults, topic, "The default values")
    now_ms = _Once(now_ms)
    refuse_before_ms = now_ms() if refuse_past else None
    by_slot: dict[int, list[Any]] = {}
    bodies: dict[int, list[bytes]] = {}
    all_have_bodies = topic.keyed or span is not None or _has_body(defaults)
    has_bodies = topic.keyed
    for index, given in enumerate(messages):
        message = given if isinstance(given, Message) else Message(given)
        name = _name_of(message, topic, index)
        basis = message.slot_basis if message.slot_basis is not None else defaults.slot_basis
        slot = topic.slot_of(name if basis is None else _bytes_of("slot_basis", basis, index))
        of, value = _value_in(message, topic, f"Message {index}")
        if value is None:
            of, value = default
        number = _number_of(of, value, topic, index)
        if refuse_before_ms is not None and of.can_be_past and number <= refuse_before_ms:
            raise InvalidMessage(
                f"Message {index} of topic {topic.name}: fixed_time {number} is not after now "
                f"({refuse_before_ms}), and past_fixed_time is fail. Nothing was sent."
            )
        packed = b""
        if all_have_bodies or _has_body(message):
            due_ms = partial(_due_ms, of, number, now_ms)
            body = _body_of(message, defaults, topic, due_ms, index, span)
            if topic.keyed or body:
                packed, has_bodies = packed_body(body, index), True
        by_slot.setdefault(slot, []).extend((of.score_of(number), name))
        bodies.setdefault(slot, []).extend((name, packed))
    return Outgoing(by_slot, bodies if has_bodies else {})


class _Once:
    """A clock that is read once, and only if it is needed."""

    __slots__ = ("_read_ms", "_time_ms")

    def __init__(self, read_ms: Callable[[], int]) -> None:
        self._read_ms = read_ms
        self._time_ms: int | None = None

    def __call__(self) -> int:
        if self._time_ms is None:
            self._time_ms = self._read_ms()
        return self._time_ms


def _due_ms(of: MessageValue, number: int, now_ms: Callable[[], int]) -> int:
    """Return when a message with a value is due; 0 for a priority."""
    return int(of.requeue_score(number, now_ms())) if of.is_time else 0


def _name_of(message: Message, topic: TopicDefinition, index: int) -> bytes:
    """Return what a message merges by: its key in a keyed topic, else its content."""
    if topic.keyed:
        return key_of(topic, message.key, index)
    refuse_key(topic, message.key, index)
    return _bytes_of("content", message.content, index)


def _has_body(message: Message) -> bool:
    """Check whether a message carries anything beside its content; a keyed one always does."""
    return (
        message.headers is not None
        or message.time_to_live is not None
        or message.expires_at is not None
    )


def _body_of(
    message: Message,
    defaults: Message,
    topic: TopicDefinition,
    due_ms: Callable[[], int],
    index: int,
    span: SendSpan | None,
) -> Body:
    """Return the body of a message. due_ms: returns when it is due."""
    payload = None
    if topic.keyed and message.content is not None:
        payload = _bytes_of("content", message.content, index)
    own = (
        message if message.expires_at is not None or message.time_to_live is not None else defaults
    )
    given = message.headers if message.headers is not None else defaults.headers
    headers = headers_of(given, index)
    if span is not None:
        headers = span.add_to(headers)
    expiry = expiry_of(own.time_to_live, own.expires_at, due_ms, index)
    return Body(payload, headers, **expiry)


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

    value: holds their due time, delay or priority; without a due time, they are due at once. Raises
    InvalidMessage if the topic's type needs a value or does not take the one that is given.
    """
    of_type = topic.type
    of, given = _value_in(value, topic, "The requeue", "requeued")
    if given is None and of_type.requeue_value is None:
        raise InvalidMessage(
            f"Topic {topic.name} is {of_type}, so requeued messages need a {of_type.keyword}. "
            f"Accepted: {of_type.parser.accepted_plain}. Nothing was requeued."
        )
    number = _number_of(of, of_type.requeue_value if given is None else given, topic, 0)
    return int(of.requeue_score(number, now_ms))


def _value_in(
    values: Message, topic: TopicDefinition, owner: str, done: str = "sent"
) -> tuple[MessageValue, Any]:
    """Return the value that a message of a topic has, and what it is; None if it has none.

    owner, done: for errors. Raises InvalidMessage for a delay beside a fixed time, or in a topic
    that takes none.
    """
    of_type = topic.type
    value = of_type.value_in(values)
    if values.delay is None:
        return of_type, value
    shown = f"{owner} of topic {topic.name}: delay is {values.delay!r}"
    if of_type.delay is None:
        raise InvalidMessage(
            f"{shown}, but a {of_type} topic takes {of_type.keyword} instead. Accepted: "
            f"{of_type.accepted}. Nothing was {done}."
        )
    if value is not None:
        raise InvalidMessage(
            f"{shown} and {of_type.keyword} is {value!r}. Accepted: one of them, and None for the "
            f"other. Nothing was {done}."
        )
    return of_type.delay, values.delay


def _bytes_of(name: str, value: Any, index: int) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return str.encode(value)
    except (TypeError, UnicodeEncodeError):  # not text, or text with half a surrogate pair
        raise InvalidMessage(
            f"Message {index}: {name} is {value!r}. Accepted: bytes or str. Nothing was sent."
        ) from None


def _number_of(of: MessageValue, value: Any, topic: TopicDefinition, index: int) -> int:
    number = of.number_of(value)
    if number is None or not of.lowest <= number <= of.highest:
        raise InvalidMessage(
            f"Message {index} of topic {topic.name}: {of.keyword} is {value!r}. Accepted for "
            f"a {topic.type} topic: {of.accepted}. Nothing was sent."
        )
    return number
