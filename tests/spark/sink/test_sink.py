"""DataFrames sent by real Spark: every type, every kind of column, batch and streaming."""

import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.types import StringType, StructType

from rmq_spark import Message
from rmq_spark.errors import InvalidOption
from rmq_spark.spark.datasource import RmqDataSource

from ... import ROOT
from ...waiting import wait_until
from ..driving import DUE, chained_text, contents, refused

VALUES = {
    "RangeMerge": ("timeRange", "1", "1"),
    "Priority": ("priority", "17 + id", "17"),
    "FixedTime": ("fixedTime", f"{DUE} + id", str(DUE)),
}


def read_now(spark, rmq, queue, schema=None):
    """Everything that is due, as a DataFrame of what a query wrote into Parquet."""
    query_name = f"-{time.monotonic_ns()}"
    rmq.drain(rmq.read(spark, queue, **({"schema": schema} if schema else {})), query_name)
    return rmq.parquet(spark, query_name)


def topic_of(rmq, name):
    return rmq.broker.queue(name)


@pytest.mark.parametrize("topic_type", list(VALUES))
def test_each_type_goes_in_and_out(spark, rmq, topic_type):
    column, value, _ = VALUES[topic_type]
    sent = spark.range(50).selectExpr("concat('m', id) content", f"{value} {column}")
    name = rmq.name()
    rmq.write(sent, name, topicType=topic_type, slotAmount="8")
    queue = topic_of(rmq, name)
    if topic_type == "RangeMerge":
        wait_until(lambda: queue.figures().store.due == 50, "the time ranges to pass")
    got = read_now(spark, rmq, queue)
    shown = {
        "RangeMerge": "dueTime IS NOT NULL known, priority",
        "Priority": "dueTime IS NULL known, priority",
        "FixedTime": "unix_millis(dueTime) known, priority",
    }[topic_type]
    expected = {
        "RangeMerge": "true known, cast(null as bigint) priority",
        "Priority": "true known, priority",
        "FixedTime": "fixedTime known, cast(null as bigint) priority",
    }[topic_type]
    counts = "deliveryCount, retriesLeft, topic"
    assert_df_equality(
        got.selectExpr("content", shown.split(", ")[0], "priority", *counts.split(", ")),
        sent.selectExpr("content", *expected.split(", "), "1 deliveryCount", "16 retriesLeft")
        .selectExpr("*", f"'{name}' topic"),
        ignore_row_order=True,
        ignore_nullable=True,
    )  # fmt: skip
    assert queue.figures().counters["committed"] == 50


