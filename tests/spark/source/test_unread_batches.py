"""A foreachBatch that never reads its DataFrame: nothing is consumed, and the query says why."""

import logging

import pytest

from rmq_spark.spark.source.run import UNREAD_BATCHES_TO_WARN_OF

from ...logs import logged
from ...waiting import wait_until
from ..driving import contents, names, send_due
from .test_available_now import run_to_the_end

WARNING = "The function of foreachBatch must run an action on the DataFrame"


def plan_unread(run, start, how_many):
    """Plans batches that no task reads."""
    for _ in range(how_many):
        end = wait_until(lambda start=start: other_than(run.plan(start), start), "a batch")
        run.partitions(start, end)
        start = end
    return start


def other_than(end, start):
    return None if end == start else end


def test_it_warns_once_of_batches_that_nobody_reads(rmq, caplog):
    queue = rmq.due(6)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue, pollInterval="1ms") as run:
        start = plan_unread(run, run.initial(), UNREAD_BATCHES_TO_WARN_OF)
        assert WARNING not in logged(caplog)
        plan_unread(run, start, 4)
    assert logged(caplog).count(WARNING) == 1
    assert queue.figures().store.count == 6


def test_it_waits_longer_from_batch_to_batch(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue, pollInterval="10s") as run:
        start = run.initial()
        end = run.plan(start)
        assert end != start
        run.partitions(start, end)
        assert [run.plan(end) for _ in range(3)] == [end] * 3


def test_once_a_batch_is_read_it_warns_anew(rmq, caplog):
    queue = rmq.due(6)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue, pollInterval="1ms") as run:
        start = plan_unread(run, run.initial(), UNREAD_BATCHES_TO_WARN_OF + 1)
        end = wait_until(lambda: other_than(run.plan(start), start), "a batch")
        assert sorted(contents(run.batch(start, end))) == names(6)
        send_due(queue, range(6, 9))
        plan_unread(run, end, UNREAD_BATCHES_TO_WARN_OF + 1)
    assert logged(caplog).count(WARNING) == 2


def test_batches_of_claims_that_others_were_faster_to_take_are_not_unread(rmq, caplog):
    queue = rmq.due(6)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue, pollInterval="1ms") as run:
        start = run.initial()
        for number in range(UNREAD_BATCHES_TO_WARN_OF + 2):
            end = wait_until(lambda start=start: other_than(run.plan(start), start), "a batch")
            with rmq.by_hand(queue) as faster:
                taken, _ = faster.next(faster.initial())
                assert run.batch(start, end) == []
                faster.plan(taken)
            send_due(queue, range(10 * number, 10 * number + 3))
            start = end
    assert WARNING not in logged(caplog)


def test_an_available_now_query_names_the_cause_and_ends(rmq, caplog):
    queue = rmq.due(400)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        run.batch = lambda start, end: run.partitions(start, end)
        run_to_the_end(run, most=10)
    ending = "the query ends with 400 due messages unread"
    assert f"topic {queue.definition.name}: {ending}" in logged(caplog)
    assert WARNING in logged(caplog)
    assert "other consumers hold them" not in logged(caplog)


@pytest.mark.long
def test_a_function_that_reads_nothing_slows_its_query_down(spark, rmq):
    queue = rmq.due(8)
    numbers = []
    query = (
        rmq.read(spark, queue, pollInterval="1h").writeStream
        .foreachBatch(lambda batch, number: numbers.append(number))
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .start()
    )  # fmt: skip
    wait_until(lambda: len(query.recentProgress) > 1, "a report behind the first batch")
    query.stop()
    assert query.exception() is None
    assert numbers == [0]
    assert queue.figures().store.count == 8
