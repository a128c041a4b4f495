"""Rows that roll back, cancel and requeue single messages, and topics made with retry settings."""

from datetime import timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from rmq_spark.errors import InvalidMessage, InvalidOption, UnknownTopic
from rmq_spark.protocol.pages import first_entries
from rmq_spark.topics.settings import ROCKETMQ_BACKOFF

from ...waiting import wait_until
from ..driving import DUE, refused
from .test_bad_rows import write

CLAIMED = ["content", "slot", "claimId"]


def claimed(rmq, count=3, **settings):
    """A topic whose messages m0, m1, ... a run has claimed, and the rows it read."""
    queue = rmq.due(count, slots=1, **settings)
    run = rmq.by_hand(queue)
    end, rows = run.next(run.initial())
    return queue, run, end, rows


def roll_back(rmq, queue, rows, delay_column=None, reasons=None, **options):
    columns = {
        "content": (StringType(), [row["content"] for row in rows]),
        "slot": (IntegerType(), [row["slot"] for row in rows]),
        "claimId": (StringType(), [row["claimId"] for row in rows]),
    }
    if delay_column is not None:
        columns["delay"] = (StringType(), [delay_column] * len(rows))
    if reasons is not None:
        columns["reason"] = (StringType(), reasons)
    return write(rmq, queue.definition.name, columns, operation="rollback", **options)


def test_rolled_back_rows_come_again_while_their_neighbours_are_done(rmq):
    queue, run, end, rows = claimed(rmq)
    assert roll_back(rmq, queue, rows[1:2]).counts == {"rolled back": 1}
    end, again = run.next(end)
    assert [(row["content"], row["deliveryCount"]) for row in again] == [("m1", 2)]
    assert queue.figures().counters["committed"] == 2
    run.stop()


def test_rows_that_die_keep_the_reasons_of_their_column(rmq):
    queue, run, _, rows = claimed(rmq, max_retries=0)
    roll_back(rmq, queue, rows, reasons=["KeyError: 'vat'", None, "x" * 600])
    found = first_entries(queue.pages("dead", 0), 3)
    assert {entry.content: entry.reason for entry in found} == {
        b"m0": "KeyError: 'vat'",
        b"m1": "",
        b"m2": "x" * 500,
    }
    assert queue.figures().deaths == {"KeyError": 1, "none": 1, "x" * 64: 1}
    run.stop()


def test_a_row_that_comes_twice_is_rolled_back_once_and_left_alone_once(rmq):
    queue, run, _, rows = claimed(rmq)
    done = roll_back(rmq, queue, rows[:1] * 2, reasons=["first", "second"])
    assert done.counts == {"rolled back": 1, "left alone": 1}
    run.stop()


def test_a_row_of_a_claim_that_is_gone_is_counted_and_does_no_harm(rmq):
    queue, run, end, rows = claimed(rmq)
    run.plan(end)  # commits the claim
    assert roll_back(rmq, queue, rows).counts == {"left alone": 3}
    assert queue.figures().store.count == 0
    run.stop()


def test_a_claim_id_of_another_topic_is_counted_and_does_no_harm(rmq):
    queue, run, _, rows = claimed(rmq)
    other, other_run, _, _ = claimed(rmq)
    assert roll_back(rmq, other, rows).counts == {"left alone": 3}
    assert queue.figures().prepare.count == other.figures().prepare.count == 3
    run.stop()
    other_run.stop()


@pytest.mark.parametrize("claim_id", ["", "x", "a:1:0", "a:1:0:1:1", "a:b:0:1", "{a}:1:0:1", None])
def test_a_text_that_is_no_claim_id_is_refused_and_nothing_is_rolled_back(rmq, claim_id):
    queue, run, _, rows = claimed(rmq)
    rows[1]["claimId"] = claim_id
    with refused(InvalidMessage, "Row 1 ", "claimId is ", "the claimId that came with the message"):
        roll_back(rmq, queue, rows)
    assert queue.figures().prepare.count == 3
    run.stop()


@pytest.mark.parametrize("slot", [-1, 1, None])
def test_a_slot_that_the_topic_has_not_is_refused(rmq, slot):
    queue, run, _, rows = claimed(rmq)
    rows[2]["slot"] = slot
    with refused(InvalidMessage, "Row 2 ", f"slot is {slot}", "0 to 0, the slots of topic"):
        roll_back(rmq, queue, rows)
    run.stop()


@pytest.mark.parametrize("delay", ["5", "-5s", "soon", "", "367d", "9" * 30 + "d"])
def test_a_delay_that_is_no_duration_is_refused(rmq, delay):
    queue, run, _, rows = claimed(rmq)
    with refused(InvalidMessage, "Row 0 ", "delay is ", "a number with its unit"):
        roll_back(rmq, queue, rows, delay)
    assert queue.figures().prepare.count == 3
    run.stop()


