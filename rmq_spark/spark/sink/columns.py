"""The columns of a write: which there are, their checks, and their packing for the scripts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from rmq_spark.client.messages import LONGEST_KEY_BYTES
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.protocol.names import ClaimId
from rmq_spark.protocol.packing import PackedPairs, head_of
from rmq_spark.spark.schemas import first_not_utf8
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.reasons import parse_reason

# A large batch puts many messages of a slot into one call, so Redis switches less often between
# the sorted sets of slots. With 64 slots, a message costs twice as much in a call of 150 messages
# as in a call of 2000.
ROWS_A_BATCH = 131_072
BYTES_A_BATCH = 32 * 1024 * 1024
_BYTES = pa.large_binary()
_TEXT = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
# The Spark types that each column accepts, and their names in errors.
COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": (_TEXT, "STRING or BINARY"),
    "content": (_TEXT, "STRING or BINARY"),
    "slotBasis": (_TEXT, "STRING or BINARY"),
    "timeRange": ((*_WHOLE, DayTimeIntervalType), "INT or BIGINT (ms), or INTERVAL DAY TO SECOND"),
    "priority": (_WHOLE, "INT or BIGINT"),
    "fixedTime": ((*_WHOLE, TimestampType), "TIMESTAMP, or BIGINT (ms since 1970)"),
    "headers": ((ArrayType,), "ARRAY<STRUCT<key STRING, value BINARY>>"),
    "timeToLive": ((*_WHOLE, DayTimeIntervalType), "INT or BIGINT (ms), or INTERVAL DAY TO SECOND"),
    "expiresAt": ((*_WHOLE, TimestampType), "TIMESTAMP, or BIGINT (ms since 1970)"),
    "topic": ((StringType,), "STRING"),
    "slot": (_WHOLE, "INT"),
    "claimId": ((StringType,), "STRING"),
    "reason": ((StringType,), "STRING"),
    "delay": (
        (StringType, *_WHOLE, DayTimeIntervalType),
        "STRING (a duration such as 30s), INTERVAL DAY TO SECOND, or BIGINT (ms)",
    ),
}
# Each error for a row ends with this text.
NOTHING_SENT = " Nothing of this batch was sent."
_REMEDIES = {"headers": "Cast it; of a map h of texts to texts, cast map_entries(h)."}


def coalesce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches into larger ones, in order, of up to ROWS_A_BATCH and BYTES_A_BATCH.

    A batch that Spark made larger stays whole. Empty batches are dropped.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (
            rows + batch.num_rows > ROWS_A_BATCH or size + batch.nbytes > BYTES_A_BATCH
        ):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        if batch.num_rows:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def packed_by_slot(
    scores: Any, contents: pa.Array, slots: Any, bodies: pa.Array | None = None
) -> tuple[dict[int, PackedPairs], dict[int, PackedPairs]]:
    """Group rows by slot and pack each group for a script, in the order of the rows.

    slots: whole numbers below 65536. Returns score, content, score, content, ... by slot; and
    content, body, content, body, ... by slot, which is empty without bodies.
    """
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    ordered = _ordered(contents, order)
    scores, of_slots = scores[order], runs(slots[order])
    text, starts = _packed(pa.array(scores).cast(pa.string()).cast(_BYTES), ordered)
    sizes = np.diff(starts)
    pairs = {
        slot: PackedPairs(
            *(text, starts[start : end + 1]),
            *(int(scores[start:end].min()), int(sizes[start:end].max())),
        )
        for slot, start, end in of_slots
    }
    if bodies is None:
        return pairs, {}
    text, starts = _packed(ordered, _ordered(bodies, order))
    return pairs, {
        slot: PackedPairs(text, starts[start : end + 1], 0, 0) for slot, start, end in of_slots
    }


def _ordered(texts: pa.Array, order: Any) -> pa.Array:
    return texts.cast(_BYTES).take(pa.array(order))  # Arrow has no take for string views


def rows_by_slot(slots: Any) -> list[tuple[int, Any]]:
    """Group row positions by slot. slots: an array of whole numbers below 65536."""
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    return [(slot, order[start:end]) for slot, start, end in runs(slots[order])]


def runs(ordered: Any) -> list[tuple[int, int, int]]:
    """Find the runs of equal values in sorted slots. Returns (slot, start, end), end exclusive."""
    starts = np.flatnonzero(np.diff(ordered.astype(np.int64), prepend=-1)).tolist()
    ends = [*starts[1:], len(ordered)]
    return [(int(ordered[start]), start, end) for start, end in zip(starts, ends, strict=True)]


def _packed(firsts: pa.Array, seconds: pa.Array) -> tuple[memoryview, Any]:
    """Encode two texts of each row in MessagePack; return them, and where each row begins."""
    nothing = pa.scalar(b"", _BYTES)
    joined = pc.binary_join_element_wise(
        _headers(firsts), firsts, _headers(seconds), seconds, nothing
    )
    _, starts, text = joined.buffers()
    return memoryview(text), np.frombuffer(starts, np.int64)


def _headers(texts: pa.Array) -> pa.Array:
    """Build the MessagePack header of each text. Texts of the same length share one."""
    lengths, which = np.unique(pc.binary_length(texts).to_numpy(), return_inverse=True)
    return pa.array([head_of(length) for length in lengths.tolist()], _BYTES).take(pa.array(which))


def locate_columns(
    schema: StructType, operation: str, columns: Sequence[str], required: Sequence[str]
) -> dict[str, int]:
    """Find the columns of a schema. Returns their positions by name, spelt as in ``COLUMNS``."""
    proper = {name.lower(): name for name in columns}
    found: dict[str, int] = {}
    for at, field in enumerate(schema.fields):
        name = proper.get(field.name.lower())
        if name is None:
            near = get_close_matches(field.name.lower(), proper, 1)
            meant = f"Did you mean {proper[near[0]]}? " if near else ""
            raise InvalidMessage(
                f"Unknown column {field.name} for writing rmq with operation {operation}. {meant}"
                f"Accepted: {', '.join(columns)}. Drop it, or make it part of content."
            )
        types, accepted = COLUMNS[name]
        if not isinstance(field.dataType, types) or not _fits_headers(name, field.dataType):
            raise InvalidMessage(
                f"The column {name} is {field.dataType.simpleString().upper()}. "
                f"Accepted: {accepted}. {_REMEDIES.get(name, 'Cast it.')}"
            )
        if name in found:
            raise InvalidMessage(
                f"The column {name} occurs twice (letter case does not count). Accepted: once. "
                "Drop or rename one."
            )
        found[name] = at
    for name in required:
        if name not in found:
            raise InvalidMessage(
                f"The column {name} is missing; there are {', '.join(schema.fieldNames())}. "
                f"Accepted: a column named {name}, {COLUMNS[name][1]}."
            )
    return found


def _fits_headers(name: str, of_type: DataType) -> bool:
    """Check the type of the column headers: that of Spark's Kafka source and sink."""
    if name != "headers" or not isinstance(of_type, ArrayType):
        return True
    fields = of_type.elementType.fields if isinstance(of_type.elementType, StructType) else []
    found = [(field.name.lower(), field.dataType) for field in fields]
    return found == [("key", StringType()), ("value", BinaryType())]