@pytest.mark.long
def test_the_streaming_sink_sends_each_type_from_files(spark, rmq):
    rows = spark.range(30).selectExpr("concat('m', id) content", f"{DUE} + id fixedTime")
    rows.coalesce(1).write.parquet(str(rmq.folder / "in"))
    name = rmq.name()

    def stream():
        query = (
            spark.readStream.schema(rows.schema)
            .parquet(str(rmq.folder / "in"))
            .writeStream.format("rmq")
            .options(**{"redis.url": rmq.url, "topic": name, "topicType": "FixedTime"})
            .option("checkpointLocation", str(rmq.folder / "sink"))
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    stream()
    queue = topic_of(rmq, name)
    assert queue.figures().store.count == 30
    # A group that is added between two batches gets what the second sends.
    more = spark.range(30, 35).selectExpr("concat('m', id) content", f"{DUE} + id fixedTime")
    more.coalesce(1).write.mode("append").parquet(str(rmq.folder / "in"))
    rmq.broker.alter(name, groups=("", "audit"))
    stream()
    assert queue.figures().store.count == 35
    assert rmq.broker.queue(name, group="audit").figures().store.count == 5
    assert_df_equality(
        read_now(spark, rmq, queue).selectExpr("content", "unix_millis(dueTime) fixedTime"),
        rows.union(more),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_a_group_added_while_a_streaming_query_runs_gets_its_next_batch(spark, rmq):
    rows = spark.range(4).selectExpr("concat('m', id) content")
    folder = rmq.folder / "in"
    rows.coalesce(1).write.json(str(folder))
    queue = rmq.queue("FixedTime")
    name = queue.definition.name
    query = (
        spark.readStream.schema("content STRING").json(str(folder)).writeStream.format("rmq")
        .options(**{"redis.url": rmq.url, "topic": name, "fixedTime": str(DUE)})
        .option("checkpointLocation", str(rmq.folder / "sink"))
        .start()
    )  # fmt: skip
    query.processAllAvailable()
    assert queue.figures().store.count == 4
    rmq.broker.alter(name, groups=("", "audit"))
    spark.range(4, 9).selectExpr("concat('m', id) content").write.mode("append").json(str(folder))
    query.processAllAvailable()
    query.stop()
    assert queue.figures().store.count == 9
    assert rmq.broker.queue(name, group="audit").figures().store.count == 5


@pytest.mark.parametrize(
    ("topic_type", "content", "value", "due"),
    [
        ("FixedTime", "cast(concat('m', id) as binary)", "timestamp_millis(1000000 + id)", None),
        ("FixedTime", "concat('m', id)", "cast(1000000 + id as bigint)", None),
        ("FixedTime", "concat('m', id)", "cast(1000000 + id as int)", None),
        ("RangeMerge", "concat('m', id)", "cast(3600000 as int)", 3_600_000),
        ("RangeMerge", "concat('m', id)", "cast(3600000 as bigint)", 3_600_000),
        ("RangeMerge", "concat('m', id)", "INTERVAL '0 01:00:00' DAY TO SECOND", 3_600_000),
        ("RangeMerge", "concat('m', id)", "INTERVAL '2' HOUR", 7_200_000),
        ("Priority", "concat('m', id)", "cast(17 + id as int)", None),
        ("Priority", "concat('m', id)", "cast(17 + id as bigint)", None),
    ],
)
def test_each_kind_of_column_is_stored_with_the_score_it_means(
    spark, rmq, topic_type, content, value, due
):
    name = rmq.name()
    column = VALUES[topic_type][0]
    before = rmq.queue().now_ms()
    frame = spark.range(5).selectExpr(f"{content} CONTENT", f"{value} {column.upper()}")
    rmq.write(frame, name, topictype=topic_type, SlotAmount="1")
    queue = topic_of(rmq, name)
    stored = queue.server.client.zrange(queue.keys.store(0), 0, -1, withscores=True)
    scores = {text.decode(): int(score) for text, score in stored}
    assert set(scores) == {f"m{n}" for n in range(5)}
    if due is not None:
        assert all(before + due <= score <= queue.now_ms() + due for score in scores.values())
    else:
        lowest = 17 if topic_type == "Priority" else DUE
        assert scores == {f"m{n}": lowest + n for n in range(5)}


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_a_slot_basis_puts_messages_into_one_slot(spark, rmq, kind):
    name = rmq.name()
    frame = spark.range(60).selectExpr(
        "concat('m', id) content", f"cast(concat('user', id % 3) as {kind}) slotBasis"
    )
    rmq.write(frame, name, topicType="Priority", priority="20", slotAmount="64")
    queue = topic_of(rmq, name)
    slots = {queue.definition.slot_of(f"user{n}".encode()) for n in range(3)}
    filled = {s for s in queue.slots if queue.server.client.zcard(queue.keys.store(s))}
    assert filled == slots
    # As an option it is the same for all rows.
    other = rmq.name()
    rmq.write(
        frame.select("content"), other, topicType="Priority", priority="20", slotBasis="user1"
    )
    queue = topic_of(rmq, other)
    only = queue.definition.slot_of(b"user1")
    assert queue.server.client.zcard(queue.keys.store(only)) == 60


def test_a_topic_column_sends_to_several_topics_in_one_write(spark, rmq):
    names = [rmq.name() for _ in range(3)]
    frame = spark.range(90).selectExpr(
        "concat('m', id) content",
        f"element_at(array({', '.join(map(repr, names))}), cast(id % 3 + 1 as int)) topic",
        "cast(17 + id as int) priority",
    )
    rmq.write(frame, None, topicType="Priority", slotAmount="4")
    for at, name in enumerate(names):
        queue = topic_of(rmq, name)
        with rmq.by_hand(queue) as run:
            _, rows = run.next(run.initial())
        got = {(row["content"], row["topic"], row["priority"]) for row in rows}
        assert got == {(f"m{n}", name, 17 + n) for n in range(at, 90, 3)}
        assert len(rows) == 30


@pytest.mark.parametrize(
    ("options", "reads"),
    [({}, 1), ({"topicType": "Priority"}, 2), ({"operation": "purge"}, 1)],
    ids=["as it is", "compared", "purge"],
)
def test_a_definition_is_read_again_only_to_compare_it(alone, options, reads):
    name = alone.queue("Priority").definition.name
    options = {"priority": "17", **options, "topic": name}
    topics = alone.writer(StructType().add("content", "string"), **options)._work._topics
    server = alone.broker.server
    calls = lambda: server.client.info("commandstats")["cmdstat_hget"]["calls"]  # noqa: E731
    before = calls()
    assert topics.find(server, name) == alone.broker.definition(name)
    assert calls() - before == reads + 1


def test_equal_contents_merge_and_the_last_value_wins_but_for_range_merge(spark, rmq):
    for topic_type, (_, _, value) in VALUES.items():
        name = rmq.name()
        frame = spark.range(40).selectExpr("concat('m', id % 10) content").coalesce(1)
        column = VALUES[topic_type][0]
        rmq.write(frame, name, topicType=topic_type, **{column: value})
        figures = topic_of(rmq, name).figures()
        assert figures.store.count == 10
        assert (figures.counters["accepted"], figures.counters["merged"]) == (40, 30)
    later = datetime(2100, 1, 1, tzinfo=UTC)
    rmq.broker.queue(name).send([Message("m0", fixed_time=later)])
    with rmq.by_hand(rmq.broker.queue(name)) as run:
        _, rows = run.next(run.initial())
    assert sorted(contents(rows)) == [f"m{n}" for n in range(1, 10)]


def test_one_bad_row_sends_nothing_of_its_batch_and_the_query_says_which(spark, rmq):
    queue = rmq.queue("Priority")
    frame = (
        spark.range(100).coalesce(1)
        .selectExpr("concat('m', id) content", "IF(id = 42, 16, 20) priority")
    )  # fmt: skip
    with pytest.raises(Exception, match=r"Row 42 of its batch \(content 'm42'\): priority is 16"):
        rmq.write(frame, queue.definition.name)
    assert queue.figures().counters["accepted"] == 0


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["'x' content", "16.5D priority"], "The column priority is DOUBLE"),
        (["'x' content", "1 prioritty"], "Unknown column prioritty"),
        (["1 priority"], "The column content is missing"),
    ],
)
def test_bad_columns_are_refused_by_the_write(spark, rmq, columns, said):
    with pytest.raises(Exception, match=said):
        rmq.write(spark.range(3).selectExpr(*columns), rmq.name(), topicType="Priority")