@pytest.mark.parametrize("delay", [-1, 2**63 - 1])
def test_a_delay_in_ms_out_of_bounds_is_refused(rmq, delay):
    queue, run, _, rows = claimed(rmq)
    columns = {
        "content": (StringType(), ["m0"]),
        "slot": (IntegerType(), [0]),
        "claimId": (StringType(), [rows[0]["claimId"]]),
        "delay": (LongType(), [delay]),
    }
    with refused(InvalidMessage, "Row 0 ", f"delay is {delay}", "0 to 31622400000 ms (366d)"):
        write(rmq, queue.definition.name, columns, operation="rollback")
    run.stop()


def test_delayed_rows_wait_in_the_retry_queue(rmq):
    queue, run, _, rows = claimed(rmq)
    roll_back(rmq, queue, rows[:1], "1h")
    roll_back(rmq, queue, rows[1:2], delay="1h")
    roll_back(rmq, queue, rows[2:], "0s", delay="1h")
    figures = queue.figures()
    assert (figures.retry.count, figures.store.count, figures.prepare.count) == (2, 1, 0)
    run.stop()


def test_the_backoff_of_the_topic_applies_where_no_delay_is_given(rmq):
    queue, run, _, rows = claimed(rmq, retry_backoff="1h")
    roll_back(rmq, queue, rows)
    assert queue.figures().retry.count == 3
    run.stop()


@pytest.mark.parametrize("missing", ["content", "slot", "claimId"])
def test_a_rollback_without_a_column_it_needs_is_refused(rmq, missing):
    queue = rmq.queue()
    schema = StructType()
    for name in (name for name in CLAIMED if name != missing):
        schema = schema.add(name, IntegerType() if name == "slot" else StringType())
    with refused(InvalidMessage, f"The column {missing} is missing", "Accepted: "):
        rmq.writer(schema, topic=queue.definition.name, operation="rollback")


def test_a_column_of_another_operation_is_refused(rmq):
    queue = rmq.queue("Priority")
    schema = StructType().add("content", StringType()).add("priority", IntegerType())
    with refused(InvalidMessage, "Unknown column priority", "operation cancel", "slotBasis"):
        rmq.writer(schema, topic=queue.definition.name, operation="cancel")


def test_an_unknown_operation_is_refused(rmq):
    schema = StructType().add("content", StringType())
    with refused(InvalidOption, "operation='erase'", "send, cancel, requeue, rollback, purge"):
        rmq.writer(schema, topic="T", operation="erase")


def test_an_operation_on_a_topic_that_does_not_exist_makes_none(rmq):
    name = rmq.name()
    schema = StructType().add("content", StringType())
    for operation in ("cancel", "requeue"):
        with refused(UnknownTopic, name):
            rmq.writer(schema, topic=name, operation=operation, topicType="Priority")
    assert rmq.broker.find(name) is None


def test_cancelled_rows_are_gone_and_claimed_ones_are_not_touched(rmq):
    queue, run, _, _ = claimed(rmq, count=2)
    queue.send(["later", "latest"], fixed_time=10**13)
    columns = {"content": (StringType(), ["later", "m0", "unknown"])}
    counts = write(rmq, queue.definition.name, columns, operation="cancel").counts
    assert counts == {"cancelled": 1, "not found": 2}
    figures = queue.figures()
    assert (figures.store.count, figures.prepare.count) == (1, 2)
    run.stop()


def test_the_log_of_a_write_names_what_it_did_and_why_some_were_not_found(rmq, caplog):
    """Failed before: "the write: {'not found': 1}"."""
    caplog.set_level("INFO", "rmq_spark")
    queue = rmq.queue()
    queue.send(["a"], fixed_time=10**13)
    name = queue.definition.name
    writer = rmq.writer(StructType().add("content", StringType()), topic=name, operation="cancel")
    writer.commit([writer.write(iter([pa.record_batch({"content": ["a", "b"]})]))])
    assert f"rmq: cancel, topic {name}: cancelled 1, not found 1. Not found, in" in caplog.text


def test_rows_find_their_slot_by_slot_basis_or_by_slot(rmq):
    queue = rmq.queue(slots=16)
    for content in ("a", "b"):
        queue.send([content], slot_basis="customer-7", fixed_time=10**13)
    slot = queue.definition.slot_of(b"customer-7")
    name = queue.definition.name
    by_basis = {"content": (StringType(), ["a"]), "slotBasis": (StringType(), ["customer-7"])}
    by_slot = {"content": (StringType(), ["b"]), "slot": (IntegerType(), [slot])}
    for columns in (by_basis, by_slot):
        assert write(rmq, name, columns, operation="cancel").counts["cancelled"] == 1
    assert queue.figures().store.count == 0


def buried(rmq, topic_type, count=3, **value):
    queue = rmq.queue(topic_type, slots=1, max_retries=0)
    queue.send([f"m{n}" for n in range(count)], **value)
    with rmq.broker.consumer(queue.definition.name, "c") as consumer:
        wait = iter(consumer.batches(limit=100))
        batch = next(wait)
        batch.rollback()
        batch.commit()
    assert queue.figures().dead.count == count
    return queue


