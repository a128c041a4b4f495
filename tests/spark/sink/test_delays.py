"""Rows with a delay in place of a fixed time: of a send, of a requeue, exactly once."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DayTimeIntervalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from rmq_spark.errors import InvalidMessage, InvalidOption
from rmq_spark.protocol.staging import StageName
from rmq_spark.spark.datasource import RmqDataSource
from rmq_spark.spark.options import parse_sink_options

from ...seeding import FAR_MS, LONG_MS
from ...waiting import wait_until
from ..driving import DUE, refused
from .sink_driving import Sink, numbers
from .test_bad_rows import write
from .test_operations import buried

TEXTS = StringType()
HOUR = timedelta(hours=1)


def stored(queue):
    """The scores of all waiting messages by content."""
    found = {}
    for slot in queue.slots:
        for page in queue.pages("store", slot):
            found |= dict(zip((c.decode() for c in page.contents), page.scores, strict=True))
    return found


def send(rmq, queue, columns, **options):
    """Writes rows a, b, ... with these columns. Returns Redis' time before and after."""
    count = len(next(iter(columns.values()))[1]) if columns else 2
    rows = {"content": (TEXTS, [chr(ord("a") + row) for row in range(count)]), **columns}
    before = queue.now_ms()
    write(rmq, queue.definition.name, rows, **options)
    return before, queue.now_ms()


@pytest.mark.parametrize(
    ("kind", "delay"),
    [
        (LongType(), LONG_MS),
        (IntegerType(), LONG_MS),
        (DayTimeIntervalType(), HOUR),
        (TEXTS, "1h"),
        (TEXTS, "3600000ms"),
    ],
)
def test_a_row_is_due_its_delay_after_it_was_stored(rmq, kind, delay):
    queue = rmq.queue("FixedTime")
    times = (TimestampType(), [None, datetime(2100, 1, 1, tzinfo=UTC)])
    before, after = send(rmq, queue, {"delay": (kind, [delay, None]), "fixedTime": times})
    found = stored(queue)
    assert before + LONG_MS <= found["a"] <= after + LONG_MS
    assert found["b"] == 4_102_444_800_000


def test_the_last_delay_of_equal_rows_decides(rmq):
    queue = rmq.queue("FixedTime")
    for delays in ([FAR_MS, 5], [1, LONG_MS]):
        rows = {"content": (TEXTS, ["m", "m"]), "delay": (LongType(), delays)}
        before = queue.now_ms()
        write(rmq, queue.definition.name, rows)
    assert before + LONG_MS <= stored(queue)["m"] <= queue.now_ms() + LONG_MS


def test_the_option_counts_for_rows_that_have_neither_value(rmq):
    queue = rmq.queue("FixedTime")
    columns = {
        "delay": (LongType(), [2 * LONG_MS, None, None, 0]),
        "fixedTime": (LongType(), [None, FAR_MS, None, None]),
    }
    before, after = send(rmq, queue, columns, delay="1h")
    found = stored(queue)
    waits = {"a": 2 * LONG_MS, "c": LONG_MS, "d": 0}
    assert found.pop("b") == FAR_MS
    assert all(before + waits[c] <= found[c] <= after + waits[c] for c in waits)
    send(rmq, queue, columns, fixedTime=str(DUE))
    assert stored(queue)["c"] == DUE
    assert stored(queue)["a"] > after + LONG_MS


@pytest.mark.parametrize("columns", [{}, {"delay": (LongType(), [None, None])}])
def test_an_option_alone_delays_all_rows(rmq, columns):
    queue = rmq.queue("FixedTime")
    before, after = send(rmq, queue, columns, delay=str(LONG_MS))
    assert all(before + LONG_MS <= due <= after + LONG_MS for due in stored(queue).values())
    assert queue.figures().store.count == 2


