"""A sink that sends exactly once: killed at each step, its messages come once each."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from rmq_spark.client import staging as stages
from rmq_spark.errors import (
    CheckpointRefused,
    InvalidMessage,
    InvalidOption,
    StageLost,
    UnknownTopic,
)
from rmq_spark.protocol import staging
from rmq_spark.protocol.staging import StageName
from rmq_spark.redis.server import Server
from rmq_spark.spark.datasource import RmqDataSource
from rmq_spark.spark.sink import columns as packing
from rmq_spark.spark.sink.columns import Rows
from rmq_spark.spark.sink.exactly_once import RmqStagedStreamWriter
from rmq_spark.spark.sink.writer import RmqStreamWriter, SinkTopics
from rmq_spark.topics.keys import sink_key

from ... import programs
from ...processes import family
from ...waiting import wait_until
from ..driving import DUE, Rmq, names, refused
from .sink_driving import SCHEMA, Sink, killed, numbers

MANY = 200_000  # so many that publishing them takes long enough to be killed in its middle


@pytest.fixture
def sink(rmq):
    return Sink(rmq, rmq.queue("FixedTime", 4), f"query-of-{rmq.name()}")


STEPS = [
    *(("seal", 0, after) for after in (False, True)),
    *(("publish", nth, after) for nth in (0, 1, 5, 7) for after in (False, True)),
    *(("announce", 0, after) for after in (False, True)),
    *(("conclude", 0, after) for after in (False, True)),
    *(("discard", 0, after) for after in (False, True)),
]


@pytest.mark.parametrize("aborted", [False, True], ids=["killed", "failed"])
@pytest.mark.parametrize(("script", "nth", "after"), STEPS)
def test_a_batch_ended_at_any_step_and_run_again_sends_each_message_once(
    sink, monkeypatch, script, nth, after, aborted
):
    sink.run(0, ["before"])
    sink.stage(1, ["of a task that failed"])
    rows = numbers(0, 40), numbers(40, 80)
    messages = sink.staged(1, *rows)
    with killed(monkeypatch, script, nth, after):
        sink.writer().commit(messages, 1)
    if aborted:  # as Spark does when a commit has failed
        sink.writer().abort(messages, 1)
    taken = sink.consume()
    sink.run(1, *rows)
    taken += sink.consume()
    sink.run(1, *rows)
    sink.run(2, ["next"])
    taken += sink.consume()
    assert sorted(taken) == sorted(["before", *names(80), "next"])
    assert sink.stages() == ([], [])
    assert sink.queue.figures().counters["accepted"] == 82


def test_stages_of_more_than_a_call_takes_are_resumed_in_their_middle(rmq, monkeypatch):
    sink = Sink(rmq, rmq.queue("FixedTime", 1), f"query-of-{rmq.name()}")
    rows = numbers(0, 6000), numbers(6000, 12_000)
    messages = sink.staged(1, *rows)
    with killed(monkeypatch, "publish", 2, after=True):
        sink.writer().commit(messages, 1)
    taken = sink.consume()
    assert len(taken) == 3 * 2048
    sink.run(1, *rows)
    assert sorted(taken + sink.consume()) == names(12_000)


def test_tasks_that_staged_for_a_driver_that_died_leave_nothing_behind(sink):
    sink.staged(1, numbers(0, 40), numbers(40, 80))
    assert sink.consume() == []
    sink.run(1, numbers(0, 40), numbers(40, 80))
    assert sorted(sink.consume()) == names(80)
    assert sink.stages() == ([], [])


def test_only_the_attempt_that_spark_reports_is_published(sink):
    """Failed, retried and speculative attempts of one task; one ends after the batch."""
    sink.stage(1, numbers(0, 20))
    winner = sink.stage(1, numbers(0, 20))
    sink.stage(1, numbers(0, 20))
    sink.writer().commit([winner], 1)
    sink.stage(1, numbers(0, 20))
    assert sorted(sink.consume()) == names(20)
    assert sink.stages() == ([], [])
    sink.run(2, numbers(0, 20))
    assert sorted(sink.consume()) == names(20)
    assert sink.stages() == ([], [])


def test_a_replay_with_other_rows_does_not_change_what_was_sealed(sink, monkeypatch):
    """It neither adds what is new, nor leaves out a slot that has no rows any more."""
    messages = sink.staged(1, numbers(0, 40))
    with killed(monkeypatch, "publish", 0):
        sink.writer().commit(messages, 1)
    sink.run(1, ["other"])
    assert sorted(sink.consume()) == names(40)
    assert sink.stages() == ([], [])


def test_a_full_server_lets_through_what_was_sealed_when_the_query_starts_again(
    own_redis, monkeypatch, tmp_path
):
    rmq = Rmq(own_redis.url, "full", tmp_path)
    sink = Sink(rmq, rmq.queue("FixedTime", 4), "a-query")
    messages = sink.staged(1, numbers(0, 40))
    with killed(monkeypatch, "publish", 1):
        sink.writer().commit(messages, 1)
    sink.queue.server.client.config_set("maxmemory", 1)  # any amount is used by now
    sink.run(1, numbers(0, 40))
    sink.run(1, numbers(0, 40))
    assert sorted(sink.consume()) == names(40)
    assert sink.stages() == ([], [])
    rmq.close()


def test_a_sealed_batch_whose_time_has_passed_meanwhile_is_published(sink, monkeypatch):
    time_ms = int(time.time() * 1000) + 3000
    sink.options = {"fixedTime": str(time_ms), "pastFixedTime": "fail"}
    messages = sink.staged(1, numbers(0, 40))
    with killed(monkeypatch, "publish", 1):
        sink.writer().commit(messages, 1)
    wait_until(lambda: time.time() * 1000 > time_ms, "the time to pass")
    sink.run(1, numbers(0, 40))
    assert sorted(sink.consume()) == names(40)
    with refused(InvalidMessage, f"fixedTime is {time_ms} (the option)"):
        sink.stage(2, ["late"])


def test_what_tasks_staged_before_an_old_driver_sealed_is_swept(sink):
    """Some tasks of the replay found the batch unsealed, others sealed."""
    old = sink.staged(1, numbers(0, 40))
    early = sink.stage(1, numbers(0, 20))
    sink.writer().commit(old, 1)
    late = sink.stage(1, numbers(20, 40), 1)
    sink.writer().commit([early, late], 1)
    assert sorted(sink.consume()) == names(40)
    assert sink.stages() == ([], [])


def test_a_batch_that_was_not_staged_is_not_sealed_when_its_seal_was_lost(sink):
    """Else it would be concluded without the rows of the tasks that left them out."""
    early = sink.stage(1, numbers(0, 20))
    sink.writer().commit([sink.stage(1, numbers(0, 40))], 1)
    late = sink.stage(1, numbers(20, 40), 1)
    sink.queue.server.client.delete(sink_key(sink.query))
    with refused(StageLost, "Batch 1", "Redis has lost the seal"):
        sink.writer().commit([early, late], 1)
    assert not sink.queue.server.client.exists(sink_key(sink.query))


def test_a_replay_of_a_batch_before_the_sealed_one_is_refused(sink):
    """By a driver that was thought dead, whose tasks found its batch sealed."""
    sink.run(1, numbers(0, 20))
    again = sink.staged(1, numbers(0, 20))
    sink.run(2, numbers(20, 40))
    with refused(CheckpointRefused, "batch 1 is repeated, but batch 2"):
        sink.writer().commit(again, 1)


def warnings(sink, caplog):
    """Those that name the query: what earlier tests have left at work may log, too."""
    found = (record for record in caplog.records if record.levelname == "WARNING")
    return [record.getMessage() for record in found if sink.query in record.getMessage()]


@pytest.mark.parametrize("published", [True, False])
def test_a_batch_that_comes_again_with_another_number_of_rows_is_warned_of(
    sink, monkeypatch, caplog, published
):
    """A checkpoint restored one batch behind looks like a replay."""
    messages = sink.staged(1, numbers(0, 30), numbers(30, 40))
    if published:
        sink.writer().commit(messages, 1)
    else:
        with killed(monkeypatch, "publish", 1):
            sink.writer().commit(messages, 1)
    sink.run(1, numbers(0, 40), numbers(40, 47))
    (warning,) = warnings(sink, caplog)
    for part in ("batch 1 ", sink.query, "40 messages", "47 rows", "are not", "restored"):
        assert part in warning
    assert sorted(sink.consume()) == names(40)


def test_a_batch_that_comes_again_as_it_was_is_not_warned_of(sink, caplog):
    for batch in (1, 1, 2, 2):
        sink.run(batch, numbers(0, 30), [], numbers(30, 40))
    assert warnings(sink, caplog) == []


def test_a_batch_that_another_version_sealed_is_not_warned_of(sink, caplog):
    sink.queue.server.client.hset(sink_key(sink.query), "batch", 1)
    sink.run(1, numbers(0, 30))
    assert warnings(sink, caplog) == []


def test_a_failed_batch_of_which_a_task_is_missing_deletes_what_was_staged(sink):
    (message,) = sink.staged(1, numbers(0, 20))
    sink.writer().abort([None, message], 1)
    assert sink.stages() == ([], [])


def test_a_failed_commit_deletes_nothing(sink):
    """Its seal may yet arrive: what it names must be there."""
    messages = sink.staged(1, numbers(0, 20))
    sink.writer().abort(messages, 1)
    sink.writer().commit(messages, 1)
    assert sorted(sink.consume()) == names(20)


def test_a_task_that_fails_takes_back_what_it_staged(sink):
    with refused(InvalidMessage, "content is None"):
        sink.stage(1, [*numbers(0, 20), None])
    assert sink.stages() == ([], [])


def test_a_commit_lacking_the_result_of_a_task_publishes_nothing(sink):
    message = sink.stage(1, numbers(0, 20))
    for messages in ([None], [message, None]):
        with refused(InvalidOption, "no rows to 1 of", "trigger(continuous=...)"):
            sink.writer().commit(messages, 1)
    assert sink.consume() == []
    sink.writer().commit([message], 1)
    assert sorted(sink.consume()) == names(20)


def test_a_batch_without_rows_is_no_obstacle(sink):
    sink.run(1, [], [])
    sink.writer().commit([], 2)
    sink.run(3, numbers(0, 3))
    assert sorted(sink.consume()) == names(3)


def test_a_restored_checkpoint_is_refused_and_nothing_is_sent(sink):
    sink.run(7, numbers(0, 3))
    messages = sink.staged(6, numbers(3, 6))
    with refused(CheckpointRefused, "batch 6 is repeated, but batch 7", "checkpointLocation"):
        sink.writer().commit(messages, 6)
    assert sorted(sink.consume()) == names(3)
    assert sink.stages() == ([], [])


def test_a_driver_that_was_thought_dead_adds_and_destroys_nothing(sink, monkeypatch):
    """It wakes at its seal, in its publishing, or after the next batch has begun."""
    old = sink.staged(1, numbers(0, 20))
    sink.run(1, numbers(0, 20))
    sink.writer().commit(old, 1)
    sealed = sink.staged(2, numbers(20, 40))
    with killed(monkeypatch, "publish", 1):
        sink.writer().commit(sealed, 2)
    sink.run(2, numbers(20, 40))
    next_batch = sink.staged(3, numbers(40, 60))
    sink.writer().commit(sealed, 2)
    sink.writer().commit(next_batch, 3)
    with pytest.raises(CheckpointRefused):
        sink.writer().commit(sealed, 2)
    assert sorted(sink.consume()) == names(60)


def test_a_batch_that_is_not_run_again_is_published_before_the_next(sink, monkeypatch):
    """Somebody took it out of the checkpoint; what was sealed is sent all the same."""
    messages = sink.staged(1, numbers(0, 40))
    with killed(monkeypatch, "publish", 1):
        sink.writer().commit(messages, 1)
    sink.run(2, numbers(40, 60))
    assert sorted(sink.consume()) == names(60)
    sink.run(3, numbers(60, 61))
    assert sink.consume() == ["m60"]


def test_two_drivers_that_publish_at_once_do_it_once(sink, monkeypatch):
    first, second = sink.staged(1, numbers(0, 40)), sink.staged(1, numbers(0, 40))
    pipeline = Server.pipeline
    joined = []

    def with_another(self, calls):
        replies = pipeline(self, calls)
        if any(getattr(call, "script", None) == "publish" for call in calls) and not joined:
            joined.append(True)
            sink.writer().commit(second, 1)
        return replies

    monkeypatch.setattr(Server, "pipeline", with_another)
    monkeypatch.setattr(staging, "PUBLISHES_A_PIPELINE", 1)
    sink.writer().commit(first, 1)
    assert sorted(sink.consume()) == names(40)
    assert sink.stages() == ([], [])


def test_a_driver_whose_evidence_a_later_batch_has_swept_misses_nothing(sink, monkeypatch):
    """It publishes, and sees what it looks for gone, for another has concluded its batch."""
    messages = sink.staged(1, numbers(0, 40))
    pipeline = Server.pipeline
    overtaken = []

    def overtaking(self, calls):
        if any(getattr(call, "script", None) == "publish" for call in calls) and not overtaken:
            overtaken.append(True)
            sink.run(1, numbers(0, 40))
            sink.run(2, numbers(40, 80))
        return pipeline(self, calls)

    monkeypatch.setattr(Server, "pipeline", overtaking)
    with refused(CheckpointRefused, "batch 1 is repeated, but batch 2"):
        sink.writer().commit(messages, 1)
    assert sorted(sink.consume()) == names(80)
    assert sink.queue.figures().counters["accepted"] == 80


def test_the_evidence_of_a_batch_goes_with_the_sweep_of_a_later_one(sink):
    def registered():
        begun = sink.queue.ask(staging.begun, sink.queue.slots)
        return {StageName.parse(name).batch for of in begun for name in of}

    for batch in (1, 2, 3):
        sink.run(batch, numbers(0, 40))
        assert registered() == {batch}


@pytest.mark.parametrize("script", ["stage", "seal", "publish", "announce", "conclude", "discard"])
def test_every_call_may_be_repeated_and_the_cache_flushed(sink, monkeypatch, script):
    pipeline = Server.pipeline

    def twice(self, calls):
        if any(getattr(call, "script", None) == script for call in calls):
            pipeline(self, calls)
            self.client.script_flush()
        return pipeline(self, calls)

    monkeypatch.setattr(Server, "pipeline", twice)
    sink.stage(1, ["of a task that failed"])
    sink.run(1, numbers(0, 40), numbers(40, 80))
    assert sorted(sink.consume()) == names(80)
    assert sink.queue.figures().counters["accepted"] == 80
    assert sink.stages() == ([], [])


def test_a_task_whose_stage_was_swept_fails_instead_of_sending_a_part(sink, monkeypatch):
    stage = stages.stage

    def swept(queue, name, *messages):
        stage(queue, name, *messages)
        stages.sweep(queue, range(4), sink.query, 1, {})

    monkeypatch.setattr(stages, "stage", swept)
    monkeypatch.setattr(packing, "ROWS_A_BATCH", 10)
    with pytest.raises(StageLost):
        sink.stage(1, numbers(0, 40))


def created_again(sink, slots):
    """The same topic, deleted and created with another number of slots."""
    sink.rmq.broker.delete(sink.topic)
    sink.rmq.broker.create(sink.topic, "FixedTime", slots)


def test_a_topic_created_again_gets_nothing_that_was_staged_for_the_old_one(sink):
    """Seen: the batch was published into slots that the new topic does not have."""
    writer = sink.writer()  # the driver reads the definition
    created_again(sink, 2)
    rows = pa.record_batch({"content": numbers(0, 20), "topic": pa.array([None] * 20, pa.string())})
    staged = writer.stage(iter([rows]), StageName(sink.query, 1, 0, "attempt"))
    with pytest.raises(StageLost, match=r"was created again in another way .* Start the query aga"):
        writer.commit([staged], 1)
    assert sink.stages() == ([], [])
    sink.run(1, numbers(0, 20))
    assert sorted(sink.consume()) == names(20)


def test_a_topic_created_again_gets_no_rows_that_were_checked_for_the_old_one(sink):
    """At least once. Seen: rows were reported as sent that lay in slots that no topic has."""
    sink.options = {"deliveryGuarantee": "atLeastOnce"}
    writer = sink.writer()
    created_again(sink, 2)
    rows = pa.record_batch({"content": numbers(0, 20), "topic": pa.array([None] * 20, pa.string())})
    with pytest.raises(UnknownTopic, match=r"created in another way\. None of these"):
        writer.write(iter([rows]))
    assert sink.queue.server.client.keys(f"{sink.topic}_*") == []
    sink.writer().write(iter([rows]))
    assert sorted(sink.consume()) == names(20)


def test_rows_are_checked_for_one_definition_while_another_thread_learns_of_the_next(
    sink, monkeypatch
):
    """Failed before: contents were sent as the keys of a topic that was created with keys."""
    sink.options = {"deliveryGuarantee": "atLeastOnce"}
    queues, find_queue, names_of = [], SinkTopics.queue, Rows.names

    def noted(*arguments):
        queues.append(find_queue(*arguments))
        return queues[-1]

    def names_before_the_topic_is_created_again(rows, topic):
        found = names_of(rows, topic)
        sink.rmq.broker.delete(sink.topic)
        sink.rmq.broker.create(
            sink.topic, "FixedTime", sink.queue.definition.slot_amount, keyed=True
        )
        queues[0].distrust()
        assert queues[0].refresh()
        return found

    writer = sink.writer()
    monkeypatch.setattr(SinkTopics, "queue", noted)
    monkeypatch.setattr(Rows, "names", names_before_the_topic_is_created_again)
    rows = pa.record_batch({"content": numbers(0, 20), "topic": pa.array([None] * 20, pa.string())})
    with pytest.raises(UnknownTopic, match=r"created in another way\. None of these"):
        writer.write(iter([rows]))
    assert sink.queue.server.client.keys(f"{sink.topic}_*") == []


def test_several_topics_in_one_batch(rmq, sink, monkeypatch):
    other = Sink(rmq, rmq.queue("FixedTime", 2), sink.query)

    def staged():
        return [sink.stage(1, names(30)), sink.stage(1, names(20), 1, topic=other.topic)]

    messages = staged()
    with killed(monkeypatch, "publish", 3, after=True):
        sink.writer().commit(messages, 1)
    taken, others = sink.consume(), other.consume()
    sink.writer().commit(staged(), 1)
    assert sorted(taken + sink.consume()) == names(30)
    assert sorted(others + other.consume()) == names(20)
    assert sink.stages() == other.stages() == ([], [])


def test_every_consumer_group_gets_each_message_once(rmq, monkeypatch):
    sink = Sink(rmq, rmq.queue("FixedTime", 2, groups=("", "audit")), f"query-of-{rmq.name()}")
    messages = sink.staged(1, numbers(0, 40))
    with killed(monkeypatch, "publish", 1):
        sink.writer().commit(messages, 1)
    taken = sink.consume()
    sink.run(1, numbers(0, 40))
    assert sorted(taken + sink.consume()) == names(40)
    with rmq.broker.consumer(sink.topic, "auditor", group="audit") as auditor:
        assert sorted(message.content.decode() for message in auditor.poll()) == names(40)


# -- options


def test_the_default_is_at_least_once(sink):
    assert type(sink.writer(deliveryGuarantee="atLeastOnce")) is RmqStreamWriter
    assert type(sink.writer(deliveryGuarantee="EXACTLYONCE")) is RmqStagedStreamWriter
    given = {"redis.url": sink.rmq.url, "topic": sink.topic, "fixedTime": "1"}
    assert type(RmqDataSource(given).streamWriter(SCHEMA, overwrite=False)) is RmqStreamWriter


def test_a_guarantee_that_is_none_is_refused(sink):
    with refused(InvalidOption, "deliveryGuarantee='maybe'", "atLeastOnce, exactlyOnce"):
        sink.writer(deliveryGuarantee="maybe")


@pytest.mark.parametrize("operation", ["cancel", "requeue", "rollback"])
def test_only_sending_can_be_exactly_once(sink, operation):
    with refused(InvalidOption, f"operation={operation}", "Accepted: operation=send"):
        sink.writer(operation=operation)


def test_a_batch_write_is_refused_with_what_to_do(spark, rmq):
    frame = spark.range(3).selectExpr("cast(id AS STRING) AS content")
    with refused(Exception, "exactlyOnce is not accepted by df.write", "df.writeStream"):
        rmq.write(frame, rmq.queue().definition.name, deliveryGuarantee="exactlyOnce")


def test_outside_of_a_streaming_query_it_is_refused(sink):
    with refused(InvalidOption, "only in a streaming query", "elsewhere: atLeastOnce"):
        sink.writer().write(iter([]))


# -- Spark itself


def into_rmq(frame, rmq, topic, **options):
    return (
        frame.writeStream.format("rmq")
        .options(**{"redis.url": rmq.url, "topic": topic, "fixedTime": str(DUE), **options})
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def make_files(folder, *lengths):
    """Files whose rows go on being numbered; a stream takes them in order."""
    folder.mkdir()
    start = 0
    for n, length in enumerate(lengths):
        pq.write_table(pa.table({"id": range(start, start + length)}), folder / f"{n}.parquet")
        os.utime(folder / f"{n}.parquet", (n, n))
        start += length


def stream_of(spark, folder):
    """One file a batch."""
    reader = spark.readStream.schema(StructType([StructField("id", LongType())]))
    frame = reader.option("maxFilesPerTrigger", "1").parquet(str(folder))
    return frame.selectExpr("concat('m', id) AS content")


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_a_query_killed_before_sparks_commit_log_was_written(spark, rmq, guarantee):
    sink = Sink(rmq, rmq.queue("FixedTime", 2), "")
    make_files(rmq.folder / "source", 30, 20)
    frame = stream_of(spark, rmq.folder / "source")
    options = {"deliveryGuarantee": guarantee} if guarantee == "exactlyOnce" else {}
    assert into_rmq(frame, rmq, sink.topic, **options).awaitTermination(60)
    assert sorted(sink.consume()) == names(50)
    commits = rmq.folder / "checkpoint" / "commits"
    for file in (commits / "1", commits / ".1.crc"):
        file.unlink()
    assert into_rmq(frame, rmq, sink.topic, **options).awaitTermination(60)
    assert sorted(sink.consume()) == sorted(numbers(30, 50) if not options else [])
    assert sink.stages() == ([], [])


@pytest.mark.long
def test_a_driver_killed_while_it_publishes_what_a_task_staged_at_the_second_try(spark, rmq):
    """kill -9 of everything that the query runs in; the first copies are taken at once."""
    queue = rmq.queue("FixedTime", 2)
    sink = Sink(rmq, queue, "")
    make_files(rmq.folder / "source", MANY, 10)
    options = {"redis.url": rmq.url, "topic": sink.topic, "fixedTime": str(DUE)}
    options["deliveryGuarantee"] = "exactlyOnce"
    given = {"folder": str(rmq.folder), "options": options}
    command = programs.command("spark.sink.exactly_once_program", json.dumps(given))
    with subprocess.Popen(command, env=programs.environment()) as driver:
        try:
            published = queue.keys.store(0)
            wait_until(lambda: queue.server.client.exists(published), "publishing to begin", 200)
        finally:
            for pid in family(driver.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert (rmq.folder / "failed").exists()
    query = json.loads((rmq.folder / "checkpoint" / "metadata").read_text())["id"]
    assert queue.server.ask(staging.last_sealed(sink_key(query))).pending.stages
    taken = sink.consume()
    assert 0 < len(taken) < MANY

    frame = stream_of(spark, rmq.folder / "source")
    resumed = into_rmq(frame, rmq, sink.topic, deliveryGuarantee="exactlyOnce")
    assert resumed.awaitTermination(60)
    assert str(resumed.id) == query
    taken += sink.consume()
    assert (len(taken), len(set(taken))) == (MANY + 10, MANY + 10)
    assert sink.stages() == ([], [])
