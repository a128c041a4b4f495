"""The columns that make up the body of a message: payload, headers and expiry."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.message_bodies import LARGEST_BODY_BYTES, LONGEST_TIME_TO_LIVE_MS
from rmq_spark.protocol.bodies import Body, Headers
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.columns import (
    Rows,
    first_not_utf8,
    first_true,
    milliseconds,
    shown_value,
)
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.scores import HIGHEST_SCORE

BODY_COLUMNS = ("headers", "timeToLive", "expiresAt")
_BYTES = pa.large_binary()


def may_have_bodies(rows: Rows, topic: TopicDefinition, options: SinkOptions) -> bool:
    """Check whether rows have bodies: by their columns and options, the same for a whole write."""
    given = (options.time_to_live, options.expires_at)
    return (
        topic.keyed or any(name in rows.columns for name in BODY_COLUMNS) or given != (None, None)
    )


def bodies_of_rows(
    rows: Rows, topic: TopicDefinition, options: SinkOptions, due_ms: Any
) -> pa.Array | None:
    """Return the packed body of each row, empty for a row without one; None if no row has one.

    All calls of a stage have bodies, or none has, so an exactly-once write gets empty ones instead
    of None if its columns or options may give rows a body.
    due_ms: an int64 array of the times when the messages are due; None if expiresAt is not given.
    Raises InvalidMessage for the first row whose headers or expiry are not accepted.
    """
    if not may_have_bodies(rows, topic, options):
        return None
    headers = rows.columns.get("headers")
    lives = _milliseconds(rows, "timeToLive", LONGEST_TIME_TO_LIVE_MS, options.time_to_live)
    ends = _milliseconds(rows, "expiresAt", HIGHEST_SCORE, options.expires_at, lives)
    if headers is not None and headers.null_count == rows.length:
        headers = None
    if headers is None and lives.null_count == rows.length == ends.null_count:
        if topic.keyed:
            return _with_payload_only(_payloads(rows))
        packed = [b""] * rows.length
    else:
        if due_ms is not None:
            _refuse_ends_before_due(rows, ends, due_ms)
        packed = _packed(rows, topic, headers, lives, ends)
    return pa.array(packed, _BYTES) if options.exactly_once or any(packed) else None


def _packed(
    rows: Rows, topic: TopicDefinition, headers: pa.Array | None, lives: pa.Array, ends: pa.Array
) -> list[bytes]:
    """Pack the body of each row; empty for a row without one. Raises InvalidMessage."""
    payloads = _payloads(rows) if topic.keyed else pa.nulls(rows.length, _BYTES)
    nothing = None if topic.keyed else Body().pack()
    fields = zip(
        payloads.to_pylist(),
        _headers(rows, headers),
        ends.to_pylist(),
        lives.to_pylist(),
        strict=True,
    )
    packed = [Body(*each).pack() for each in fields]
    for row, body in enumerate(packed):
        if len(body) > LARGEST_BODY_BYTES:
            accepted = f"content and headers of at most {LARGEST_BODY_BYTES} bytes"
            raise rows.refusal("headers", row, accepted)
    return [b"" if body == nothing else body for body in packed]


def _payloads(rows: Rows) -> pa.Array:
    column = rows.columns.get("content")
    return pa.nulls(rows.length, _BYTES) if column is None else column.cast(_BYTES)


def _with_payload_only(payloads: pa.Array) -> pa.Array:
    kinds = pc.if_else(
        pc.is_null(payloads), pa.scalar(Body().pack(), _BYTES), pa.scalar(Body(b"").pack(), _BYTES)
    )
    nothing = pa.scalar(b"", _BYTES)
    return pc.binary_join_element_wise(kinds, payloads.fill_null(b""), nothing)


def _milliseconds(
    rows: Rows, name: str, highest: int, default: int | None, instead: pa.Array | None = None
) -> pa.Array:
    """Return a column of times or waits in ms, checked, with the default for rows without one.

    instead: a column whose values take the default's place.
    """
    values = pa.nulls(rows.length, pa.int64())
    if name in rows.columns:
        values = milliseconds(rows.columns[name])
        beyond = pc.or_(pc.less(values, 1), pc.greater(values, highest)).fill_null(False)
        if pc.any(beyond).as_py():
            raise rows.refusal(name, first_true(beyond), f"null, or 1 to {highest} ms")
    if instead is not None and pc.any(pc.and_(pc.is_valid(values), pc.is_valid(instead))).as_py():
        row = first_true(pc.and_(pc.is_valid(values), pc.is_valid(instead)))
        raise rows.refusal(name, row, "null, as the row has a timeToLive; one of the two")
    if default is None:
        return values
    has_own = pc.is_valid(values)
    if instead is not None:
        has_own = pc.or_(has_own, pc.is_valid(instead))
    return pc.if_else(has_own, values, default)


def _headers(rows: Rows, column: pa.Array | None) -> list[Headers]:
    if column is None:
        return [()] * rows.length
    _refuse_names_not_utf8(rows, column)
    key, value = (field.name for field in column.type.value_type)  # in any letter case
    found: list[Headers] = []
    for row, headers in enumerate(column.to_pylist()):
        pairs = tuple((each[key], each[value]) for each in headers or () if each is not None)
        if any(name is None for name, _ in pairs) or len(pairs) < len(headers or ()):
            accepted = "null, or headers that each have a key; a value may be null"
            raise rows.refusal("headers", row, accepted)
        found.append(pairs)
    return found


def _refuse_names_not_utf8(rows: Rows, column: pa.Array) -> None:
    at = first_not_utf8(pc.struct_field(pc.list_flatten(column), 0))
    if at is not None:
        row = pc.list_parent_indices(column)[at].as_py()
        accepted = (
            "null, or headers whose keys are valid UTF-8. Correct or drop the rows where "
            "exists(headers, h -> NOT is_valid_utf8(h.key))"
        )
        raise rows.refusal("headers", row, accepted)


def _refuse_ends_before_due(rows: Rows, ends: pa.Array, due_ms: Any) -> None:
    early = pc.less(ends, pa.array(due_ms)).fill_null(False)
    if pc.any(early).as_py():
        row = first_true(early)
        due = shown_value(pa.array(due_ms).cast(pa.timestamp("ms", "UTC")), row)
        accepted = f"a time not before the message is due, which is {due}"
        raise rows.refusal("expiresAt", row, accepted)