@dataclass(frozen=True)
class Rows:
    """Rows of one Arrow batch. positions: theirs in the batch; None for all rows."""

    columns: dict[str, pa.Array]
    length: int
    positions: Any = None

    def only(self, indices: Any) -> "Rows":
        """Select rows of a whole batch. Errors still show their positions in that batch."""
        wanted = pa.array(indices)
        columns = {name: column.take(wanted) for name, column in self.columns.items()}
        return Rows(columns, len(wanted), indices)

    def names(self, topic: TopicDefinition) -> pa.Array:
        """Return what each message merges by: the column key in a keyed topic, else content."""
        of_topic = f"the topic {topic.name} is {'' if topic.keyed else 'not '}keyed"
        name = "key" if topic.keyed else "content"
        if name not in self.columns:
            raise InvalidMessage(
                f"There is no column {name}. Accepted: {COLUMNS[name][1]}; {of_topic}."
                f"{NOTHING_SENT}"
            )
        column, keys = self.columns[name], self.columns.get("key")
        if column.null_count:
            row = first_true(pc.is_null(column))
            raise self.refusal(name, row, f"STRING or BINARY, not null; {of_topic}")
        if topic.keyed:
            lengths = pc.binary_length(column.cast(pa.large_binary()))
            wrong = pc.or_(pc.less(lengths, 1), pc.greater(lengths, LONGEST_KEY_BYTES))
            if pc.any(wrong).as_py():
                accepted = f"1 to {LONGEST_KEY_BYTES} bytes; {of_topic}"
                raise self.refusal(name, first_true(wrong), accepted)
        elif keys is not None and keys.null_count < self.length:
            accepted = (
                f"null; {of_topic}: leave the column out, or write to a topic with keyed=true"
            )
            raise self.refusal("key", first_true(pc.is_valid(keys)), accepted)
        return column

    def bases(self, names: Any, default: bytes | None) -> Any:
        """Return the bytes that determine the slot of each row, as an object array."""
        fallback = names if default is None else np.full(self.length, default, object)
        if "slotBasis" not in self.columns:
            return fallback
        column = self.columns["slotBasis"]
        bases = bytes_of(column)
        if column.null_count:
            missing = pc.is_null(column).to_numpy(zero_copy_only=False)
            bases = np.where(missing, fallback, bases)
        return bases

    def values(
        self,
        topic: TopicDefinition,
        default: int | None,
        not_before_ms: int | None,
        delayed: Any = None,
    ) -> Any:
        """Return the value of each row that the topic type needs, as an int64 array.

        default: for rows without one. not_before_ms: a fixed time must be later than this. delayed:
        shows which rows have a delay instead, and so need no value; None if no row has one.
        """
        of_type = topic.type
        name = of_type.value_name
        of_topic = f"the topic {topic.name} is {of_type}"
        accepted = f"{of_type.parser.accepted_plain}; {of_topic}"
        if name in self.columns:
            accepted = f"{COLUMNS[name][1]}, {of_type.limits}; {of_topic}"
            column = milliseconds(self.columns[name])
            if default is not None:
                column = column.fill_null(default)
        else:
            column = pa.array(np.full(self.length, -1 if default is None else default, np.int64))
            if default is None and delayed is None:
                raise InvalidMessage(
                    f"There is neither a column nor an option {name}. Accepted: {accepted}."
                    f"{NOTHING_SENT}"
                )
        if delayed is not None:
            column = pc.if_else(pa.array(delayed), of_type.lowest, column)
        right = pc.and_(
            pc.greater_equal(column, of_type.lowest), pc.less_equal(column, of_type.highest)
        )
        if column.null_count or not pc.all(right).as_py():
            row = first_true(pc.invert(right.fill_null(False)))
            raise self.refusal(name, row, accepted, default)
        values = column.to_numpy(zero_copy_only=False)
        if not_before_ms is not None:
            past = values <= not_before_ms
            if delayed is not None:
                past &= ~delayed
            if past.any():
                after = f"a time after now ({not_before_ms}), as pastFixedTime is fail"
                raise self.refusal(name, int(past.argmax()), after, default)
        return values

    def slots(self, topic: TopicDefinition) -> Any:
        column = self.columns["slot"].cast(pa.int64())
        highest = topic.slot_amount - 1
        right = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, highest))
        right = right.fill_null(False)
        if not pc.all(right).as_py():
            accepted = f"0 to {highest}, the slots of topic {topic.name}"
            raise self.refusal("slot", first_true(pc.invert(right)), accepted)
        return column.to_numpy(zero_copy_only=False)

    def check_texts(self, name: str, accepted: str) -> None:
        row = row_not_utf8(self.columns[name])
        if row is not None:
            accepted = (
                f"{accepted}, in valid UTF-8. Correct or drop the rows where is_valid_utf8({name}) "
                "is false"
            )
            raise self.refusal(name, row, accepted)

    def claim_ids(self) -> list[str]:
        accepted = "the claimId that came with the message"
        self.check_texts("claimId", accepted)
        ids: list[str | None] = self.columns["claimId"].to_pylist()
        for claim_id in set(ids):
            try:
                ClaimId.parse(claim_id or "")
            except InvalidOption:
                raise self.refusal("claimId", ids.index(claim_id), accepted) from None
        return [claim_id or "" for claim_id in ids]

    def reasons(self) -> list[str]:
        if "reason" not in self.columns:
            return [""] * self.length
        self.check_texts("reason", "STRING; null for no reason")
        return [parse_reason(text) for text in self.columns["reason"].to_pylist()]

    def _shown(self, row: int) -> str:
        """Show by what a reader finds a row: its key, if it has one, or its content."""
        shown = [
            f"{name} {shown_value(self.columns[name], row)}"
            for name in ("key", "content")
            if name in self.columns and self.columns[name][row].is_valid
        ]
        return (shown or ["neither key nor content"])[0]

    def refusal(
        self, name: str, row: int, accepted: str, default: int | None = None
    ) -> InvalidMessage:
        """Create the error for one row. default: the option's value, shown if the row has none."""
        value = _value(self.columns[name], row) if name in self.columns else None
        shown = _shortened(value)
        if value is None and default is not None:
            shown = f"{default} (the option)"
        position = row if self.positions is None else self.positions[row]
        return InvalidMessage(
            f"Row {position} of its batch ({self._shown(row)}): "
            f"{name} is {shown}. Accepted: {accepted}.{NOTHING_SENT}"
        )


