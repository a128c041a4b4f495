"""Rows that cannot be sent: nothing of their Arrow batch goes, and the error says what and why."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.spark.sink import columns as packing

from ..driving import DUE, refused

ARROW = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: pa.timestamp("us", "UTC"),
    DayTimeIntervalType: pa.duration("us"),
}
VALUE = {"RangeMerge": "timeRange", "Priority": "priority", "FixedTime": "fixedTime"}
# A column has a type, so no text such as 30s is accepted there.
A_WAIT = "Accepted: INT or BIGINT (ms), or INTERVAL DAY TO SECOND, 1 to 4503599627370496; the topic"
A_TIME = "Accepted: TIMESTAMP, or BIGINT (ms since 1970), 0 (now) to 9007199254740992; the topic"


def write(rmq, topic: str | None, columns: dict[str, tuple[DataType, list[Any]]], **options: str):
    """One task's write of one Arrow batch."""
    schema = StructType()
    for name, (kind, _) in columns.items():
        schema = schema.add(name, kind)
    arrays = [pa.array(values, ARROW[type(kind)]) for kind, values in columns.values()]
    given = {**({"topic": topic} if topic else {}), **options}
    writer = rmq.writer(schema, **given)
    return writer.write(iter([pa.RecordBatch.from_arrays(arrays, names=list(columns))]))


def bad_value(
    rmq, topic_type: str, kind: DataType, value: Any, *parts: str, **options: str
) -> None:
    """A batch with one bad row between two good ones is refused, and nothing of it is sent."""
    queue = rmq.queue(topic_type)
    name = VALUE[topic_type]
    good = {
        DayTimeIntervalType: timedelta(hours=1),
        TimestampType: datetime(2100, 1, 1, tzinfo=UTC),
    }.get(type(kind), 4_102_444_800_000 if type(kind) is LongType else 1_000_000)
    with refused(
        InvalidMessage, "Row 1 ", "(content 'b')", f"{name} is ", "Nothing of this batch", *parts
    ):
        write(
            rmq,
            queue.definition.name,
            {"content": (StringType(), ["a", "b", "c"]), name: (kind, [good, value, good])},
            **options,
        )
    assert queue.figures().counters["accepted"] == queue.figures().store.count == 0


@pytest.mark.parametrize("kind", [IntegerType(), LongType()])
@pytest.mark.parametrize("value", [16, 0, -1, None])
def test_a_priority_below_17_or_null_is_refused(rmq, kind, value):
    accepted = "INT or BIGINT, 17 to 9007199254740992"
    bad_value(rmq, "Priority", kind, value, f"priority is {value}", accepted)


def test_a_priority_above_2_to_the_53_is_refused(rmq):
    bad_value(rmq, "Priority", LongType(), 2**53 + 1, "priority is 9007199254740993")


@pytest.mark.parametrize("kind", [IntegerType(), LongType()])
@pytest.mark.parametrize("value", [0, -5, None])
def test_a_time_range_that_is_not_above_0_is_refused(rmq, kind, value):
    bad_value(rmq, "RangeMerge", kind, value, f"timeRange is {value}", A_WAIT)


@pytest.mark.parametrize(
    "value", [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=9), None]
)
def test_an_interval_that_is_not_a_millisecond_at_least_is_refused(rmq, value):
    kind = DayTimeIntervalType()
    bad_value(rmq, "RangeMerge", kind, value, f"timeRange is {value!r}", A_WAIT)


@pytest.mark.parametrize("kind", [LongType(), TimestampType()])
def test_a_null_fixed_time_is_refused(rmq, kind):
    bad_value(rmq, "FixedTime", kind, None, "fixedTime is None", A_TIME)


def test_a_fixed_time_before_1970_is_refused(rmq):
    bad_value(rmq, "FixedTime", LongType(), -1, "fixedTime is -1")
    bad_value(rmq, "FixedTime", TimestampType(), datetime(1969, 1, 1, tzinfo=UTC), "1969")


@pytest.mark.parametrize(
    ("kind", "past"), [(LongType(), DUE), (TimestampType(), datetime(2001, 1, 1, tzinfo=UTC))]
)
def test_a_fixed_time_in_the_past_is_refused_if_asked_for_and_else_due_at_once(rmq, kind, past):
    bad_value(
        rmq, "FixedTime", kind, past, "a time after now", "pastFixedTime", pastFixedTime="fail"
    )
    queue = rmq.queue("FixedTime")
    before = queue.now_ms()
    write(
        rmq,
        queue.definition.name,
        {"content": (StringType(), ["late"]), "fixedTime": (kind, [past])},
    )
    assert queue.figures().store.due == 1
    assert before <= queue.figures().store.oldest_ms <= queue.now_ms()


@pytest.mark.parametrize("time", ["0", "1000"])
def test_rows_without_a_time_are_late_only_since_they_were_sent(rmq, time):
    queue = rmq.queue("FixedTime")
    before = queue.now_ms()
    write(rmq, queue.definition.name, {"content": (StringType(), ["a", "b"])}, fixedTime=time)
    assert before <= queue.figures().store.oldest_ms <= queue.now_ms()


