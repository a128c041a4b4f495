"""Streaming queries of real Spark that read a topic."""

import json
import shutil
import signal
import subprocess
import sys

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StringType, StructField, StructType

import rmq_spark
from rmq_spark.protocol import reading
from rmq_spark.spark.schemas import SOURCE_SCHEMA

from ... import programs
from ...waiting import wait_until
from ..driving import (
    DUE,
    chained_text,
    contents,
    drained,
    knows_available_now,
    names,
    send_due,
)


class Batches:
    """A foreachBatch sink that keeps its rows by batch number, like an idempotent one."""

    def __init__(self, fail_in: set[int] = frozenset()) -> None:
        self.reads: dict[int, list[list]] = {}
        self.fail_in = set(fail_in)

    def __call__(self, frame, batch_id: int) -> None:
        count = frame.count()
        rows = frame.collect()
        self.reads.setdefault(batch_id, []).append(rows)
        assert count == len(rows)
        if batch_id in self.fail_in:
            self.fail_in.remove(batch_id)
            raise ValueError(f"batch {batch_id} fails on purpose")

    def run(self, frame, checkpoint, **trigger) -> None:
        writer = frame.writeStream.foreachBatch(self)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if not trigger:
            drained(writer)
            return
        assert writer.trigger(**trigger).start().awaitTermination(60)

    def contents(self) -> list[str]:
        return sorted(row.content for reads in self.reads.values() for row in reads[-1])


def due_to_another(queue) -> int:
    return sum(slot.due for slot in queue.ask(reading.due, queue.slots, "another"))


def test_to_register_a_format_that_spark_has_found_does_no_harm(spark, rmq):
    for _ in range(2):
        rmq_spark.register(spark)
    queue = rmq.due(3)
    rmq.drain(rmq.read(spark, queue))
    assert rmq.contents(spark) == names(3)


@knows_available_now
def test_an_available_now_query_ends_with_all_in_several_batches(spark, rmq):
    queue = rmq.due(50)
    queue.send(["later"], fixed_time=queue.now_ms() + 3_600_000)
    query = rmq.drain(rmq.read(spark, queue, maxRecordsPerTrigger=20))
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [20, 20, 10]
    expected = spark.range(50).selectExpr(
        "concat('m', id) content",
        "cast(null as string) key",
        f"'{queue.definition.name}' topic",
        f"timestamp_millis({DUE} + id) dueTime",
        "cast(null as bigint) priority",
        "1 deliveryCount",
        "16 retriesLeft",
    )
    got = rmq.parquet(spark).drop("slot", "claimId", "claimedAt")
    assert_df_equality(got, expected, ignore_row_order=True, ignore_nullable=True)
    assert queue.figures().prepare.count == 0
    backlog = json.loads(query.lastProgress["sources"][0]["latestOffset"])
    counted = {"due", "delayed", "prepared", "retry", "dead", "oldestDueMs", "asOfMs"}
    assert set(backlog) == {*counted, "topic", "counters"}
    assert backlog["delayed"] == 1


def test_a_restart_without_and_with_new_messages_reads_each_once(spark, rmq):
    queue = rmq.due(10)
    frame = rmq.read(spark, queue)
    rmq.drain(frame)
    rmq.drain(frame)
    assert rmq.contents(spark) == names(10)
    send_due(queue, range(10, 15))
    rmq.drain(frame)
    assert rmq.contents(spark) == names(15)
    assert queue.figures().counters["committed"] == 15


def test_a_batch_that_is_read_twice_or_joined_with_itself_has_the_same_rows(spark, rmq):
    queue = rmq.due(40)
    frame = rmq.read(spark, queue, maxRecordsPerTrigger=15)
    batches = Batches()
    batches.run(frame.union(frame), rmq.folder / "checkpoint")
    for reads in batches.reads.values():
        assert all(reads[-1].count(row) == 2 for row in reads[-1])
    assert batches.contents() == sorted(names(40) * 2)
    assert queue.figures().counters["claimed"] == 40