@pytest.mark.parametrize(
    ("kind", "value", "accepted"),
    [
        (LongType(), -1, "0 to 4503599627370496 ms; null in a row with fixedTime"),
        (LongType(), 2**52 + 1, "0 to 4503599627370496 ms"),
        (DayTimeIntervalType(), timedelta(microseconds=-1), "0 to 4503599627370496 ms"),
        (TEXTS, "5", "a number with its unit"),
        (TEXTS, "-5s", "a number with its unit"),
        (TEXTS, "4503599627370497ms", "up to 4503599627370496ms"),
    ],
)
def test_a_bad_delay_is_refused_and_nothing_is_sent(rmq, kind, value, accepted):
    queue = rmq.queue("FixedTime")
    columns = {"delay": (kind, [None, value]), "fixedTime": (LongType(), [DUE, None])}
    with refused(InvalidMessage, "Row 1 ", "(content 'b')", f"delay is {value!r}"[:60], accepted):
        send(rmq, queue, columns)
    assert stored(queue) == {}


def test_a_row_with_a_delay_and_a_fixed_time_is_refused(rmq):
    queue = rmq.queue("FixedTime")
    columns = {"delay": (LongType(), [None, 7]), "fixedTime": (LongType(), [DUE, FAR_MS])}
    with refused(
        InvalidMessage,
        *("Row 1 ", "(content 'b')", "delay is 7", f"null, as fixedTime is {FAR_MS}"),
    ):
        send(rmq, queue, columns)
    assert stored(queue) == {}


def test_a_row_with_neither_is_refused(rmq):
    queue = rmq.queue("FixedTime")
    for more in ({}, {"fixedTime": (LongType(), [None, None])}):
        with refused(InvalidMessage, "Row 1 ", "fixedTime is None"):
            send(rmq, queue, {"delay": (LongType(), [7, None]), **more})
    schema = StructType().add("content", TEXTS)
    with refused(InvalidOption, "neither a column nor an option gives fixedTime or delay"):
        rmq.writer(schema, topic=queue.definition.name)
    assert stored(queue) == {}


@pytest.mark.parametrize(
    ("topic_type", "name", "value"), [("RangeMerge", "timeRange", 5), ("Priority", "priority", 50)]
)
@pytest.mark.parametrize("operation", ["send", "requeue"])
def test_a_delay_in_a_topic_of_another_type_is_refused(rmq, topic_type, name, value, operation):
    queue = rmq.queue(topic_type)
    columns = {name: (LongType(), [value] * 2), "delay": (LongType(), [None, 7])}
    said = f"the topic {queue.definition.name} is {topic_type}, which takes {name} instead"
    with refused(InvalidMessage, "Row 1 ", "delay is 7", said):
        send(rmq, queue, columns, operation=operation)
    with refused(InvalidOption, "The option delay=7", f"is {topic_type}", f"there: {name}, "):
        send(rmq, queue, {name: columns[name]}, operation=operation, delay="7")
    assert stored(queue) == {}


@pytest.mark.parametrize("topic_type", ["RangeMerge", "Priority"])
def test_a_delay_does_not_replace_the_value_of_another_type(rmq, topic_type):
    queue = rmq.queue(topic_type)
    with refused(InvalidOption, "delay is for FixedTime topics only", f"is {topic_type}"):
        send(rmq, queue, {"delay": (LongType(), [5])})


def test_the_option_is_for_those_of_several_topics_that_take_it(rmq):
    timed, ranked = rmq.queue("FixedTime"), rmq.queue("Priority")
    topics = [queue.definition.name for queue in (timed, ranked)]
    columns = {"content": (TEXTS, ["a", "b"]), "topic": (TEXTS, topics)}
    write(rmq, None, {**columns, "priority": (LongType(), [None, 20])}, delay="1h")
    assert stored(timed)["a"] > timed.now_ms()
    assert {content: int(score) for content, score in stored(ranked).items()} == {"b": 20}


@pytest.mark.parametrize("operation", ["send", "requeue"])
def test_the_options_delay_and_fixed_time_exclude_each_other(operation):
    given = {"topic": "T", "delay": "7s", "fixedTime": "5", "operation": operation}
    with refused(InvalidOption, "delay=7000 (ms) and fixedTime=5 exclude each other", "Accepted"):
        parse_sink_options(given)


