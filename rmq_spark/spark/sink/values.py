"""The values of rows: delays, expiry, and the bodies of messages."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.messages import LARGEST_BODY_BYTES, LONGEST_TIME_TO_LIVE_MS
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.bodies import Body, Headers
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.columns import Rows, first_true, milliseconds, row_not_utf8, shown_value
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.keys import HIGHEST_SCORE
from rmq_spark.topics.parsing import (
    ACCEPTED_DURATION,
    LONGEST_DURATION_MS,
    duration_text,
    parse_duration_ms,
)

BODY_COLUMNS = ("headers", "timeToLive", "expiresAt")
_BYTES = pa.large_binary()


@dataclass(frozen=True)
class Delays:
    """The delays of rows in ms, and which rows have one; ms is 0 for the others."""

    ms: Any
    given: Any


def check_delay_option(topic: TopicDefinition, columns: set[str], options: SinkOptions) -> None:
    """Refuse the option ``delay`` for a topic that takes no delay.

    With a column topic, the option is for those topics that take delays.
    """
    of_type = topic.type
    if options.delay is not None and of_type.delay is None and "topic" not in columns:
        raise InvalidOption(
            f"The option delay={options.delay} (ms) is not for topic {topic.name}, which is "
            f"{of_type}. Accepted there: {of_type.value_name}, "
            f"{of_type.parser.accepted_plain}."
        )


def message_delays(rows: Rows, topic: TopicDefinition, default_ms: int | None) -> Delays | None:
    """Return the delays of rows to send or requeue; None if no row has one."""
    of_type, column = topic.type, rows.columns.get("delay")
    name, values = of_type.value_name, rows.columns.get(of_type.value_name)
    if of_type.delay is None:
        if column is not None and column.null_count < rows.length:
            accepted = f"null; the topic {topic.name} is {of_type}, which takes {name} instead"
            raise rows.refusal("delay", first_true(pc.is_valid(column)), accepted)
        return None
    if column is None and default_ms is None:
        return None
    delays = pa.nulls(rows.length, pa.int64())
    if column is not None:
        delays = _delay_column(rows, of_type.delay.highest, f"null in a row with {name}")
    has_value = pa.array([False] * rows.length) if values is None else pc.is_valid(values)
    both = pc.and_(pc.is_valid(delays), has_value)
    if pc.any(both).as_py():
        row = first_true(both)
        shown = shown_value(values, row)
        raise rows.refusal("delay", row, f"null, as {name} is {shown}; a row has one of them")
    if default_ms is not None:
        delays = pc.if_else(has_value, delays, delays.fill_null(default_ms))
    given = pc.is_valid(delays).to_numpy(zero_copy_only=False)
    return Delays(delays.fill_null(0).to_numpy(), given) if given.any() else None


def retry_delays(rows: Rows, default_ms: int | None) -> list[int | None]:
    if "delay" not in rows.columns:
        return [default_ms] * rows.length
    delays = _delay_column(rows, LONGEST_DURATION_MS, "null for the topic's backoff")
    return [default_ms if ms is None else ms for ms in delays.to_pylist()]


def _delay_column(rows: Rows, longest_ms: int, null: str) -> pa.Array:
    """Return the column delay in ms, checked. null: what a null stands for, for errors."""
    column = rows.columns["delay"]
    longest = duration_text(longest_ms)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        accepted = f"{ACCEPTED_DURATION}, up to {longest}; {null}"
        rows.check_texts("delay", accepted)
        texts: list[str | None] = column.to_pylist()
        delays = {text: _duration_or_none(text, longest_ms) for text in set(texts)}
        for row, text in enumerate(texts):
            if text is not None and delays[text] is None:
                raise rows.refusal("delay", row, accepted)
        return pa.array([delays[text] for text in texts], pa.int64())
    values = milliseconds(column)
    beyond = pc.or_(pc.less(values, 0), pc.greater(values, longest_ms))
    refused = beyond.fill_null(False)
    if pc.any(refused).as_py():
        unit = "" if longest.endswith("ms") else f" ({longest})"
        accepted = f"0 to {longest_ms} ms{unit}; {null}"
        raise rows.refusal("delay", first_true(refused), accepted)
    return values


def _duration_or_none(text: str | None, longest_ms: int) -> int | None:
    try:
        delay_ms = None if text is None else parse_duration_ms("delay", text)
    except InvalidOption:
        return None
    return delay_ms if delay_ms is not None and delay_ms <= longest_ms else None


def may_have_bodies(rows: Rows, topic: TopicDefinition, options: SinkOptions) -> bool:
    """Check whether rows have bodies: by their columns and options, the same for a whole write."""
    given = (options.time_to_live, options.expires_at, topic.time_to_live_ms)
    return topic.keyed or any(name in rows.columns for name in BODY_COLUMNS) or any(given)


def bodies_of_rows(
    rows: Rows, topic: TopicDefinition, options: SinkOptions, due_ms: Any
) -> pa.Array | None:
    """Return the packed body of each row, empty for a row without one; None if no row has one.

    All calls of a stage have bodies, or none has, so an exactly-once write gets empty ones instead
    of None if its columns or options may give rows a body. due_ms: when the messages are due; None
    if expiresAt is not given.
    """
    if not may_have_bodies(rows, topic, options):
        return None
    headers = rows.columns.get("headers")
    lives = _milliseconds(rows, "timeToLive", LONGEST_TIME_TO_LIVE_MS)
    ends = _milliseconds(rows, "expiresAt", HIGHEST_SCORE)
    both = pc.and_(pc.is_valid(lives), pc.is_valid(ends))
    if pc.any(both).as_py():
        accepted = "null, as the row has a timeToLive; one of the two"
        raise rows.refusal("expiresAt", first_true(both), accepted)
    neither = pc.and_(pc.is_null(lives), pc.is_null(ends))
    if options.expires_at is not None:
        ends = pc.if_else(neither, options.expires_at, ends)
    elif default := options.time_to_live or topic.time_to_live_ms:
        lives = pc.if_else(neither, default, lives)
    if headers is not None and headers.null_count == rows.length:
        headers = None
    if headers is None and lives.null_count == rows.length == ends.null_count:
        if topic.keyed:
            return _with_payload_only(_payloads(rows))
        packed = [b""] * rows.length
    else:
        if due_ms is not None:
            _refuse_ends_before_due(rows, ends, due_ms, options.expires_at)
        packed = _packed(rows, topic, headers, lives, ends)
    return pa.array(packed, _BYTES) if options.exactly_once or any(packed) else None


def _packed(
    rows: Rows, topic: TopicDefinition, headers: pa.Array | None, lives: pa.Array, ends: pa.Array
) -> list[bytes]:
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


def _milliseconds(rows: Rows, name: str, highest: int) -> pa.Array:
    """Return a column of times or waits in ms."""
    values = pa.nulls(rows.length, pa.int64())
    if name in rows.columns:
        values = milliseconds(rows.columns[name])
        beyond = pc.or_(pc.less(values, 1), pc.greater(values, highest)).fill_null(False)
        if pc.any(beyond).as_py():
            raise rows.refusal(name, first_true(beyond), f"null, or 1 to {highest} ms")
    return values


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
    at = row_not_utf8(pc.struct_field(pc.list_flatten(column), 0))
    if at is not None:
        row = pc.list_parent_indices(column)[at].as_py()
        accepted = (
            "null, or headers whose keys are valid UTF-8. Correct or drop the rows where "
            "exists(headers, h -> NOT is_valid_utf8(h.key))"
        )
        raise rows.refusal("headers", row, accepted)


def _refuse_ends_before_due(rows: Rows, ends: pa.Array, due_ms: Any, option: int | None) -> None:
    early = pc.less(ends, pa.array(due_ms)).fill_null(False)
    if pc.any(early).as_py():
        row = first_true(early)
        due = shown_value(pa.array(due_ms).cast(pa.timestamp("ms", "UTC")), row)
        accepted = f"a time not before the message is due, which is {due}"
        raise rows.refusal("expiresAt", row, accepted, option)