def test_the_last_batch_of_a_frame_that_is_used_twice_is_committed(spark, rmq):
    """Failed before: "2 of its sources", so that its messages were redelivered after the lease."""
    queue, checkpoint = rmq.due(10), rmq.folder / "checkpoint"
    frame = rmq.read(spark, queue, checkpointLocation=checkpoint)
    batches = Batches()
    batches.run(frame.union(frame), checkpoint, once=True)
    assert batches.contents() == sorted(names(10) * 2)
    wait_until(lambda: queue.figures().counters["committed"] == 10, "the commit")


def test_a_join_of_a_frame_with_itself_is_refused_and_loses_nothing(spark, rmq):
    """Failed before: no rows, as each message reached one side only; and all were committed."""
    queue, checkpoint = rmq.due(10), rmq.folder / "checkpoint"
    frame = rmq.read(spark, queue, checkpointLocation=checkpoint)
    joined = frame.select("content").join(frame.select("content", "slot"), "content")
    with pytest.raises(StreamingQueryException, match="2 sources of the query read"):
        Batches().run(joined, checkpoint, once=True)
    figures = queue.figures()
    assert (figures.messages, figures.counters["committed"]) == (10, 0)


def test_a_failed_batch_comes_again_with_the_same_rows_in_the_same_order(spark, rmq):
    queue = rmq.due(60, slots=2)
    frame = rmq.read(spark, queue, maxRecordsPerTrigger=25)
    batches = Batches(fail_in={1})
    with pytest.raises(StreamingQueryException, match="batch 1 fails on purpose"):
        batches.run(frame, rmq.folder / "checkpoint")
    send_due(queue, range(1000, 1010))
    batches.run(frame, rmq.folder / "checkpoint")
    first, second = batches.reads[1]
    assert [row.content for row in first] == [row.content for row in second]
    assert {row.deliveryCount for row in second} == {2}
    for slot in (0, 1):
        numbers = [int(row.content[1:]) for row in second if row.slot == slot]
        assert numbers == sorted(numbers)
    assert batches.contents() == sorted([*names(60), *(f"m{n}" for n in range(1000, 1010))])
    assert queue.figures().counters["committed"] == 70


def test_with_release_on_stop_a_failed_batch_goes_to_whoever_comes_first(spark, rmq):
    queue = rmq.due(8)
    batches = Batches(fail_in={0})
    frame = rmq.read(spark, queue, visibilityTimeout="1h", releaseOnStop="true")
    with pytest.raises(StreamingQueryException):
        batches.run(frame, rmq.folder / "checkpoint")
    wait_until(lambda: due_to_another(queue) == 8, "the failed batch to be given back")
    with rmq.by_hand(queue) as other:
        end, rows = other.until(other.initial(), 8)
        other.plan(end)
    assert sorted(contents(rows)) == names(8)
    # The first query's replay finds nothing, and goes on with what is new.
    send_due(queue, range(8, 10))
    batches.run(rmq.read(spark, queue), rmq.folder / "checkpoint")
    assert batches.reads[0][-1] == []
    assert batches.contents() == ["m8", "m9"]


def test_between_two_late_triggers_leases_are_renewed(spark, rmq):
    queue = rmq.due(8)
    batches = Batches()
    query = (
        rmq.read(spark, queue, visibilityTimeout="3s").writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .trigger(processingTime="1 hour")
        .start()
    )  # fmt: skip
    wait_until(lambda: query.lastProgress, "the first batch to end")
    begun = queue.now_ms()
    wait_until(lambda: queue.now_ms() > begun + 3500, "the lease to end")
    assert due_to_another(queue) == 0
    query.stop()
    batches.run(rmq.read(spark, queue), rmq.folder / "checkpoint")
    assert queue.figures().counters["committed"] == 8
    assert batches.contents() == names(8)


