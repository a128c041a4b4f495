"""Calls in the order of Spark 4.0 and 4.1, made by hand; and what a checkpoint tells a source."""

import json
import subprocess
import sys

import pytest

from rmq_spark.errors import CheckpointRefused, InvalidOption
from rmq_spark.spark.compatibility import TELLS_START, EarlierStreamReader
from rmq_spark.spark.options import parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.source.checkpoint import (
    LoggedProgress,
    SeveralSources,
    place_of,
    read_progress,
)
from rmq_spark.spark.source.reader import RmqStreamReader

from ... import programs
from ...logs import logged
from ...waiting import wait_until
from ..driving import CheckpointFiles, names, refused, send_due


@pytest.fixture
def checkpoint(rmq):
    return CheckpointFiles(rmq.folder / "checkpoint")


@pytest.fixture
def opened(rmq):
    """Makes readers of one query, which are stopped at the end."""
    readers = []

    def opened(queue, **options):
        given = parse_source_options(rmq.options(queue, **options))
        readers.append(EarlierStreamReader(RmqStreamReader(given, SOURCE_SCHEMA)))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.stop()


def rows_of(reader, start, end):
    partitions = reader.partitions(start, end)
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return sorted(row["content"] for batch in batches for row in batch.to_pylist())


def first_batch(reader):
    """The calls for the first batch of a new query."""
    end = reader.latestOffset()
    return end, rows_of(reader, reader.initialOffset(), end)


def next_batch(reader, start):
    """The calls for a later one."""
    end = reader.latestOffset()
    reader.commit(start)
    return end, rows_of(reader, start, end)


def test_a_call_for_the_next_offset_commits_the_batch_before(rmq, opened):
    queue = rmq.due(6)
    reader = opened(queue, maxRecordsPerTrigger=4)
    first, some = first_batch(reader)
    second, others = next_batch(reader, first)
    assert queue.figures().counters["committed"] == 4
    assert sorted(some + others) == names(6)
    assert reader.latestOffset() == second
    assert queue.figures().counters["committed"] == 6


def test_a_new_query_with_nothing_due_begins_with_an_empty_batch(rmq, opened):
    queue = rmq.due(0)
    reader = opened(queue)
    end, rows = first_batch(reader)
    assert (reader.initialOffset(), rows) == (end, [])
    send_due(queue, range(3))
    wait_until(lambda: reader.latestOffset() != end, "a batch is planned")


@pytest.mark.parametrize("planned", [1, 2])
def test_a_batch_that_is_not_finished_comes_again_as_it_was(rmq, opened, planned):
    queue = rmq.due(6)
    reader = opened(queue, maxRecordsPerTrigger=3)
    end, rows = first_batch(reader)
    start = reader.initialOffset()
    if planned == 2:
        start, (end, rows) = end, next_batch(reader, end)
    again = opened(queue, maxRecordsPerTrigger=3)
    assert again.partitions(end, end) == []
    assert rows_of(again, again.initialOffset() if planned == 1 else start, end) == rows
    again.latestOffset()
    assert queue.figures().counters["committed"] == 3 * planned


def test_a_query_goes_on_behind_a_finished_batch(rmq, opened):
    queue = rmq.due(6)
    first, some = first_batch(opened(queue, maxRecordsPerTrigger=3))
    again = opened(queue, maxRecordsPerTrigger=3)
    assert again.partitions(first, first) == []
    _, others = next_batch(again, first)
    assert queue.figures().counters["committed"] == 3
    assert sorted(some + others) == names(6)


# -- AvailableNow: one call of latestOffset, before anything else


def test_the_checkpoint_tells_an_available_now_query_where_it_stands(rmq, opened, checkpoint):
    queue = rmq.due(4)
    place = {"checkpointLocation": str(checkpoint.path)}
    reader = opened(queue, **place)
    first, some = first_batch(reader)
    checkpoint.plan(0, first)
    checkpoint.finish(0)
    reader.stop()
    assert queue.figures().counters["committed"] == 4
    send_due(queue, range(4, 6))
    again = opened(queue, **place)
    second = again.latestOffset()
    assert again.partitions(first, first) == []
    again.commit(first)
    assert sorted(some + rows_of(again, first, second)) == names(6)


