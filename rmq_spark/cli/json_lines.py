"""Messages as lines of JSON, as rmq peek, dead and consume print them, for rmq send."""

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from rmq_spark.cli.output import print_remark
from rmq_spark.client.messages import Message
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidMessage, InvalidOption, quoted
from rmq_spark.options import EXPIRES_AT, TIME_TO_LIVE, typed_value
from rmq_spark.topics.parsing import Option, moment_or_relative
from rmq_spark.topics.types import TOPIC_TYPES, TopicType

_VALUES = {of.value_name: of for of_type in TOPIC_TYPES.values() for of in of_type.values}
_SENT = (
    *("content", "contentBase64", "key", "keyBase64", "headers", "slotBasis"),
    *(*_VALUES, "dueTime", TIME_TO_LIVE.name, EXPIRES_AT.name),
)
# What the commands print besides, which is not sent.
_OTHERS = (
    *("topic", "queue", "slot", "retriesLeft", "preparedAt", "consumer", "diedAt", "reason"),
    *("deliveryCount", "claimId", "claimedAt"),
)
_HEADERS = 'Accepted: a list such as [{"key": "source", "value": "web"}]'


def reader_of_json(queue: Queue) -> Callable[[Iterable[bytes]], Iterator[Message]]:
    """Return a function that yields the messages of lines, except of empty ones.

    It may be called again, for the lines that follow. Raises InvalidMessage. Messages whose expiry
    is past are left out with a remark: a queue keeps them until a claim.
    """
    began_ms, began_s, numbers = queue.now_ms(), time.monotonic(), count(1)

    def now_ms() -> int:
        return began_ms + int((time.monotonic() - began_s) * 1000)

    def read(lines: Iterable[bytes]) -> Iterator[Message]:
        for line, number in zip(lines, numbers, strict=False):
            if not line.strip():
                continue
            try:
                message = _message(json.loads(line), queue.definition.type, now_ms)
            except InvalidOption as error:
                raise InvalidMessage(f"Line {number}: {error}") from None
            except (ValueError, RecursionError) as error:
                raise InvalidMessage(f"Line {number} is not JSON: {error}.") from None
            if isinstance(message.expires_at, int) and message.expires_at <= now_ms():
                print_remark(f"Line {number} was left out: the time of its expiresAt is over.")
            else:
                yield message

    return read


def _message(found: Any, of_type: TopicType, now_ms: Callable[[], int]) -> Message:
    if not isinstance(found, dict):
        raise InvalidOption(
            f'It is {quoted(found)}. Accepted: an object such as {{"content": "a", "delay": "1h"}}.'
        )
    fields = {name: value for name, value in found.items() if value is not None}
    if unknown := fields.keys() - {*_SENT, *_OTHERS}:
        raise InvalidOption.of("field", min(unknown), f"{', '.join(_SENT)}; others of rmq peek")
    moment = moment_or_relative(now_ms)
    values = {
        of.keyword: _parsed(typed_value(of, now_ms).called(name), fields)
        for name, of in _VALUES.items()
        if name in fields
    }
    if not values and of_type.has_due_times and "dueTime" in fields:
        due_ms = _parsed(Option("dueTime", moment, ""), fields)
        wait_ms = max(of_type.lowest, due_ms - now_ms())
        values[of_type.keyword] = due_ms if of_type.can_be_past else wait_ms
    return Message(
        _bytes(fields, "content"),
        key=_bytes(fields, "key"),
        slot_basis=_bytes(fields, "slotBasis"),
        headers=[_header(one) for one in _list(fields.get("headers", []))] or None,
        time_to_live=_parsed(TIME_TO_LIVE, fields),
        expires_at=_parsed(replace(EXPIRES_AT, parser=moment), fields),
        **values,
    )


def _parsed(option: Option[int], fields: Mapping[str, Any]) -> Any:
    """Parse a field as text, or as a number of ms; None for a field that is not there."""
    if (value := fields.get(option.name)) is None:
        return None
    return option.parse(str(value) if type(value) is int else value)


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise InvalidOption(f"headers={quoted(found)} is not accepted. {_HEADERS}.")
    return found


def _header(found: Any) -> tuple[str, bytes | None]:
    if not isinstance(found, dict) or not isinstance(found.get("key"), str):
        raise InvalidOption(f"The header {quoted(found)} is not accepted. {_HEADERS}.")
    return found["key"], _bytes(found, "value")


def _bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    """Return the bytes of a field, as text or in Base64; None if neither is there."""
    if fields.get(name) is not None and fields.get(f"{name}Base64") is not None:
        raise InvalidOption(f"It has {name} and {name}Base64. Accepted: one of them.")
    for of_name, read in ((name, str.encode), (f"{name}Base64", _decoded)):
        if (value := fields.get(of_name)) is not None:
            try:
                return read(value)
            except (TypeError, ValueError):
                accepted = "text" if of_name == name else "text in Base64"
                raise InvalidOption.of(of_name, value, accepted) from None
    return None


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
