"""The columns of a DataFrame to write: where they are, and which values they accept."""

from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Protocol

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

from rmq_spark.client.message_bodies import LONGEST_KEY_BYTES
from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.protocol.names import ClaimId
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.reasons import parse_reason

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


class _ColumnRules(Protocol):
    columns: tuple[str, ...]
    required: tuple[str, ...]


_REMEDIES = {"headers": "Cast it; of a map h of texts to texts, cast map_entries(h)."}


def locate_columns(schema: StructType, operation: str, takes: _ColumnRules) -> dict[str, int]:
    """Find the columns of a schema. Returns their positions by name, spelt as in ``COLUMNS``.

    takes: the columns that the operation accepts and requires. Raises InvalidMessage for a column
    that is not accepted, occurs twice, has another type, or is required but missing.
    """
    proper = {name.lower(): name for name in takes.columns}
    found: dict[str, int] = {}
    for at, field in enumerate(schema.fields):
        name = proper.get(field.name.lower())
        if name is None:
            near = get_close_matches(field.name.lower(), proper, 1)
            meant = f"Did you mean {proper[near[0]]}? " if near else ""
            raise InvalidMessage(
                f"Unknown column {field.name} for writing rmq with operation {operation}. {meant}"
                f"Accepted: {', '.join(takes.columns)}. Drop it, or make it part of content."
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
    for name in takes.required:
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
    """All or some rows of one Arrow batch.

    columns: an Arrow array for each column, by name. length: the number of rows. positions: the
    position of each row in the Arrow batch; None for all rows.
    """

    columns: dict[str, pa.Array]
    length: int
    positions: Any = None

    @staticmethod
    def of(batch: pa.RecordBatch, positions: dict[str, int]) -> "Rows":
        """Take all rows of a batch. positions: the position of each column, by name."""
        return Rows({name: batch.column(at) for name, at in positions.items()}, batch.num_rows)

    def only(self, indices: Any) -> "Rows":
        """Select rows of a whole batch. Errors still show their positions in that batch."""
        wanted = pa.array(indices)
        columns = {name: column.take(wanted) for name, column in self.columns.items()}
        return Rows(columns, len(wanted), indices)

    def names(self, topic: TopicDefinition) -> pa.Array:
        """Return what each message merges by: the column key in a keyed topic, else content.

        Raises InvalidMessage for the first row that has none, or a key where there must be none.
        """
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
        """Return the bytes that determine the slot of each row, as an object array.

        A row uses its slotBasis, or else the default, or else its key or content. names: those of
        all rows, as an object array.
        """
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

        It is a time range in ms, a priority, or a fixed time in ms since 1970. default: the value
        for rows without one. not_before_ms: a fixed time must be later than this; None accepts any.
        delayed: an array that shows which rows have a delay instead, and so need no value; None if
        no row has one. Raises InvalidMessage for the first row whose value is missing or not
        accepted.
        """
        of_type = topic.type
        name = of_type.value_name
        accepted = f"{of_type.accepted}; the topic {topic.name} is {of_type}"
        if name in self.columns:
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
        """Return the slot of each row from the column slot, as an int64 array.

        Raises InvalidMessage for the first row whose slot is null or does not exist in the topic.
        """
        column = self.columns["slot"].cast(pa.int64())
        highest = topic.slot_amount - 1
        right = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, highest))
        right = right.fill_null(False)
        if not pc.all(right).as_py():
            accepted = f"0 to {highest}, the slots of topic {topic.name}"
            raise self.refusal("slot", first_true(pc.invert(right)), accepted)
        return column.to_numpy(zero_copy_only=False)

    def check_texts(self, name: str, accepted: str) -> None:
        """Check that a STRING column is valid UTF-8.

        accepted: the accepted values, for the error. Raises InvalidMessage for the first row that
        is not valid UTF-8.
        """
        row = first_not_utf8(self.columns[name])
        if row is not None:
            accepted = (
                f"{accepted}, in valid UTF-8. Correct or drop the rows where is_valid_utf8({name}) "
                "is false"
            )
            raise self.refusal(name, row, accepted)

    def claim_ids(self) -> list[str]:
        """Return the claim id of each row.

        Raises InvalidMessage for the first row whose claimId is null or not a claim id.
        """
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
        """Return the reason of each row; empty for a row without one. Raises InvalidMessage."""
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
        """Create the error for one row, which shows the row's position, content and value.

        name: the column that is not accepted. row: the index in these rows. default: the value of
        the option, which the error shows for a row without a value.
        """
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
    """Return texts as an object array of bytes."""
    return column.cast(pa.binary()).to_numpy(zero_copy_only=False)


def first_not_utf8(column: pa.Array) -> int | None:
    """Return the index of the first row of a STRING column that is not valid UTF-8, or None.

    Such rows exist because Spark's cast from BINARY to STRING does not check the bytes.
    """
    values = column.cast(pa.large_binary())
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        for row, value in enumerate(values.to_pylist()):
            if not _is_utf8(value or b""):
                return row
    return None


def shown_value(column: pa.Array, row: int) -> str:
    """Format a value for an error: escaped, and at most 60 characters long."""
    return _shortened(_value(column, row))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _value(column: pa.Array, row: int) -> Any:
    try:
        return column[row].as_py()
    except UnicodeDecodeError:  # not valid UTF-8: show the bytes
        return column[row].cast(_as_bytes(column.type)).as_py()
    except (OverflowError, ValueError):  # a time outside Python's range: show the number
        return column[row].cast(pa.int64()).as_py()


def _as_bytes(of_type: pa.DataType) -> pa.DataType:
    """Return the type for texts, or headers, whose texts are shown as bytes."""
    if not pa.types.is_list(of_type):
        return pa.large_binary()
    return pa.list_(pa.struct([(field.name, pa.large_binary()) for field in of_type.value_type]))


def milliseconds(column: pa.Array) -> pa.Array:
    """Convert times and intervals from Arrow's microseconds to ms. Whole numbers are ms already.

    A negative time or interval becomes -1, which no column accepts.
    """
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        micros = column.cast(pa.int64())
        # Arrow rounds a quotient towards zero: -1 us would become 0 ms, which can be accepted.
        return pc.if_else(pc.less(micros, 0), -1, pc.divide(micros, 1000))
    return column.cast(pa.int64())


def first_true(flags: pa.Array) -> int:
    """Return the index of the first true value."""
    return int(pc.index(flags, True).as_py())


def _shortened(value: Any) -> str:
    text = value.isoformat(" ") if isinstance(value, datetime) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