def test_only_mode_append_is_accepted(spark, rmq):
    queue = rmq.due(1)
    writer = (
        spark.range(3).selectExpr("'x' content").write.format("rmq")
        .options(**{"redis.url": rmq.url, "topic": queue.definition.name, "fixedTime": "99"})
    )  # fmt: skip
    with pytest.raises(Exception, match=r'cannot be written in the .*"Append"'):
        writer.save()  # Spark's default is ErrorIfExists
    with pytest.raises(Exception, match=r'cannot be written in the .*"Append"'):
        writer.mode("ignore").save()
    with pytest.raises(Exception, match=r"cannot be overwritten. Accepted: mode..append"):
        writer.mode("overwrite").save()
    assert queue.figures().store.count == 1


def test_output_mode_complete_is_refused_and_update_sends_nothing_it_should_not(spark, rmq):
    queue = rmq.due(0)
    counts = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        .groupBy("value").count().selectExpr("cast(value as string) content")
    )  # fmt: skip
    for mode in ("complete", "update"):
        with pytest.raises(Exception) as error:  # noqa: PT011 - Spark's own, of several classes
            (
                counts.writeStream.format("rmq")
                .options(**{"redis.url": rmq.url, "topic": queue.definition.name})
                .option("fixedTime", "99")
                .option("checkpointLocation", str(rmq.folder / mode))
                .outputMode(mode).trigger(once=True).start().awaitTermination(60)
            )  # fmt: skip
        assert mode in chained_text(error.value).lower() or "append" in chained_text(error.value)
    assert queue.figures().store.count == 0