TWICE = """
import json, os, signal, sys, time
from rmq_spark.spark.options import parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.source.reader import RmqStreamReader
from rmq_spark.spark.source.run import QueryRun

def opened(*args, begin=QueryRun.__init__, **keywords):
    os.kill(os.getpid(), signal.SIGTERM)
    begin(*args, **keywords)

QueryRun.__init__ = opened
options, end = map(json.loads, sys.argv[1:])
reader = RmqStreamReader(parse_source_options(options), SOURCE_SCHEMA)
try:
    reader.partitions(end, end)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
finally:
    reader.stop()
"""


def test_a_second_sigterm_does_not_keep_a_finished_batch_from_its_commit(rmq, opened, checkpoint):
    """Seen on a busy machine: the first one let the reader begin a run, which heard the second."""
    queue = rmq.due(4)
    place = {"checkpointLocation": str(checkpoint.path)}
    first, _ = first_batch(opened(queue, **place))
    checkpoint.plan(0, first)
    checkpoint.finish(0)
    arguments = map(json.dumps, (rmq.options(queue, **place), first))
    done = subprocess.run(
        [sys.executable, "-c", TWICE, *arguments], env=programs.environment(), timeout=180
    )
    assert done.returncode == 0
    assert queue.figures().counters["committed"] == 4


def test_an_available_now_query_ends_with_the_batch_that_it_replays(rmq, opened, checkpoint):
    queue = rmq.due(4)
    place = {"checkpointLocation": str(checkpoint.path)}
    first, rows = first_batch(opened(queue, **place))
    checkpoint.plan(0, first)
    send_due(queue, range(4, 6))
    again = opened(queue, **place)
    assert again.latestOffset() == first
    assert again.partitions(first, first) == []
    assert rows_of(again, again.initialOffset(), first) == rows
    assert queue.figures().counters["committed"] == 0
    checkpoint.finish(0)
    again.stop()
    assert queue.figures().counters["committed"] == 4


@pytest.mark.parametrize("asks", [False, True])
def test_a_replayed_batch_that_its_sink_has_already_is_committed(rmq, opened, checkpoint, asks):
    """Failed before: nobody reads such a batch, so it stayed claimed, and came again later."""
    queue = rmq.due(4)
    place = {"checkpointLocation": str(checkpoint.path)}
    first, _ = first_batch(opened(queue, **place))
    checkpoint.plan(0, first)
    again = opened(queue, **place)
    if asks:
        assert again.latestOffset() == first
    assert again.partitions(first, first) == []
    checkpoint.finish(0)
    again.stop()
    assert queue.figures().counters["committed"] == 4


def test_a_replayed_batch_that_fails_before_it_is_read_stays(rmq, opened, checkpoint):
    queue = rmq.due(4)
    place = {"checkpointLocation": str(checkpoint.path)}
    first, rows = first_batch(opened(queue, **place))
    checkpoint.plan(0, first)
    again = opened(queue, **place)
    assert again.latestOffset() == first
    again.stop()
    assert queue.figures().counters["committed"] == 0
    assert rows_of(opened(queue, **place), again.initialOffset(), first) == rows


def test_without_the_checkpoint_a_query_that_asks_before_it_continues_is_refused(rmq, opened):
    queue = rmq.due(4)
    reader = opened(queue)
    first, _ = first_batch(reader)
    reader.stop()
    send_due(queue, range(4, 6))
    again = opened(queue)
    again.latestOffset()
    for logged_offset in (first, 12):  # that of Spark's source rate is a number
        with refused(CheckpointRefused, "triggerAvailableNowWrapper", "checkpointLocation"):
            again.partitions(logged_offset, first)
    assert queue.figures().counters["committed"] == 0


def test_without_the_checkpoint_the_first_batch_of_a_run_warns_that_it_may_stay_claimed(
    rmq, opened, caplog
):
    reader = opened(rmq.due(4))
    first, _ = first_batch(reader)
    warning = logged(caplog)  # before the end, when Spark no longer passes it on
    assert "it stays claimed until the query starts again" in warning
    assert "checkpointLocation" in warning
    caplog.clear()
    next_batch(reader, first)
    reader.stop()
    assert "stays claimed" not in logged(caplog)