@pytest.mark.long
def test_stopping_a_query_gives_its_finished_batch_to_nobody(spark, rmq):
    """The sink has it, and Spark's commit log: another query must not get it a second time."""
    queue = rmq.due(8)
    frame = rmq.read(spark, queue, visibilityTimeout="1h")
    query = rmq.into_parquet(frame, processingTime="1 hour")
    wait_until(lambda: query.lastProgress, "the first batch to end")
    query.stop()
    rmq.drain(rmq.read(spark, queue), "-other")
    assert not (rmq.folder / "out-other").exists() or rmq.contents(spark, "-other") == []
    send_due(queue, range(8, 10))
    rmq.drain(frame)  # the same checkpoint goes on at once
    assert rmq.contents(spark) == names(10)
    assert queue.figures().counters["committed"] == 10


def test_a_query_that_goes_on_finds_new_messages_until_it_is_stopped(spark, rmq):
    queue = rmq.due(5)
    batches = Batches()
    query = (
        rmq.read(spark, queue, visibilityTimeout="1h").writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .start()
    )  # fmt: skip
    wait_until(lambda: batches.contents() == names(5), "the first messages")
    send_due(queue, range(5, 9))
    wait_until(lambda: batches.contents() == names(9), "the later messages")
    wait_until(lambda: queue.figures().counters["committed"] == 9, "the last commit")
    query.stop()
    assert query.exception() is None


@knows_available_now
def test_trigger_once_reads_all_in_one_batch_and_the_next_start_commits_it(spark, rmq):
    queue = rmq.due(30)
    frame = rmq.read(spark, queue, maxRecordsPerTrigger=7)
    batches = Batches()
    batches.run(frame, rmq.folder / "checkpoint", once=True)
    assert [len(reads[-1]) for reads in batches.reads.values()] == [30]
    assert due_to_another(queue) == 0
    batches.run(frame, rmq.folder / "checkpoint", once=True)
    assert queue.figures().counters["committed"] == 30
    assert batches.contents() == names(30)


@pytest.mark.long
def test_two_topics_in_one_query_are_read_each_once_also_when_one_stands_still(spark, rmq):
    first, second = rmq.due(10), rmq.queue("Priority")
    frame = rmq.read(spark, first).union(rmq.read(spark, second))
    batches = Batches()
    batches.run(frame, rmq.folder / "checkpoint")
    second.send(["p1", "p2"], priority=20)
    batches.run(frame, rmq.folder / "checkpoint")
    assert batches.contents() == sorted([*names(10), "p1", "p2"])
    assert first.figures().counters["committed"] == 10
    assert second.figures().counters["committed"] == 2


@pytest.mark.long
def test_a_restored_checkpoint_is_refused_and_a_copied_one_too(spark, rmq):
    queue = rmq.due(4)
    frame = rmq.read(spark, queue)
    checkpoint, copy = rmq.folder / "checkpoint", rmq.folder / "copy"
    Batches().run(frame, checkpoint)
    shutil.copytree(checkpoint, copy)
    send_due(queue, range(4, 8))
    Batches().run(frame, checkpoint)
    send_due(queue, range(8, 12))
    with pytest.raises(StreamingQueryException) as refused:
        Batches().run(frame, copy)
    assert "restored from a backup or copied" in chained_text(refused.value)
    assert "Use a new checkpointLocation" in chained_text(refused.value)
    assert queue.figures().store.count == 4


def test_a_user_schema_reads_a_subset_with_content_as_bytes(spark, rmq):
    queue = rmq.queue("Priority", 1)
    queue.send([b"\xff\x00"], priority=77)
    rmq.drain(rmq.read(spark, queue, schema="priority BIGINT, content BINARY"))
    expected = spark.sql("SELECT 77L priority, unhex('ff00') content")
    assert_df_equality(rmq.parquet(spark), expected, ignore_nullable=True)


