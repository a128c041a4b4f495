"""Messages as rows of the message table, and back."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rmq_spark.client.message_bodies import headers_of
from rmq_spark.client.messages import Message
from rmq_spark.errors import InvalidMessage
from rmq_spark.outbox.databases.sql_database import Database
from rmq_spark.outbox.tables import FIELDS, TIMES, Layout, Tables
from rmq_spark.topics.durations import parse_wait_ms
from rmq_spark.topics.parsers import ms_since_1970

# The header by which a consumer tells the outbox what became of a message.
ID_HEADER = "rmq-outbox-id"
_ACCEPTED = (
    'null, a JSON object of texts such as {"source": "web"}, or a JSON array such as '
    '[{"key": "source", "value": "web"}], with valueBase64 in place of value for bytes'
)
_DURATIONS = ("time_range", "delay", "time_to_live")


class Row(NamedTuple):
    """A row of the message table: its id, its topic, and the message; or why it is refused."""

    id: int
    topic: str | None
    message: Message
    reason: str | None = None


class Rows:
    """Reads and writes rows of a message table of a layout.

    tracked: whether messages get the header that names their row.
    """

    def __init__(
        self, database: Database, tables: Tables, layout: Layout, *, tracked: bool = False
    ) -> None:
        self._tracked = tracked
        self._binary = layout.binary
        times = {name for name in TIMES if name not in layout.whole_times}
        texts = {"headers"} if layout.binary else {"headers", "content"}
        shown = {name: database.ms_of(name) for name in times}
        shown |= {name: database.text_of(name) for name in texts}
        topic = "topic" if "topic" in layout.fields else "NULL"
        read = [name for name in layout.fields if name not in ("topic", "headers")]
        headers = shown["headers"] if "headers" in layout.fields else "NULL"
        self._values = [FIELDS[name] for name in read]
        # What ``of`` reads.
        self.columns = ", ".join(["id", topic, headers, *(shown.get(n, n) for n in read)])
        places = [database.time_of("%s") if name in times else "%s" for name in layout.fields]
        self.insert = (
            f"INSERT INTO {tables.messages} ({', '.join(layout.fields)}, state) "
            f"VALUES ({', '.join(places)}, 'new')"
        )
        self._written = layout.fields
        self._whole_times = layout.whole_times
        self._times_ms = database.times_ms

    def of(self, found: Sequence[Any]) -> Row:
        """Return the message of a row of ``columns``."""
        number, topic, headers, *values = found
        given: dict[str, Any] = dict(zip(self._values, values, strict=True))
        reason = None
        if headers is not None:
            try:
                given["headers"] = parse_headers(headers)
            except InvalidMessage as error:
                reason = str(error)
        if self._tracked:
            others = [each for each in given.get("headers", ()) if each[0] != ID_HEADER]
            given["headers"] = [*others, (ID_HEADER, str(number))]
        if isinstance(given.get("content"), memoryview):
            given["content"] = bytes(given["content"])
        return Row(number, topic, Message(**given), reason)

    def values_of(self, message: Message, topic: str | None, index: int) -> list[Any]:
        """Return the values of ``insert`` for a message. Raises InvalidMessage."""
        values = {
            name: getattr(message, FIELDS[name]) for name in FIELDS.keys() - {"topic", "headers"}
        }
        values["topic"] = topic
        for name in _DURATIONS:
            if values[name] is not None:
                values[name] = parse_wait_ms(name, values[name])
        for name in TIMES:
            if values[name] is not None:
                values[name] = self._time_ms(name, values[name], index)
        headers = headers_of(message.headers, index)
        values["headers"] = headers_text(headers) if headers else None
        for name in ("message_key", "slot_basis", *(() if self._binary else ("content",))):
            values[name] = _text(values[name], name, index)
        if self._binary and isinstance(values["content"], str):
            values["content"] = values["content"].encode()
        lost = [n for n, v in values.items() if v is not None and n not in self._written]
        if lost:
            raise InvalidMessage(
                f"Message {index} has {', '.join(FIELDS[name] for name in lost)}, and the message "
                f"table has no column {', '.join(lost)}. Add it. Nothing was inserted."
            )
        return [values[name] for name in self._written]

    def _time_ms(self, name: str, value: Any, index: int) -> int:
        """Return a time in ms since 1970, within what its column holds."""
        of_zone = isinstance(value, datetime) and value.tzinfo is not None
        time_ms = ms_since_1970(value) if of_zone else value
        first_ms, last_ms = (0, 2**53) if name in self._whole_times else self._times_ms
        if not isinstance(time_ms, int) or not 0 <= time_ms <= last_ms:
            raise InvalidMessage(
                f"Message {index}: {name} is {value!r}. Accepted: ms since 1970, 0 (now) to "
                f"{last_ms}, or a time with a zone. Nothing was inserted."
            )
        return max(time_ms, first_ms)


def _text(value: bytes | str | None, name: str, index: int) -> str | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidMessage(
            f"Message {index}: {name} is {value[:60]!r}, which is not UTF-8. Accepted: text, and "
            "for content also bytes if its column holds bytes. Nothing was inserted."
        ) from None


def headers_text(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Write headers as JSON: an array of key and value, or valueBase64 for bytes."""
    return json.dumps([_field(name, value) for name, value in headers])


def _field(name: str, value: bytes | None) -> dict[str, str]:
    if value is None:
        return {"key": name}
    try:
        return {"key": name, "value": value.decode()}
    except UnicodeDecodeError:
        return {"key": name, "valueBase64": base64.b64encode(value).decode()}


def parse_headers(given: Any) -> list[tuple[str, bytes | None]]:
    """Parse headers as a database keeps them: JSON text, or what it stands for.

    Raises InvalidMessage.
    """
    try:
        # Pairs, so that an object may have a name twice.
        found = json.loads(given, object_pairs_hook=_Pairs) if isinstance(given, str) else given
        if isinstance(found, _Pairs):
            return [(name, _value(value)) for name, value in found]
        if isinstance(found, Mapping):
            return [(name, _value(value)) for name, value in found.items()]
        if isinstance(found, list):
            return [_header(each) for each in found]
    except (ValueError, RecursionError, binascii.Error):
        pass
    raise InvalidMessage(f"headers is {str(given)[:60]!r}. Accepted: {_ACCEPTED}.")


class _Pairs(list[tuple[str, Any]]):
    """The names and values of a JSON object."""


def _header(given: Any) -> tuple[str, bytes | None]:
    fields = dict(given) if isinstance(given, _Pairs | Mapping) else {}
    key, value = fields.pop("key", None), fields.pop("value", None)
    encoded = fields.pop("valueBase64", None)
    if fields or not isinstance(key, str) or None not in (value, encoded):
        raise ValueError
    if encoded is not None:
        return key, base64.b64decode(_value(encoded) or b"", validate=True)
    return key, _value(value)


def _value(value: Any) -> bytes | None:
    if not isinstance(value, str | None):
        raise ValueError
    return None if value is None else value.encode()