def test_the_first_batch_of_a_run_warns_that_it_is_small_by_a_target_duration(rmq, opened, caplog):
    """Seen: a scheduled job took 10 messages in each run, without a word."""
    reader = opened(rmq.due(40), targetBatchDuration="10s", checkpointLocation="on")
    first, rows = first_batch(reader)
    assert len(rows) <= 10
    assert "targetBatchDuration begins with a few messages" in logged(caplog)
    caplog.clear()
    next_batch(reader, first)
    assert "targetBatchDuration" not in logged(caplog)


def test_a_run_that_repeats_a_batch_warns_of_the_end_too(rmq, opened, caplog):
    queue = rmq.due(4)
    first, _ = first_batch(opened(queue))
    caplog.clear()
    again = opened(queue)
    again.partitions(first, first)
    assert "stays claimed" not in logged(caplog)
    rows_of(again, again.initialOffset(), first)
    assert logged(caplog).count("it stays claimed until the query starts again") == 1


def test_of_the_end_no_query_warns_that_has_the_checkpoint_or_asks_on(
    rmq, opened, checkpoint, caplog
):
    first_batch(opened(rmq.due(4), checkpointLocation=str(checkpoint.path)))
    queue = rmq.due(0)
    waiting = opened(queue)
    waiting.latestOffset()
    send_due(queue, range(4))
    first_batch(waiting)
    assert "stays claimed" not in logged(caplog)


# -- reading a checkpoint


@pytest.fixture
def progress(rmq, checkpoint):
    queue = rmq.due(0)
    subscription = parse_source_options(rmq.options(queue)).subscription

    def offset(seq, topic=queue.definition.name):
        return {"consumer": "c", "seq": seq, "topic": topic, "version": 1}

    return offset, lambda: read_progress(str(checkpoint.path), subscription)


def test_nothing_is_known_of_a_new_query(progress):
    _, read = progress
    assert read() == LoggedProgress()


def test_the_last_finished_batch_is_found_and_one_behind_it(progress, checkpoint):
    offset, read = progress
    for batch in range(8, 12):
        checkpoint.plan(batch, offset(batch + 1))
        checkpoint.finish(batch)
    assert read() == LoggedProgress(offset(12), None)
    checkpoint.plan(12, offset(13))
    assert read() == LoggedProgress(offset(12), offset(13))


def test_among_several_sources_the_topic_decides(progress, checkpoint):
    offset, read = progress
    checkpoint.plan(0, {"0": 7}, 12, [{"a": 1}], offset(5, "Others"), offset(1))
    checkpoint.finish(0)
    assert read() == LoggedProgress(offset(1), None)
    other_group = {**offset(2), "consumer": "d@audit"}
    checkpoint.plan(1, offset(2), offset(2), other_group)  # a DataFrame that is used twice
    checkpoint.finish(1)
    assert read() == LoggedProgress(offset(2), None)
    checkpoint.plan(2, offset(3), {**offset(2), "consumer": "d"})
    with refused(SeveralSources, "2 sources of the query read", "in the group default"):
        read()


def test_the_checkpoint_of_a_query_of_other_topics_is_told_from_one_that_cannot_be_found(
    progress, checkpoint
):
    offset, read = progress
    checkpoint.plan(0, {"a": 1}, offset(5, "Others,More"))
    with refused(InvalidOption, "its query reads Others,More, not "):
        read()


def test_in_version_2_of_the_log_each_offset_has_the_name_of_its_source(progress, checkpoint):
    offset, read = progress
    checkpoint.plan(0)
    of_sources = {"rate": 12, "list": [{"a": 1}], "others": offset(5, "Others"), "0": offset(1)}
    lines = [f"{name}:{json.dumps(of)}" for name, of in of_sources.items()]
    (checkpoint.path / "offsets" / "0").write_text("\n".join(["v2", "{}", *lines]))
    checkpoint.finish(0)
    assert read() == LoggedProgress(offset(1), None)