@pytest.mark.parametrize("column", [{}, {"fixedTime": (LongType(), [None])}])
def test_a_past_time_of_the_option_is_shown(rmq, column):
    name = rmq.queue("FixedTime").definition.name
    columns = {"content": (StringType(), ["late"]), **column}
    with refused(InvalidMessage, "Row 0 ", f"fixedTime is {DUE} (the option)", "a time after now"):
        write(rmq, name, columns, fixedTime=str(DUE), pastFixedTime="fail")


def test_a_null_content_is_refused(rmq):
    queue = rmq.queue("FixedTime")
    with refused(InvalidMessage, "Row 1 ", "content is None", "STRING or BINARY, not null"):
        write(
            rmq,
            queue.definition.name,
            {"content": (StringType(), ["a", None, "c"])},
            fixedTime=str(DUE),
        )
    assert queue.figures().store.count == 0


def test_without_a_column_content_nothing_is_written(rmq):
    queue = rmq.queue("FixedTime")
    with refused(InvalidMessage, "The column content is missing", "there are fixedTime, slotBasis"):
        write(
            rmq,
            queue.definition.name,
            {"slotBasis": (StringType(), ["a"]), "fixedTime": (LongType(), [1])},
        )


@pytest.mark.parametrize(
    ("column", "kind", "accepted"),
    [
        ("priority", DoubleType(), "INT or BIGINT"),
        ("priority", DecimalType(10, 0), "INT or BIGINT"),
        ("priority", StringType(), "INT or BIGINT"),
        ("timeRange", StringType(), "INT or BIGINT (ms), or INTERVAL DAY TO SECOND"),
        ("timeRange", YearMonthIntervalType(), "INT or BIGINT (ms), or INTERVAL DAY TO SECOND"),
        ("fixedTime", StringType(), "TIMESTAMP, or BIGINT (ms since 1970)"),
        ("fixedTime", TimestampNTZType(), "TIMESTAMP, or BIGINT (ms since 1970)"),
        ("content", IntegerType(), "STRING or BINARY"),
        ("slotBasis", LongType(), "STRING or BINARY"),
        ("topic", BinaryType(), "STRING"),
    ],
)
def test_a_column_of_another_type_is_refused_before_a_row_is_read(rmq, column, kind, accepted):
    schema = StructType().add(column, kind)
    if column != "content":
        schema = schema.add("content", StringType())
    with refused(
        InvalidMessage,
        f"The column {column} is {kind.simpleString().upper()}",
        f"Accepted: {accepted}",
        "Cast it",
    ):
        rmq.writer(schema, topic=rmq.name(), topicType="Priority")


def test_a_mistyped_column_is_refused_with_the_list_of_those_accepted(rmq):
    schema = StructType().add("content", StringType()).add("slotBases", StringType())
    with refused(
        InvalidMessage,
        "Unknown column slotBases",
        "Did you mean slotBasis?",
        "Accepted: key, content, slotBasis, timeRange, priority, fixedTime, delay, headers, "
        "timeToLive, expiresAt, topic",
    ):
        rmq.writer(schema, topic=rmq.name(), topicType="Priority")


def test_a_column_that_is_there_twice_in_different_case_is_refused(rmq):
    schema = StructType().add("content", StringType()).add("CONTENT", StringType())
    with refused(InvalidMessage, "The column content occurs twice"):
        rmq.writer(schema, topic=rmq.name(), topicType="Priority")


@pytest.mark.parametrize("topic_type", list(VALUE))
def test_a_type_whose_value_neither_column_nor_option_gives_is_refused(rmq, topic_type):
    queue = rmq.queue(topic_type)
    name = VALUE[topic_type]
    with refused(InvalidOption, f"is {topic_type}", f"gives {name}", f'.option("{name}", ...)'):
        rmq.writer(StructType().add("content", StringType()), topic=queue.definition.name)


@pytest.mark.parametrize("topic_type", list(VALUE))
@pytest.mark.parametrize("named", [{}, {"topic": ""}])
def test_a_write_without_the_value_makes_no_topic(rmq, topic_type, named):
    name, schema = rmq.name(), StructType().add("content", StringType())
    options = {"topic": name} if named else {}
    schema = schema if named else schema.add("topic", StringType())
    with refused(InvalidOption, f"is {topic_type}", f"gives {VALUE[topic_type]}"):
        rmq.writer(schema, topicType=topic_type, **options)
    assert rmq.broker.find(name) is None


def test_an_option_fills_in_for_rows_that_have_no_value(rmq):
    queue = rmq.queue("Priority", 1)
    write(
        rmq,
        queue.definition.name,
        {"content": (StringType(), ["a", "b"]), "priority": (IntegerType(), [None, 30])},
        priority="20",
    )
    with rmq.by_hand(queue) as run:
        _, rows = run.next(run.initial())
    assert [(row["content"], row["priority"]) for row in rows] == [("b", 30), ("a", 20)]


