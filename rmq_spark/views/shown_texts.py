"""Texts and JSON values for times, durations, counts and contents."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rmq_spark.protocol.bodies import Headers

SHOWN_BYTES = 200


def messages_text(how_many: int) -> str:
    """Format a number of messages, such as ``1 message`` or ``2,000 messages``."""
    return count_text(how_many, "message")


def count_text(how_many: int, one: str, several: str = "") -> str:
    """Format a number of things, such as ``1 slot`` or ``64 slots``.

    several: the plural, unless it is the singular with an s.
    """
    return f"{how_many:,} {one if how_many == 1 else several or f'{one}s'}"


def time_text(ms: int | None) -> str | None:
    """Format a time in ms since 1970 as ISO 8601 in UTC.

    A time beyond Python's calendar becomes ``N ms``, and None stays None.
    """
    if ms is None:
        return None
    try:
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return text.replace("+00:00", "Z")


def time_json(ms: int | None) -> str | int | None:
    """Convert a time in ms since 1970 for JSON, to ISO 8601 in UTC.

    A time beyond Python's calendar stays a number, and None stays None.
    """
    text = time_text(ms)
    return ms if text is None or text.endswith(" ms") else text


def age_text(ms: int | None) -> str:
    """Format a duration in ms in its two largest units, such as ``2h5m``; "" for None."""
    if ms is None:
        return ""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            smaller = {"d": ("h", 3600), "h": ("m", 60), "m": ("s", 1)}[unit]
            return f"{seconds // size}{unit}{seconds % size // smaller[1]}{smaller[0]}"
    return f"{seconds}s"


def content_text(content: bytes | None) -> str:
    """Format a content or key for people. Escapes control characters and bytes that are not UTF-8.

    None becomes the empty text. Cuts a content of more than SHOWN_BYTES; --json shows all of it.
    """
    if content is None:
        return ""
    if len(content) > SHOWN_BYTES:
        return f"{content_text(content[:SHOWN_BYTES])}... ({len(content):,} bytes)"
    text = content.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def content_json(content: bytes | None, name: str = "content") -> dict[str, str | None]:
    """Convert a content to a JSON field: content, or contentBase64 if it is not UTF-8.

    name: the field's name, such as "key".
    """
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content or b"").decode()}


def headers_json(headers: Headers) -> list[dict[str, str | None]]:
    """Convert headers to JSON: the key of each, and its value as value or valueBase64."""
    return [{"key": name, **content_json(value, "value")} for name, value in headers]


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a mapping, without the values that are None."""
    return {name: value for name, value in values.items() if value is not None}
