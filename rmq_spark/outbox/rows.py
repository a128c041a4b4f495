"""Messages as rows of the message table, and back."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rmq_spark.client.message_bodies import headers_of
from rmq_spark.client.messages import Message
from rmq_spark.errors import InvalidMessage
from rmq_spark.outbox.databases.database import Database
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
        self._fields = [name for name in layout.fields if name != "topic"]
        self._tracked = tracked
        self._binary = layout.binary
        times = {name for name in TIMES if name not in layout.whole_times}
        texts = {"headers"} if layout.binary else {"headers", "content"}
        shown = {name: database.ms_of(name) for name in times}
        shown |= {name: database.text_of(name) for name in texts}
        topic = "topic" if "topic" in layout.fields else "NULL"
        columns = ", ".join(["id", topic, *(shown.get(name, name) for name in self._fields)])
        self.read = f"SELECT {columns} FROM {tables.messages} WHERE state = 'sending'"
        places = [database.time_of("%s") if name in times else "%s" for name in layout.fields]
        self.insert = (
            f"INSERT INTO {tables.messages} ({', '.join(layout.fields)}, state) "
            f"VALUES ({', '.join(places)}, 'new')"
        )
        self._written = layout.fields

    def of(self, found: Sequence[Any]) -> Row:
        """Return the message of a row that ``read`` has found."""
        values = dict(zip(self._fields, found[2:], strict=True))
        reason = None
        headers = values.pop("headers", None)
        if headers is not None:
            try:
                headers = parse_headers(headers)
            except InvalidMessage as error:
                headers, reason = None, str(error)
        given = {FIELDS[name]: value for name, value in values.items() if value is not None}
        number = int(found[0])
        if self._tracked:
            headers = [*(headers or ()), (ID_HEADER, str(number))]
        if isinstance(given.get("content"), memoryview):
            given["content"] = bytes(given["content"])
        return Row(number, found[1], Message(headers=headers, **given), reason)

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
            if values[name] is not None and not isinstance(values[name], int):
                values[name] = ms_since_1970(values[name])
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


def _text(value: bytes | str | None, name: str, index: int) -> str | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidMessage(
            f"Message {index}: {name} is {value[:60]!r}, which is no UTF-8. Accepted: text, and "
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
    except (ValueError, binascii.Error):
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