def test_what_is_no_utf8_fails_the_query_and_is_then_read_as_binary(spark, rmq):
    queue = rmq.due(3, slots=1)
    queue.send([b"\xff\xfe"], fixed_time=DUE)
    batches = Batches()
    with pytest.raises(StreamingQueryException) as error:
        batches.run(rmq.read(spark, queue), rmq.folder / "checkpoint")
    text = chained_text(error.value)
    for part in (
        f"Topic {queue.definition.name}, slot 0",
        "not valid UTF-8",
        'schema("content BINARY',
    ):
        assert part in text
    schema = "content BINARY, retriesLeft INT, deliveryCount INT"
    batches.run(rmq.read(spark, queue, schema=schema), rmq.folder / "checkpoint")
    (rows,) = batches.reads[0]
    assert {bytes(row.content) for row in rows} == {b"\xff\xfe", b"m0", b"m1", b"m2"}
    assert {(row.retriesLeft, row.deliveryCount) for row in rows} == {(16, 1)}


def test_the_columns_of_the_source_are_those_of_the_documentation(spark, rmq):
    assert rmq.read(spark, rmq.due(0)).schema == SOURCE_SCHEMA


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "a{b}"}, "is not a topic name"),
        ({"visibilityTimeout": "60"}, "is not a duration"),
        ({"queue": "dead"}, "queue as a table"),
        (
            {"maxRecords": "1"},
            "Unknown option for the rmq source: maxrecords. Did you mean maxRecordsPer",
        ),
    ],
)
def test_bad_options_are_refused_before_the_query_starts(spark, rmq, options, said):
    given = {**rmq.options(rmq.due(0)), **options}
    with pytest.raises(Exception, match=said):
        spark.readStream.format("rmq").options(**given).load()


def test_a_batch_read_is_refused_by_spark_read(spark, rmq):
    options = rmq.options(rmq.due(0))
    with pytest.raises(Exception, match=r"spark\.read cannot consume messages"):
        spark.read.format("rmq").options(**options).load().collect()


def test_a_schema_that_the_source_has_not_is_refused(spark, rmq):
    wrong = StructType([StructField("value", StringType())])
    with pytest.raises(Exception, match="asks for value string"):
        rmq.drain(rmq.read(spark, rmq.due(0), schema=wrong))


def test_neither_explain_nor_a_failed_query_shows_the_password(spark, rmq, capsys):
    secret = "hunter2-of-the-tests"
    with_secret = {"redis.url": rmq.url.replace("//", f"//nobody:{secret}@")}
    queue = rmq.due(3)
    frame = rmq.read(spark, queue, **with_secret, **{"redis.password": secret})
    frame.explain(True)
    shown = capsys.readouterr().out + repr(frame) + str(frame.schema)
    assert "rmq" in shown.lower()
    query = rmq.into_parquet(frame, processingTime="0 seconds")
    wait_until(query.exception, "the query to fail: there is no such user")
    assert "refused the user or password" in chained_text(query.exception())
    shown += chained_text(query.exception()) + str(query.status) + str(query.recentProgress)
    with pytest.raises(Exception) as error:  # noqa: PT011 - any; its text counts
        rmq.write(
            spark.sql("SELECT 'x' content"),
            queue.definition.name,
            **with_secret,
            **{"redis.password": secret, "fixedTime": "1"},
        )
    assert secret not in shown + chained_text(error.value)


def test_a_reader_that_gets_sigterm_twice_gives_back_its_messages_if_asked_for(rmq):
    """Spark ends a reader so, often with two signals; its stop must get to its end."""
    queue = rmq.due(8)
    program = (
        "import sys, json; from tests.spark.driving import Run\n"
        "run = Run(json.loads(sys.argv[1]))\n"
        "try:\n"
        "    start = run.initial(); end, rows = run.next(start)\n"
        "    print(len(rows), flush=True)\n"
        "    sys.stdin.read()\n"
        "finally:\n"
        "    run.stop()\n"
    )
    options = json.dumps(rmq.options(queue, visibilityTimeout="1h", releaseOnStop="true"))
    arguments = [sys.executable, "-c", program, options]
    with subprocess.Popen(
        arguments,
        env=programs.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout.readline() == b"8\n"
        assert due_to_another(queue) == 0
        reader.send_signal(signal.SIGTERM)
        reader.send_signal(signal.SIGTERM)
        assert reader.wait(30) == 0
    assert due_to_another(queue) == 8
