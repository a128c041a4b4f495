"""The sink and the limits of a topic: repeats are counted; without room, it fails or waits."""

import threading
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from rmq_spark.errors import TopicFull, UnknownTopic
from rmq_spark.protocol.pages import first_entries
from rmq_spark.protocol.staging import StageName
from rmq_spark.spark.datasource import RmqDataSource
from rmq_spark.spark.sink import columns as packing

from ...waiting import wait_until
from .sink_driving import Sink, numbers

SCHEMA = StructType([StructField("content", StringType())])


def write(rmq, queue, contents, **options):
    given = {"redis.url": rmq.url, "topic": queue.definition.name, "fixedTime": "1000"} | options
    writer = RmqDataSource(given).writer(SCHEMA, overwrite=False)
    return writer.write(iter([pa.record_batch({"content": contents})])).counts


def full(rmq, slots=1, **settings):
    """A topic with room for one more message in its slot."""
    queue = rmq.queue("FixedTime", slots, max_messages=5 * slots, **settings)
    queue.send(numbers(0, 4), slot_basis="one", fixed_time=1000)
    return queue


def test_repeated_rows_are_counted(rmq):
    queue = rmq.queue("FixedTime", unique_for="1h")
    assert write(rmq, queue, numbers(0, 3)) == {"new": 3}
    assert write(rmq, queue, numbers(2, 5)) == {"new": 2, "repeated": 1}


def test_an_exactly_once_batch_leaves_out_what_is_repeated(rmq, caplog):
    queue = rmq.queue("FixedTime", unique_for="1h")
    sink = Sink(rmq, queue, str(uuid4()))
    with caplog.at_level("INFO", logger="rmq_spark"):
        sink.run(0, numbers(0, 4), numbers(2, 6))
    assert "batch 0: 6 new, 0 merged, 2 repeated" in caplog.text
    sink.run(0, numbers(0, 4), numbers(2, 6))
    assert sorted(sink.consume()) == numbers(0, 6)


def test_a_full_topic_fails_the_write(rmq):
    queue = full(rmq)
    with pytest.raises(TopicFull, match="holds 5 of the 5 messages") as failed:
        write(rmq, queue, numbers(4, 9))
    assert failed.value.sent.new == 1
    assert write(rmq, queue, numbers(0, 5)) == {"merged": 5}


def waiting_write(rmq, caplog, work):
    """Runs work in a thread until it waits for room."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    wait_until(lambda: "waits for room" in caplog.text, "a write that waits")
    return thread, result


def test_or_the_write_waits_until_there_is_room(rmq, caplog):
    queue = full(rmq)
    thread, counts = waiting_write(
        rmq, caplog, lambda: write(rmq, queue, numbers(4, 30), onFull="wait")
    )
    sink = Sink(rmq, queue, "")
    taken = []
    while thread.is_alive():
        taken += sink.consume()
        thread.join(0.05)
    taken += sink.consume()
    assert counts == [{"new": 26}]
    assert sorted(taken) == sorted(numbers(0, 30))  # equal times go by content: m10 before m8


def test_an_exactly_once_batch_fails_while_it_is_staged_and_leaves_nothing(rmq):
    queue = full(rmq)
    queue.send(["last"], fixed_time=1000)
    sink = Sink(rmq, queue, str(uuid4()))
    with pytest.raises(TopicFull):
        sink.run(0, numbers(10, 20))
    assert sink.stages() == ([], [])
    assert len(sink.consume()) == 5
    sink.run(0, numbers(10, 20))
    assert sink.consume() == numbers(10, 20)


def test_or_it_waits_and_is_then_published_whole(rmq, caplog):
    queue = full(rmq)
    queue.send(["last"], fixed_time=1000)
    sink = Sink(rmq, queue, str(uuid4()))
    sink.options["onFull"] = "wait"
    thread, _ = waiting_write(rmq, caplog, lambda: sink.run(0, numbers(10, 40)))
    assert len(sink.consume()) == 5
    thread.join(60)
    assert not thread.is_alive()
    assert sorted(sink.consume()) == numbers(10, 40)


def test_an_expiry_that_is_set_while_a_batch_waits_is_for_later_batches(rmq, caplog, monkeypatch):
    """Failed before, with StageLost: a part of the stage had bodies."""
    monkeypatch.setattr(packing, "ROWS_A_BATCH", 10)
    queue = full(rmq)
    queue.send(["last"], fixed_time=1000)
    sink = Sink(rmq, queue, str(uuid4()))
    sink.options["onFull"] = "wait"
    thread, _ = waiting_write(rmq, caplog, lambda: sink.run(0, numbers(10, 40)))
    rmq.broker.alter(queue.definition.name, time_to_live="1d")
    sink.consume()
    thread.join(60)
    assert not thread.is_alive()
    assert sorted(sink.consume()) == numbers(10, 40)


@pytest.mark.parametrize("again", [("FixedTime", 4), ("Priority", 1)])
def test_a_batch_that_waits_for_a_topic_that_is_created_in_another_way_fails(
    rmq, caplog, monkeypatch, again
):
    """Failed before: a part of it was lost in slots that nobody reads."""
    monkeypatch.setattr(packing, "ROWS_A_BATCH", 10)
    queue = full(rmq)
    queue.send(["last"], fixed_time=1000)
    sink = Sink(rmq, queue, str(uuid4()))
    sink.options["onFull"] = "wait"
    failed = []

    def run():
        try:
            sink.run(0, numbers(10, 40))
        except UnknownTopic as error:
            failed.append(error)

    thread, _ = waiting_write(rmq, caplog, run)
    rmq.broker.delete(queue.definition.name)
    rmq.broker.create(queue.definition.name, *again)
    thread.join(60)
    assert not thread.is_alive()
    assert failed


@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
def test_rows_without_an_expiry_get_that_of_the_topic(rmq, guarantee):
    queue = rmq.queue("FixedTime", 1, time_to_live="1m")
    schema = StructType([*SCHEMA, StructField("timeToLive", LongType())])
    given = {"redis.url": rmq.url, "topic": queue.definition.name, "fixedTime": "1000000"}
    rows = pa.record_batch({"content": ["a", "b"], "timeToLive": pa.array([None, 5000])})
    source = RmqDataSource(given | {"deliveryGuarantee": guarantee})
    writer = source.streamWriter(schema, overwrite=False)
    if guarantee == "exactlyOnce":
        name = StageName(str(uuid4()), 0, 0, "a")
        writer.commit([writer.stage(iter([rows]), name)], 0)
    else:
        writer.write(iter([rows]))
    stored = first_entries(queue.pages("store", 0), 9)
    assert {one.content: one.expires_at_ms for one in stored} == {
        b"a": 1_060_000,
        b"b": 1_005_000,
    }
