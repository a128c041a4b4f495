"""Messages that plain Python sends, and the rules for their values."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from rmq_spark.client.tracing import SendSpan
from rmq_spark.errors import InvalidMessage, InvalidOption, quoted
from rmq_spark.protocol.bodies import Body, Headers
from rmq_spark.protocol.packing import packed_alike
from rmq_spark.topics.definition import TopicDefinition, by_slots
from rmq_spark.topics.keys import HIGHEST_SCORE
from rmq_spark.topics.parsing import Duration, ms_since_1970, wait_ms
from rmq_spark.topics.types import MessageValue

# A key is in every queue and claim, so it stays small; what is large belongs into the payload.
LONGEST_KEY_BYTES = 1024
# Times are whole ms that a double holds exactly, and 16 digits.
LONGEST_TIME_TO_LIVE_MS = HIGHEST_SCORE // 2
# Redis takes 512 MiB in one argument.
LARGEST_BODY_BYTES = 511 * 1024 * 1024

# What an error says of a message among others.
_OF_A_LIST = re.compile(r"^Message \d+( of topic \S+)?: | Nothing was sent\.$")

HeadersGiven = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


def fault_of(error: InvalidMessage) -> str:
    """Return what is wrong with a message that was checked alone."""
    return _OF_A_LIST.sub("", str(error))


def key_of(topic: TopicDefinition, key: Any, index: int) -> bytes:
    """Return the key of a message of a keyed topic. Raises InvalidMessage."""
    given = _utf8(key) if isinstance(key, str) else key
    if not isinstance(given, bytes) or not 1 <= len(given) <= LONGEST_KEY_BYTES:
        shown = quoted(key) if not isinstance(given, bytes) else f"{len(given)} bytes long"
        raise InvalidMessage(
            f"Message {index} of topic {topic.name}: key is {shown}. Accepted in a keyed topic: "
            f"bytes or str, 1 to {LONGEST_KEY_BYTES} bytes. Nothing was sent."
        )
    return given


def refuse_key(topic: TopicDefinition, key: Any, index: int) -> None:
    """Raise InvalidMessage for a key in a topic that has none."""
    if key is not None:
        raise InvalidMessage(
            f"Message {index} of topic {topic.name}: key is {quoted(key)}, but the topic is not "
            "keyed: its messages merge by their content. Leave the key out, or create another "
            "topic with keyed=True, or --keyed. Nothing was sent."
        )


def headers_of(given: HeadersGiven | None, index: int) -> Headers:
    """Return headers as pairs of name and value. Raises InvalidMessage."""
    if given is None:
        return ()
    return tuple(_header_of(pair, index) for pair in _pairs_of(given, index))


def _pairs_of(given: Any, index: int) -> list[Any]:
    listed = given.items() if isinstance(given, Mapping) else given
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise InvalidMessage(
            f"Message {index}: headers is {quoted(given)}. Accepted: a mapping, or pairs of name "
            "and value. Nothing was sent."
        )
    return list(listed)


def _header_of(pair: Any, index: int) -> tuple[str, bytes | None]:
    if isinstance(pair, tuple | list) and len(pair) == 2:
        name, value = pair
        content = _utf8(value) if isinstance(value, str) else value
        is_lost = content is None and value is not None
        is_name = isinstance(name, str) and _utf8(name) is not None
        if is_name and not is_lost and isinstance(content, bytes | None):
            return name, content
        shown = f"the header {quoted(name)} is {quoted(value)}"
    else:
        shown = f"the header {quoted(pair)} is not a name and a value"
    raise InvalidMessage(
        f"Message {index}: {shown}. Accepted: a name of type str, and a value of type bytes, str "
        "or None. A str must be valid UTF-8. Nothing was sent."
    )


def _utf8(text: str) -> bytes | None:
    """Encode a text; None for one with half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def expiry_of(
    time_to_live: Any, expires_at: Any, due_ms: Callable[[], int | None], index: int
) -> dict[str, int]:
    """Return the fields of a Body that say when it expires; none if it does not.

    due_ms: returns when the message is due, as far as it is known. Raises InvalidMessage.
    """
    if time_to_live is not None and expires_at is not None:
        raise InvalidMessage(
            f"Message {index}: time_to_live is {quoted(time_to_live)} and expires_at is "
            f"{quoted(expires_at)}. Accepted: one of the two. Nothing was sent."
        )
    if time_to_live is not None:
        lives_ms = wait_ms(time_to_live)
        if lives_ms is None or not 1 <= lives_ms <= LONGEST_TIME_TO_LIVE_MS:
            raise InvalidMessage(
                f"Message {index}: time_to_live is {quoted(time_to_live)}. Accepted: whole "
                f"milliseconds, 1 to {LONGEST_TIME_TO_LIVE_MS}, or a duration such as '30s'. "
                "Nothing was sent."
            )
        return {"time_to_live_ms": lives_ms}
    if expires_at is None:
        return {}
    ends_ms = moment_ms_of(expires_at)
    if ends_ms is None or not 1 <= ends_ms <= HIGHEST_SCORE:
        raise InvalidMessage(
            f"Message {index}: expires_at is {quoted(expires_at)}. Accepted: ms since 1970, 1 to "
            f"{HIGHEST_SCORE}, or a datetime with a time zone. Nothing was sent."
        )
    due = due_ms()
    if due is not None and ends_ms < due:
        raise InvalidMessage(
            f"Message {index}: expires_at is {ends_ms}, before the message is due ({due}), so it "
            "would never be delivered. Accepted: a later time. Nothing was sent."
        )
    return {"expires_at_ms": ends_ms}


