"""The keys and bodies of messages that plain Python sends, and the rules for them."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from rmq_spark.errors import InvalidMessage
from rmq_spark.protocol.bodies import Body, Headers
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.durations import wait_ms
from rmq_spark.topics.parsers import ms_since_1970
from rmq_spark.topics.scores import HIGHEST_SCORE

# A key is in every queue and claim, so it stays small; what is large belongs into the payload.
LONGEST_KEY_BYTES = 1024
# Times are whole ms that a double holds exactly, and 16 digits.
LONGEST_TIME_TO_LIVE_MS = HIGHEST_SCORE // 2
# Redis takes 512 MiB in one argument.
LARGEST_BODY_BYTES = 511 * 1024 * 1024

HeadersGiven = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


def key_of(topic: TopicDefinition, key: Any, index: int) -> bytes:
    """Return the key of a message of a keyed topic. Raises InvalidMessage."""
    given = _utf8(key) if isinstance(key, str) else key
    if not isinstance(given, bytes) or not 1 <= len(given) <= LONGEST_KEY_BYTES:
        shown = repr(key) if not isinstance(given, bytes) else f"{len(given)} bytes long"
        raise InvalidMessage(
            f"Message {index} of topic {topic.name}: key is {shown}. Accepted in a keyed topic: "
            f"bytes or str, 1 to {LONGEST_KEY_BYTES} bytes. Nothing was sent."
        )
    return given


def refuse_key(topic: TopicDefinition, key: Any, index: int) -> None:
    """Raise InvalidMessage for a key in a topic that has none."""
    if key is not None:
        raise InvalidMessage(
            f"Message {index} of topic {topic.name}: key is {key!r}, but the topic is not keyed: "
            "its messages merge by their content. Leave the key out, or create another topic with "
            "keyed=True. Nothing was sent."
        )


def headers_of(given: HeadersGiven | None, index: int) -> Headers:
    """Return headers as pairs of name and value. Raises InvalidMessage."""
    if given is None:
        return ()
    return tuple(_header_of(pair, index) for pair in _pairs_of(given, index))


def _pairs_of(given: Any, index: int) -> list[Any]:
    """Return a mapping or pairs as a list. Raises InvalidMessage for anything else."""
    listed = given.items() if isinstance(given, Mapping) else given
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise InvalidMessage(
            f"Message {index}: headers is {given!r}. Accepted: a mapping, or pairs of name and "
            "value. Nothing was sent."
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
        shown = f"the header {name!r} is {value!r}"
    else:
        shown = f"the header {pair!r} is not a name and a value"
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
            f"Message {index}: time_to_live is {time_to_live!r} and expires_at is {expires_at!r}. "
            "Accepted: one of the two. Nothing was sent."
        )
    if time_to_live is not None:
        lives_ms = wait_ms(time_to_live)
        if lives_ms is None or not 1 <= lives_ms <= LONGEST_TIME_TO_LIVE_MS:
            raise InvalidMessage(
                f"Message {index}: time_to_live is {time_to_live!r}. Accepted: whole milliseconds, "
                f"1 to {LONGEST_TIME_TO_LIVE_MS}, or a duration. Nothing was sent."
            )
        return {"time_to_live_ms": lives_ms}
    if expires_at is None:
        return {}
    ends_ms = _moment_of(expires_at)
    if ends_ms is None or not 1 <= ends_ms <= HIGHEST_SCORE:
        raise InvalidMessage(
            f"Message {index}: expires_at is {expires_at!r}. Accepted: ms since 1970, 1 to "
            f"{HIGHEST_SCORE}, or a datetime with a time zone. Nothing was sent."
        )
    due = due_ms()
    if due is not None and ends_ms < due:
        raise InvalidMessage(
            f"Message {index}: expires_at is {ends_ms}, before the message is due ({due}), so it "
            "would never be delivered. Accepted: a later time. Nothing was sent."
        )
    return {"expires_at_ms": ends_ms}


def _moment_of(value: Any) -> int | None:
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