def test_a_row_is_named_by_its_place_in_the_batch_also_among_several_topics(rmq):
    first, second = rmq.queue("Priority"), rmq.queue("Priority")
    topics = [first.definition.name, second.definition.name]
    with refused(InvalidMessage, "Row 3 ", "(content 'd')", "priority is 16"):
        write(
            rmq,
            None,
            {
                "content": (StringType(), ["a", "b", "c", "d"]),
                "priority": (IntegerType(), [20, 20, 20, 16]),
                "topic": (StringType(), [topics[0], topics[1], topics[0], topics[1]]),
            },
        )
    assert first.figures().store.count == second.figures().store.count == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a{b}", "topic='a{b}'"),
        ("", "topic=''"),
        ("x" * 201, "1 to 200 of . _ -"),
        (None, "topic is None"),
    ],
)
def test_a_bad_name_in_the_column_topic_sends_nothing(rmq, name, said):
    queue = rmq.queue("Priority")
    with refused(InvalidMessage, said, "Nothing"):
        write(
            rmq,
            None,
            {
                "content": (StringType(), ["a", "b"]),
                "priority": (IntegerType(), [20, 20]),
                "topic": (StringType(), [queue.definition.name, name]),
            },
        )
    assert queue.figures().store.count == 0


def test_a_topic_column_names_topics_of_several_types_in_one_batch(rmq):
    first, second = rmq.queue("Priority"), rmq.queue("FixedTime")
    sent = write(
        rmq,
        None,
        {
            "content": (StringType(), ["a", "b", "a"]),
            "priority": (IntegerType(), [20, None, 21]),
            "fixedTime": (LongType(), [None, DUE, None]),
            "topic": (
                StringType(),
                [first.definition.name, second.definition.name, first.definition.name],
            ),
        },
    )
    assert dict(sent.counts) == {"new": 2, "merged": 1}
    assert (first.figures().store.count, second.figures().store.count) == (1, 1)


def test_an_unknown_topic_in_the_column_topic_sends_nothing(rmq):
    queue = rmq.queue("Priority")
    with refused(Exception, "does not exist"):
        write(
            rmq,
            None,
            {
                "content": (StringType(), ["a", "b"]),
                "priority": (IntegerType(), [20, 20]),
                "topic": (StringType(), [queue.definition.name, rmq.name()]),
            },
        )
    assert queue.figures().store.count == 0


def priorities(*values):
    """An Arrow batch of contents that are their numbers in it, with these priorities."""
    contents = pa.array([f"{values[0]}-{row}" for row in range(len(values))])
    return pa.RecordBatch.from_arrays([contents, pa.array(values, pa.int32())], names=["c", "p"])


PRIORITIES = StructType().add("content", StringType()).add("priority", IntegerType())


def test_small_arrow_batches_are_checked_together(rmq):
    queue = rmq.queue("Priority")
    with refused(InvalidMessage, "Row 2 ", "priority is 3"):
        rmq.writer(PRIORITIES, topic=queue.definition.name).write(
            iter([priorities(20), priorities(20, 3)])
        )
    assert queue.figures().store.count == 0


def test_earlier_batches_of_a_task_stay_sent_when_a_later_one_is_bad(rmq, monkeypatch):
    monkeypatch.setattr(packing, "ROWS_A_BATCH", 2)
    queue = rmq.queue("Priority")
    with refused(InvalidMessage, "Row 0 ", "priority is 3"):
        rmq.writer(PRIORITIES, topic=queue.definition.name).write(
            iter([priorities(20), priorities(21), priorities(3)])
        )
    assert queue.figures().store.count == 2


def test_a_batch_without_rows_sends_nothing(rmq):
    queue = rmq.queue("Priority")
    columns = {"content": (StringType(), []), "priority": (IntegerType(), [])}
    assert not write(rmq, queue.definition.name, columns).counts


@pytest.mark.parametrize("large", [pa.large_string(), pa.large_binary(), pa.string_view()])
def test_contents_in_arrows_other_text_types_are_sent(rmq, large):
    queue = rmq.queue("FixedTime", 1)
    writer = rmq.writer(
        StructType().add("content", StringType()), topic=queue.definition.name, fixedTime=str(DUE)
    )
    writer.write(iter([pa.RecordBatch.from_arrays([pa.array(["é"], large)], names=["content"])]))
    with rmq.by_hand(queue) as run:
        _, (row,) = run.next(run.initial())
    assert row["content"] == "é"


def test_a_long_value_is_cut_short_in_the_message(rmq):
    queue = rmq.queue("Priority")
    with pytest.raises(InvalidMessage) as error:
        write(
            rmq,
            queue.definition.name,
            {"content": (StringType(), ["x" * 10_000]), "priority": (IntegerType(), [3])},
        )
    assert len(str(error.value)) < 500