def test_the_wait_before_a_retry_has_a_bound_of_its_own():
    with refused(InvalidOption, "delay=31708800000 (ms) is too long", "31622400000 ms", "366d"):
        parse_sink_options({"topic": "T", "delay": "367d", "operation": "rollback"})
    assert parse_sink_options({"topic": "T", "delay": "367d"}).delay == 367 * 24 * LONG_MS


def test_past_fixed_time_asks_nothing_of_delays(rmq):
    queue = rmq.queue("FixedTime")
    columns = {"delay": (LongType(), [0, None]), "fixedTime": (LongType(), [None, FAR_MS])}
    send(rmq, queue, columns, pastFixedTime="fail")
    assert queue.figures().store.count == 2
    columns["fixedTime"] = (LongType(), [None, DUE])
    with refused(InvalidMessage, "Row 1 ", f"fixedTime is {DUE}", "a time after now"):
        send(rmq, queue, columns, pastFixedTime="fail")


def test_requeued_rows_come_back_after_their_delay(rmq):
    queue = buried(rmq, "FixedTime", count=4, fixed_time=DUE)
    columns = {
        "content": (TEXTS, ["m0", "m1", "m2", "m3"]),
        "delay": (DayTimeIntervalType(), [HOUR, None, None, 0 * HOUR]),
        "fixedTime": (LongType(), [None, FAR_MS, None, None]),
    }
    before = queue.now_ms()
    counts = write(rmq, queue.definition.name, columns, operation="requeue", delay="2h").counts
    after, found = queue.now_ms(), stored(queue)
    assert counts == {"requeued": 4}
    assert found.pop("m1") == FAR_MS
    waits = {"m0": LONG_MS, "m2": 2 * LONG_MS, "m3": 0}
    assert all(before + waits[c] <= found[c] <= after + waits[c] for c in waits)


def test_exactly_once_a_delay_starts_when_the_batch_is_published(rmq):
    queue = rmq.queue("FixedTime", 1)
    sink = Sink(rmq, queue, "delayed")
    schema = StructType().add("content", TEXTS).add("delay", LongType())
    given = {"redis.url": rmq.url, "topic": sink.topic, "deliveryGuarantee": "exactlyOnce"}
    writer = RmqDataSource(given).streamWriter(schema, overwrite=False)
    delays = [row % 3 * LONG_MS for row in range(40)]
    batch = pa.record_batch({"content": numbers(0, 40), "delay": pa.array(delays, pa.int64())})
    message = writer.stage(iter([batch]), StageName(sink.query, 1, 0, "a"))
    staged_ms = queue.now_ms()
    wait_until(lambda: queue.now_ms() > staged_ms, "another millisecond")
    before = queue.now_ms()
    writer.commit([message], 1)
    found = stored(queue)
    sent_ms = [found[c] - delay for c, delay in zip(numbers(0, 40), delays, strict=True)]
    assert before <= min(sent_ms) <= max(sent_ms) <= queue.now_ms()
    assert sorted(sink.consume()) == sorted(numbers(0, 40)[::3])


def test_a_stream_sends_rows_with_delays(spark, rmq):
    queue = rmq.queue("FixedTime")
    source = rmq.folder / "rows"
    spark.range(20).selectExpr("concat('m', id) content").write.parquet(str(source))
    rows = spark.readStream.schema("content STRING").parquet(str(source))
    before = queue.now_ms()
    query = (
        rows.selectExpr("content", "INTERVAL 1 HOUR AS delay")
        .writeStream.format("rmq")
        .options(**{"redis.url": rmq.url, "topic": queue.definition.name})
        .option("checkpointLocation", str(rmq.folder / "sent"))
        .option("deliveryGuarantee", "exactlyOnce")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = stored(queue)
    assert len(found) == 20
    assert before + LONG_MS <= min(found.values())
    assert max(found.values()) <= queue.now_ms() + LONG_MS