def test_requeued_rows_are_first_deliveries_with_the_priority_given(rmq):
    queue = buried(rmq, "Priority", priority=20)
    columns = {
        "content": (StringType(), ["m0", "m1", "unknown"]),
        "priority": (IntegerType(), [30, 40, 50]),
    }
    counts = write(rmq, queue.definition.name, columns, operation="requeue").counts
    assert counts == {"requeued": 2, "not found": 1}
    with rmq.by_hand(queue) as run:
        _, rows = run.next(run.initial())
    got = [(row["content"], row["priority"], row["deliveryCount"]) for row in rows]
    assert got == [("m1", 40, 1), ("m0", 30, 1)]


@pytest.mark.parametrize(
    ("topic_type", "value"), [("FixedTime", {"fixed_time": DUE}), ("RangeMerge", {"time_range": 1})]
)
def test_requeued_rows_without_a_time_are_due_at_once(rmq, topic_type, value):
    queue = buried(rmq, topic_type, **value)
    columns = {"content": (StringType(), ["m0", "m1"])}
    write(rmq, queue.definition.name, columns, operation="requeue")
    with rmq.broker.consumer(queue.definition.name, "d") as consumer:
        batch = next(consumer.batches())
        assert sorted(message.content for message in batch) == [b"m0", b"m1"]
        assert {message.delivery_count for message in batch} == {1}
        batch.commit()
    assert queue.figures().dead.count == 1


def test_a_requeue_without_a_priority_is_refused(rmq):
    queue = buried(rmq, "Priority", priority=20)
    schema = StructType().add("content", StringType())
    with refused(InvalidOption, "Priority", "gives priority"):
        rmq.writer(schema, topic=queue.definition.name, operation="requeue")


@pytest.mark.long
def test_rolling_back_in_a_foreach_batch_by_dataframe(rmq, spark):
    queue = rmq.due(20, slots=2)
    seen: list[list[str]] = []

    def work(frame, _):
        rows = frame.persist()
        seen.append(sorted(row.content for row in rows.collect()))
        bad = rows.where("content = 'm7' and deliveryCount = 1")
        (
            bad.selectExpr("topic", "slot", "claimId", "content", "interval 0 seconds delay")
            .write.format("rmq")
            .options(**{"redis.url": rmq.url, "operation": "rollback"})
            .mode("append")
            .save()
        )
        rows.unpersist()

    for _ in range(2):
        query = (
            rmq.read(spark, queue)
            .writeStream.foreachBatch(work)
            .option("checkpointLocation", str(rmq.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
    assert seen == [sorted(f"m{n}" for n in range(20)), ["m7"]]
    counters = queue.figures().counters
    assert (counters["committed"], counters["rolledBack"]) == (20, 1)


def test_a_topic_gets_the_retry_settings_of_the_write_that_makes_it(rmq):
    name = rmq.name()
    columns = {"content": (StringType(), ["a"])}
    settings = {"maxRetries": "3", "retryBackoff": "10s, 1m", "fixedTime": str(DUE)}
    write(rmq, name, columns, topicType="FixedTime", **settings)
    definition = rmq.broker.definition(name)
    assert (definition.max_retries, definition.retry_backoff_ms) == (3, (10_000, 60_000))
    changed = rmq.broker.alter(name, retry_backoff="rocketmq", max_retries=16)
    assert len(changed.retry_backoff_ms) == len(ROCKETMQ_BACKOFF.split()) == 16
    assert timedelta(milliseconds=changed.retry_backoff_ms[-1]) == timedelta(hours=2)
    assert rmq.broker.alter(name, retry_backoff="none").retry_backoff_ms == ()


@pytest.mark.parametrize(
    ("backoff", "part"),
    [
        ("", "1 to 16 durations"),
        (" , ", "1 to 16 durations"),
        ("1s," * 17, "1 to 16"),
        ("0s", "above 0"),
        ("5", "unit"),
    ],
)
def test_a_retry_backoff_that_is_none_is_refused(rmq, backoff, part):
    schema = StructType().add("content", StringType())
    with refused(InvalidOption, "retryBackoff", part):
        rmq.writer(schema, topic=rmq.name(), topicType="FixedTime", retryBackoff=backoff)


@pytest.mark.parametrize("retries", ["-1", "17", "many"])
def test_a_number_of_retries_beyond_16_is_refused(rmq, retries):
    schema = StructType().add("content", StringType())
    with refused(InvalidOption, f"maxRetries='{retries}'", "0 to 16"):
        rmq.writer(schema, topic=rmq.name(), topicType="FixedTime", maxRetries=retries)


def test_a_first_write_without_a_type_says_what_to_add(rmq):
    schema = StructType().add("content", StringType())
    with refused(UnknownTopic, "does not exist on redis://", '.option("topicType"', "RangeMerge"):
        rmq.writer(schema, topic=rmq.name())


def test_a_refused_write_leaves_no_connection(alone):
    schema, redis = StructType().add("content", StringType()), alone.broker.server.client

    def connections():
        return {one["id"] for one in redis.client_list()}

    before = connections()
    with pytest.raises(UnknownTopic) as error:  # whose traceback would keep the connection
        alone.writer(schema, topic=alone.name())
    wait_until(lambda: connections() <= before, "closed")
    assert error.tb is not None
