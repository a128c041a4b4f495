"""The column and option ``delay``: of messages that are sent, and of retries."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidOption
from rmq_spark.spark.options import SinkOptions
from rmq_spark.spark.sink.columns import Rows, first_true, milliseconds, shown_value
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.durations import ACCEPTED as ACCEPTED_DURATION
from rmq_spark.topics.durations import LONGEST_DURATION_MS, duration_text, parse_duration_ms


@dataclass(frozen=True)
class Delays:
    """The delays of rows.

    ms: an int64 array. given: an array that shows which rows have a delay; ms is 0 for the others.
    """

    ms: Any
    given: Any


def check_delay_option(topic: TopicDefinition, columns: set[str], options: SinkOptions) -> None:
    """Raise InvalidOption for the option ``delay`` of a write to one topic that takes no delay.

    columns: the names of the columns of the write. With a column topic, the option is for those
    topics that take delays.
    """
    of_type = topic.type
    if options.delay is not None and of_type.delay is None and "topic" not in columns:
        raise InvalidOption(
            f"The option delay={options.delay} (ms) is not for topic {topic.name}, which is "
            f"{of_type}. Accepted there: {of_type.value_name}, {of_type.accepted}."
        )


def message_delays(rows: Rows, topic: TopicDefinition, default_ms: int | None) -> Delays | None:
    """Return the delays of rows to send or requeue; None if no row has one.

    default_ms: the delay of rows that have neither a delay nor a value of the topic type; a type
    without delays ignores it. Raises InvalidMessage for the first row whose delay is not accepted,
    stands beside a value, or is for a topic of another type.
    """
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
    """Return the wait of each row before its retry in ms; ``default_ms`` for a row without one.

    Raises InvalidMessage for a delay that is negative, above 366 days, or not a duration.
    """
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