def bytes_of(column: pa.Array) -> Any:
    return column.cast(pa.binary()).to_numpy(zero_copy_only=False)


def row_not_utf8(column: pa.Array) -> int | None:
    """Return the first row of a STRING column that is not valid UTF-8.

    Such rows exist because Spark's cast from BINARY to STRING does not check the bytes.
    """
    values = column.cast(pa.large_binary())
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        found = first_not_utf8(values.to_pylist())
        return found and found[0]
    return None


def shown_value(column: pa.Array, row: int) -> str:
    """Format a value for an error: escaped, and at most 60 characters long."""
    return _shortened(_value(column, row))


def _value(column: pa.Array, row: int) -> Any:
    try:
        return column[row].as_py()
    except UnicodeDecodeError:  # not valid UTF-8: show the bytes
        return column[row].cast(_as_bytes(column.type)).as_py()
    except (OverflowError, ValueError):  # a time outside Python's range: show the number
        return column[row].cast(pa.int64()).as_py()


def _as_bytes(of_type: pa.DataType) -> pa.DataType:
    if not pa.types.is_list(of_type):
        return pa.large_binary()
    return pa.list_(pa.struct([(field.name, pa.large_binary()) for field in of_type.value_type]))


def milliseconds(column: pa.Array) -> pa.Array:
    """Convert times and intervals to ms; whole numbers are ms. A negative one becomes -1."""
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        micros = column.cast(pa.int64())
        # Arrow rounds a quotient towards zero: -1 us would become 0 ms, which can be accepted.
        return pc.if_else(pc.less(micros, 0), -1, pc.divide(micros, 1000))
    return column.cast(pa.int64())


def first_true(flags: pa.Array) -> int:
    return int(pc.index(flags, True).as_py())


def _shortened(value: Any) -> str:
    text = value.isoformat(" ") if isinstance(value, datetime) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
