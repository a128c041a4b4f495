"""Messages as rows of the message table: written, read, marked with their results, deleted."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rmq_spark.client.messages import Message, headers_of
from rmq_spark.errors import InvalidMessage, InvalidOption, OutboxMisused, quoted
from rmq_spark.outbox.tables import FIELDS, TIMES, Layout, Tables, check_table
from rmq_spark.protocol.claims import Delivered
from rmq_spark.protocol.packing import chunks
from rmq_spark.sql.database import (
    IDS_A_STATEMENT,
    Database,
    DriverConnection,
    Refused,
    among,
    insert_exceptions,
)
from rmq_spark.topics.parsing import ms_since_1970, parse_wait_ms

# The header by which a consumer tells the outbox what became of a message.
ID_HEADER = "rmq-outbox-id"
_LONGEST_ID = 19  # digits
# The states that a mark sets, each with those that it expects to find. A message may be consumed
# before the relay has marked it as sent; a dead one may be requeued, and delivered then.
EXPECTED = {
    "delivered": ("sent", "sending", "dead"),
    "dead": ("sent", "sending"),
    "refused": ("sent", "sending"),
}
# States of messages that nobody waits for any more.
DONE = ("sent", "delivered")
# States of messages that were sent, or never will be.
ENDED = (*DONE, "dead", "refused")
# So many rows are looked at in one step, which takes some 10 ms.
_ROWS_A_STEP = 10_000
_BEFORE_ALL = -(2**63)
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
        number, topic, headers, *values = found
        given: dict[str, Any] = dict(zip(self._values, values, strict=True))
        reason = None
        if headers is not None:
            try:
                given["headers"] = _parse_headers(headers)
            except InvalidMessage as error:
                reason = str(error)
        if self._tracked:
            others = [each for each in given.get("headers", ()) if each[0] != ID_HEADER]
            given["headers"] = [*others, (ID_HEADER, str(number))]
        if isinstance(given.get("content"), memoryview):
            given["content"] = bytes(given["content"])
        return Row(number, topic, Message(**given), reason)

    def values_of(self, message: Message, topic: str | None, index: int) -> list[Any]:
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
        values["headers"] = _headers_text(headers) if headers else None
        for name in ("message_key", "slot_basis", "content"):
            if not (self._binary and name == "content" and isinstance(values[name], bytes)):
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
        of_zone = isinstance(value, datetime) and value.tzinfo is not None
        time_ms = ms_since_1970(value) if of_zone else value
        first_ms, last_ms = (0, 2**53) if name in self._whole_times else self._times_ms
        if not isinstance(time_ms, int) or not 0 <= time_ms <= last_ms:
            raise InvalidMessage(
                f"Message {index}: {name} is {value!r}. Accepted: ms since 1970, 0 (now) to "
                f"{last_ms}, or a datetime with a time zone. Nothing was inserted."
            )
        return max(time_ms, first_ms)


def _text(value: Any, name: str, index: int) -> str | None:
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else bytes.decode(value)
        text.encode()
    except (TypeError, UnicodeError) as error:
        why = ", which is not UTF-8" if isinstance(error, UnicodeError) else ""
        raise InvalidMessage(
            f"Message {index}: {name} is {quoted(value)}{why}. Accepted: text, and for content "
            "also bytes if its column holds bytes. Nothing was inserted."
        ) from None
    return text


def _headers_text(headers: Iterable[tuple[str, bytes | None]]) -> str:
    return json.dumps([_field(name, value) for name, value in headers])


def _field(name: str, value: bytes | None) -> dict[str, str]:
    if value is None:
        return {"key": name}
    try:
        return {"key": name, "value": value.decode()}
    except UnicodeDecodeError:
        return {"key": name, "valueBase64": base64.b64encode(value).decode()}


def _parse_headers(given: Any) -> list[tuple[str, bytes | None]]:
    """Parse headers as a database keeps them: JSON text, or what it stands for."""
    try:
        # Pairs, so that an object may have a name twice.
        found = json.loads(given, object_pairs_hook=_Pairs) if isinstance(given, str) else given
        if isinstance(found, _Pairs):
            return [(name, _value(value)) for name, value in found]
        if isinstance(found, Mapping):
            return [(name, _value(value)) for name, value in found.items()]
        if isinstance(found, list | None):
            return [_header(each) for each in found or ()]
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


def ids_of(messages: Iterable[Delivered | int]) -> list[int]:
    """Return the ids of messages in the outbox; of those that have no such header, none."""
    if isinstance(messages, int | str | Delivered):
        raise InvalidOption(
            f"mark takes a list of messages, not a single {type(messages).__name__}. Write "
            "mark(state, [...]).",
            name="messages",
        )
    ids = []
    for message in messages:
        if isinstance(message, int):
            ids.append(message)
            continue
        # The last one is of the relay; others were forwarded by a service.
        found = [value for name, value in getattr(message, "headers", ()) if name == ID_HEADER]
        value = found[-1] if found else None
        if value is not None and value.isdigit() and len(value) <= _LONGEST_ID:
            ids.append(int(value))
    return ids


def mark(
    connection: DriverConnection,
    tables: Tables,
    state: str,
    ids: Sequence[int],
    unless: str | None = None,
) -> int:
    """Set the state of messages, within the open transaction. Return how many it was set for.

    Compares and sets: a message in another state than those that are expected stays as it is, and
    gets a row in the exceptions table with both states. One that has the state already counts as
    set. unless: a state of messages to leave as they are, without a row in the exceptions table.
    Raises InvalidOption for an unknown state.
    """
    # A message lacks sent_at until its round is finished.
    timed = "sent_at" in check_table(connection, tables)
    if state not in EXPECTED:
        raise InvalidOption.of("state", state, ", ".join(EXPECTED))
    expected = ", ".join(f"'{each}'" for each in EXPECTED[state])
    sent_at = ", sent_at = COALESCE(sent_at, CURRENT_TIMESTAMP)" if timed else ""
    marked = 0
    for some in chunks(sorted(set(ids)), IDS_A_STATEMENT):
        these = among(some)
        # Lock them first: what is read now is what is found then.
        found = dict(
            connection.query(
                f"SELECT id, state FROM {tables.messages} WHERE {these} ORDER BY id FOR UPDATE"
            )
        )
        connection.run(
            f"UPDATE {tables.messages} SET state = %s{sent_at} "
            f"WHERE {these} AND state IN ({expected})",
            [state],
        )
        accepted = {*EXPECTED[state], state}
        marked += sum(each in accepted for each in found.values())
        unexpected = [n for n in some if found.get(n) not in {*accepted, unless or state}]
        rows = [_unexpected(tables, state, number, found.get(number)) for number in unexpected]
        insert_exceptions(connection, tables.exceptions, rows)
    return marked


def _unexpected(tables: Tables, state: str, number: int, found: str | None) -> Refused:
    here = "it has no row here" if found is None else f"its state here is {found}"
    return Refused(
        *(f"{tables.messages} id {number}", None, None),
        f"The message is {state}, but {here}. Expected: {', '.join(EXPECTED[state])}.",
    )


class Cleaning:
    """Deletes messages in steps along the primary key, so that nothing waits for it for long.

    older_ms: messages that were sent so many ms ago are old. states: only messages in these states
    are deleted.
    """

    def __init__(self, tables: Tables, older_ms: int, states: Sequence[str] = DONE) -> None:
        self._tables = tables
        self._older_ms = older_ms
        self._states = tuple(states)
        self._last = _BEFORE_ALL
        self._is_checked = False
        self.deleted = 0

    def step(self, connection: DriverConnection) -> bool:
        """Delete the old ones of the next rows. Return False at the end; then it starts again."""
        table = self._tables.messages
        with connection.transaction():
            self._check(connection)
            ((top,),) = connection.query(
                f"SELECT max(id) FROM (SELECT id FROM {table} WHERE id > {self._last} "
                f"ORDER BY id LIMIT {_ROWS_A_STEP}) AS step"
            )
            if top is None:
                self._last = _BEFORE_ALL
                return False
            done = f"state IN ({', '.join(['%s'] * len(self._states))})"
            # Found first and deleted then: a DELETE would wait for rows that others have locked.
            old = connection.query(
                f"SELECT id FROM {table} WHERE id > {self._last} AND id <= {top} "
                f"AND {done} AND sent_at < {connection.database.ago(self._older_ms)}",
                self._states,
            )
            for some in chunks([number for (number,) in old], IDS_A_STATEMENT):
                self.deleted += connection.run(
                    f"DELETE FROM {table} WHERE {among(some)} AND {done}", self._states
                )
            self._last = int(top)
        return True

    def _check(self, connection: DriverConnection) -> None:
        if self._is_checked:
            return
        if "sent_at" not in check_table(connection, self._tables):
            raise OutboxMisused(
                f"The table {self._tables.messages} has no column sent_at, which shows when "
                "a message was sent. Add the column, or delete messages by columns of your own."
            )
        self._is_checked = True