@pytest.mark.long
def test_contents_of_0_bytes_of_1_mib_and_of_any_bytes_make_the_round_trip(spark, rmq):
    name = rmq.name()
    frame = spark.sql(
        "SELECT cast('' as binary) content UNION ALL SELECT unhex('ff00fe') "
        "UNION ALL SELECT cast(repeat('x', 1048576) as binary)"
    )
    rmq.write(frame, name, topicType="FixedTime", fixedTime="99", slotAmount="2")
    got = read_now(spark, rmq, topic_of(rmq, name), "content BINARY")
    assert_df_equality(got, frame, ignore_row_order=True, ignore_nullable=True)


def test_a_write_without_a_mode_fails_with_a_text_of_spark_that_the_page_explains(spark, rmq):
    """Spark refuses its default mode without asking the data source."""
    name = rmq.name()
    rows = spark.range(1).selectExpr("'m' content", "20 priority")
    options = {"redis.url": rmq.url, "topic": name, "topicType": "Priority"}
    with pytest.raises(AnalysisException) as raised:
        rows.write.format("rmq").options(**options).save()
    said = str(raised.value).removeprefix("[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] ")
    said = said.partition(" SQLSTATE")[0]
    page = (ROOT / "docs/send-from-spark.md").read_text("utf-8")
    assert f'| `{said}` | add `.mode("append")`' in page
    assert rmq.broker.find(name) is None


def test_a_commit_without_the_result_of_a_task_is_refused(rmq):
    given = {"redis.url": rmq.url, "topic": rmq.queue().definition.name, "fixedTime": str(DUE)}
    source, schema = RmqDataSource(given), StructType().add("content", StringType())
    batch = pa.record_batch({"content": ["m0"]})
    written = source.writer(schema, overwrite=False).write(iter([batch]))
    for messages in ([None], [written, None]):
        with refused(InvalidOption, f"1 of {len(messages)} tasks", "trigger(processingTime=...)"):
            source.writer(schema, overwrite=False).commit(messages)
        with refused(InvalidOption, f"1 of {len(messages)} tasks", "trigger(processingTime=...)"):
            source.streamWriter(schema, overwrite=False).commit(messages, 1)


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
def test_under_a_continuous_trigger_no_epoch_counts_as_done(spark, rmq, guarantee):
    queue, session = rmq.queue(), spark.newSession()
    # Spark only logs that a commit was refused, and ends the query when its epochs pile up.
    session.conf.set("spark.sql.streaming.continuous.epochBacklogQueueSize", "4")
    query = (
        session.readStream.format("rate")
        .option("numPartitions", 1)
        .load()
        .selectExpr("cast(value AS string) content", "timestamp fixedTime")
        .writeStream.format("rmq")
        .options(**{"redis.url": rmq.url, "topic": queue.definition.name})
        .option("deliveryGuarantee", guarantee)
        .option("checkpointLocation", str(rmq.folder / "continuous"))
        .trigger(continuous="100 milliseconds")
        .start()
    )
    try:
        with pytest.raises(StreamingQueryException, match="exceeded its maximum"):
            query.awaitTermination(60)
    finally:
        query.stop()
    assert list((rmq.folder / "continuous" / "commits").iterdir()) == []
    assert queue.figures().counters["accepted"] == 0