def moment_ms_of(value: Any) -> int | None:
    """Turn ms since 1970, or a datetime with a zone, into ms; None for any other value."""
    if isinstance(value, datetime):
        return ms_since_1970(value) if value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def packed_body(body: Body, index: int) -> bytes:
    """Pack a body. Raises InvalidMessage if it is larger than Redis takes."""
    packed = body.pack()
    if len(packed) > LARGEST_BODY_BYTES:
        raise InvalidMessage(
            f"Message {index}: content and headers are {len(packed)} bytes long. Accepted: at most "
            f"{LARGEST_BODY_BYTES}. Nothing was sent."
        )
    return packed


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
    key: needed in a keyed topic and refused in others: what messages merge by, 1 to 1024 bytes;
    content is then the payload, which may be None, and slot_basis None uses the key. headers: a
    mapping, or pairs of name and value; a value is bytes, str or None. time_to_live: a duration
    after the message is due, at which it expires. expires_at: in its place, ms since 1970 or a
    datetime with a time zone.
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

    def __post_init__(self) -> None:
        # They are read for each message of a call, and when this one is sent again.
        if self.headers is not None and isinstance(self.headers, Iterator):
            object.__setattr__(self, "headers", tuple(self.headers))


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

    defaults: supplies the values that a message lacks. now_ms: reads Redis' clock; called
    once at most. refuse_past: a fixed time that is not after now is refused; a delay never is.
    span: adds its context to the headers. Raises InvalidMessage with the index of the first
    message that is refused, its value and the accepted values.
    """
    if isinstance(messages, str | bytes | Message) or not isinstance(messages, Iterable):
        raise InvalidMessage(
            f"send takes a list of messages, not a single {type(messages).__name__}. Write "
            "send([...])."
        )
    default = _value_in(defaults, topic, "The arguments of the call, for messages")
    times_ms: list[int] = []

    def one_time_ms() -> int:
        if not times_ms:
            times_ms.append(now_ms())
        return times_ms[0]

    refuse_before_ms = one_time_ms() if refuse_past else None
    may_expire = _has_body(defaults) or topic.time_to_live_ms is not None
    all_have_bodies = topic.keyed or span is not None or may_expire
    if not (all_have_bodies or refuse_past):
        messages = messages if isinstance(messages, list | tuple) else list(messages)
        # A single one stays a list: asyncio merges those of several callers.
        alike = len(messages) > 1 and _outgoing_alike(messages, default, defaults.slot_basis, topic)
        if alike:
            return alike
    by_slot: dict[int, list[Any]] = {}
    bodies: dict[int, list[bytes]] = {}
    has_bodies = topic.keyed
    for index, given in enumerate(messages):
        message = given if isinstance(given, Message) else Message(given)
        owner = f"Message {index}"
        name = _name_of(message, topic, index)
        basis = message.slot_basis if message.slot_basis is not None else defaults.slot_basis
        slot = topic.slot_of(name if basis is None else _bytes_of("slot_basis", basis, owner))
        of, value = _value_in(message, topic, owner)
        if value is None:
            of, value = default
        number = _number_of(of, value, topic, owner)
        if refuse_before_ms is not None and of.can_be_past and number <= refuse_before_ms:
            raise InvalidMessage(
                f"{owner} of topic {topic.name}: fixed_time {number} is not after now "
                f"({refuse_before_ms}), and past_fixed_time is fail. Nothing was sent."
            )
        packed = b""
        if all_have_bodies or _has_body(message):
            due_ms = partial(_due_ms, of, number, one_time_ms)
            body = _body_of(message, defaults, topic, due_ms, index, span)
            if topic.keyed or body:
                packed, has_bodies = packed_body(body, index), True
        by_slot.setdefault(slot, []).extend((of.score_of(number), name))
        bodies.setdefault(slot, []).extend((name, packed))
    return Outgoing(by_slot, bodies if has_bodies else {})


def _outgoing_alike(
    contents: Sequence[Any],
    default: tuple[MessageValue, Any],
    slot_basis: bytes | str | None,
    topic: TopicDefinition,
) -> Outgoing | None:
    """Group contents that have all else in common. None if some have not, or are refused."""
    of, value = default
    try:
        names = [one if type(one) is bytes else str.encode(one) for one in contents]
        score = of.score_of(_number_of(of, value, topic, "Each message"))
        if slot_basis is not None:
            grouped = {topic.slot_of(slot_basis): names}
        else:
            grouped = by_slots(names, topic.slot_amount)
    except (TypeError, UnicodeEncodeError, InvalidMessage, InvalidOption):
        return None
    return Outgoing({slot: packed_alike(score, of_slot) for slot, of_slot in grouped.items()}, {})


def _due_ms(of: MessageValue, number: int, now_ms: Callable[[], int]) -> int:
    return int(of.requeue_score(number, now_ms())) if of.is_time else 0


def _name_of(message: Message, topic: TopicDefinition, index: int) -> bytes:
    if topic.keyed:
        return key_of(topic, message.key, index)
    refuse_key(topic, message.key, index)
    return _bytes_of("content", message.content, f"Message {index}")


def _has_body(message: Message) -> bool:
    """Return whether a message carries headers or expires. One of a keyed topic has more."""
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
    payload = None
    if topic.keyed and message.content is not None:
        payload = _bytes_of("content", message.content, f"Message {index}")
    own = (
        message if message.expires_at is not None or message.time_to_live is not None else defaults
    )
    given = message.headers if message.headers is not None else defaults.headers
    headers = headers_of(given, index)
    if span is not None:
        headers = span.add_to(headers)
    lives = own.time_to_live
    if lives is None and own.expires_at is None:
        lives = topic.time_to_live_ms
    expiry = expiry_of(lives, own.expires_at, due_ms, index)
    return Body(payload, headers, **expiry)


def contents_by_slot(
    contents: Iterable[bytes | str] | Mapping[int, Sequence[bytes | str]],
    slot_basis: bytes | str | None,
    topic: TopicDefinition,
    done: str = "changed",
) -> dict[int, list[bytes]]:
    """Group contents by slot, as bytes.

    contents: a list, or lists by slot. slot_basis: the one with which all contents of a list were
    sent; None if they were sent without. Raises InvalidMessage for a content that is neither bytes
    nor text. Raises InvalidOption for a slot that does not exist, or a slot_basis together with
    lists by slot. done: for errors.
    """
    _refuse_single(contents)
    if isinstance(contents, Mapping):
        if slot_basis is not None:
            raise InvalidOption(
                f"slot_basis={quoted(slot_basis)} is not accepted with contents by slot, which "
                "name their slots. Accepted: a list of contents with slot_basis; contents by slot "
                "alone."
            )
        for listed in contents.values():
            _refuse_single(listed)
        return {topic.check_slot(slot): _listed(listed, done) for slot, listed in contents.items()}
    by_slot: dict[int, list[bytes]] = {}
    for content in _listed(contents, done):
        by_slot.setdefault(topic.slot_of(content if slot_basis is None else slot_basis), []).append(
            content
        )
    return by_slot


def _listed(contents: Iterable[bytes | str], done: str) -> list[bytes]:
    return [_bytes_of("content", one, f"Message {at}", done) for at, one in enumerate(contents)]


def _refuse_single(contents: object) -> None:
    if isinstance(contents, str | bytes) or not isinstance(contents, Iterable):
        raise InvalidMessage(
            f"contents={quoted(contents)} is a single {type(contents).__name__}. Accepted: a list "
            "of contents, or lists by slot."
        )


def requeue_score(
    value: Message, topic: TopicDefinition, now_ms: int, done: str = "requeued"
) -> int:
    """Return the score in the store for messages that are requeued or moved.

    value: holds their due time, delay or priority; without a due time, they are due at once. done:
    for errors. Raises InvalidMessage if the topic's type needs a value or does not take the one
    that is given.
    """
    of_type = topic.type
    owner = f"The {done.removesuffix('d')}"
    of, given = _value_in(value, topic, owner, done)
    if given is None and of_type.requeue_value is None:
        raise InvalidMessage(
            f"Topic {topic.name} is {of_type}, so {done} messages need a {of_type.keyword}. "
            f"Accepted: {of_type.parser.accepted_plain}. Nothing was {done}."
        )
    given = of_type.requeue_value if given is None else given
    number = _number_of(of, given, topic, owner, done)
    return int(of.requeue_score(number, now_ms))


def _value_in(
    values: Message, topic: TopicDefinition, owner: str, done: str = "sent"
) -> tuple[MessageValue, Any]:
    """Return the value that a message of a topic has, and what it is. owner, done: for errors."""
    of_type = topic.type
    for keyword in of_type.of_others:
        if (given := getattr(values, keyword)) is not None:
            takes = " or ".join(of.keyword for of in of_type.values)
            raise InvalidMessage(
                f"{owner} of topic {topic.name}: {keyword} is {quoted(given)}, but a {of_type} "
                f"topic takes {takes} instead. Nothing was {done}."
            )
    value = of_type.value_in(values)
    if values.delay is None or of_type.delay is None:
        return of_type, value
    if value is not None:
        raise InvalidMessage(
            f"{owner} of topic {topic.name}: delay is {quoted(values.delay)} and {of_type.keyword} "
            f"is {quoted(value)}. Accepted: one of them, and None for the other. Nothing was "
            f"{done}."
        )
    return of_type.delay, values.delay


def _bytes_of(name: str, value: Any, owner: str, done: str = "sent") -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return str.encode(value)
    except (TypeError, UnicodeEncodeError):  # not text, or text with half a surrogate pair
        raise InvalidMessage(
            f"{owner}: {name} is {quoted(value)}. Accepted: bytes or str. Nothing was {done}."
        ) from None


def _number_of(
    of: MessageValue, value: Any, topic: TopicDefinition, owner: str, done: str = "sent"
) -> int:
    number = of.number_of(value)
    if number is None or not of.lowest <= number <= of.highest:
        delay = topic.type.delay
        instead = f"; or a {delay.keyword} in its place" if value is None and delay else ""
        raise InvalidMessage(
            f"{owner} of topic {topic.name}: {of.keyword} is {quoted(value)}. Accepted for a "
            f"{topic.type} topic: {of.accepted}{instead}. Nothing was {done}."
        )
    return number