# Spark takes each character for itself: a folder may have any of these names.
ODD = "a%20b#c d?e=f:ü"


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "FILE://"])
def test_a_local_place_is_read_as_spark_writes_it(tmp_path, scheme):
    assert place_of(f"{scheme}{tmp_path}//{ODD}/")[1] == f"{tmp_path}/{ODD}"


def test_a_relative_place_is_none_with_a_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place_of(f"on/{ODD}")[1] == f"{tmp_path}/on/{ODD}"


def test_a_place_in_a_store_is_read_as_spark_writes_it():
    """As pyarrow takes options behind a question mark, the place cannot have one."""
    options = "?enable_tls=false"
    at = f"abfss://on@account.dfs.core.windows.net/{ODD.replace('?', '')}/{options}"
    assert place_of(at)[1] == f"on/{ODD.replace('?', '')}"


@pytest.mark.parametrize("path", ["dbfs:/checkpoint", "what://folder/checkpoint"])
def test_a_place_that_cannot_be_read_is_refused(rmq, path):
    subscription = parse_source_options(rmq.options(rmq.due(0))).subscription
    with refused(InvalidOption, f"checkpointLocation='{path}'", "pyarrow"):
        read_progress(path, subscription)


@pytest.mark.parametrize("login", ["me:s3cret", "me:s3/s3cret", "me:s3 s3cret", "s3cret"])
def test_the_login_of_a_place_that_cannot_be_read_is_not_shown(rmq, login):
    subscription = parse_source_options(rmq.options(rmq.due(0))).subscription
    with pytest.raises(InvalidOption, match=r"='what://[*]{3}@bucket/on'") as said:
        read_progress(f"what://{login}@bucket/on", subscription)
    assert "s3cret" not in str(said.value)


@pytest.mark.parametrize("place", ["dbfs:/on", "/no/such/folder"])
def test_a_checkpoint_that_cannot_be_read_does_not_keep_a_run_from_ending(rmq, caplog, place):
    queue = rmq.due(5)
    options = {"releaseOnStop": "true", "checkpointLocation": place}
    with rmq.by_hand(queue, visibilityTimeout="1h", **options) as run:
        run.next(run.initial())
    assert logged(caplog).count(f"was not committed: checkpointLocation='{place}'") == 1
    with rmq.by_hand(queue) as other:
        _, rows = other.until(other.initial(), 5)
    assert sorted(row["content"] for row in rows) == names(5)


# -- a real query, on any Spark


@pytest.mark.parametrize(
    ("version_of_log", "scheme", "name"), [("1", "", ""), ("2", "file://", "%20#b c?d=ü")]
)
def test_a_query_that_stops_commits_what_its_checkpoint_has_as_finished(
    spark, rmq, request, version_of_log, scheme, name
):
    setting = "spark.sql.streaming.offsetLog.formatVersion"  # earlier ones ignore it
    spark.conf.set(setting, version_of_log)
    request.addfinalizer(lambda: spark.conf.unset(setting))
    queue = rmq.due(5)
    place = rmq.folder / f"checkpoint{name}"
    frame = rmq.read(spark, queue, checkpointLocation=f"{scheme}{place}")
    query = rmq.into_parquet(frame, name, processingTime="1 hour")
    wait_until(lambda: (place / "commits/0").exists(), "the batch is finished")
    query.stop()
    wait_until(lambda: queue.figures().counters["committed"] == 5, "it is committed")
    assert sorted(rmq.contents(spark, name)) == names(5)


# -- a real query


@pytest.mark.skipif(TELLS_START, reason="Spark 4.2 shows a source that its batch is finished")
def test_a_batch_that_was_in_the_sink_when_the_driver_died_is_committed(spark, rmq):
    """Failed before: the messages were in the table a second time, when their lease had ended."""
    queue = rmq.due(4)
    frame = spark.readStream.format("rmq").options(**rmq.options(queue)).load()
    rmq.into_parquet(frame).awaitTermination()
    for file in (rmq.folder / "checkpoint" / "commits").iterdir():
        file.unlink()  # as if the driver had died before it wrote it
    rmq.into_parquet(rmq.read(spark, queue)).awaitTermination()
    wait_until(lambda: queue.figures().counters["committed"] == 4, "the commit")
    assert rmq.contents(spark) == names(4)
