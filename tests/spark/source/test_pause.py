"""A topic is paused between planning a batch and reading it, and at other times."""

import logging
import time

import pytest

from ...logs import logged
from ...waiting import wait_until
from ..driving import contents, names, send_due


def pause(rmq, queue, paused=True):
    rmq.broker.alter(queue.definition.name, paused=paused)


def planned(run):
    """Plans the first batch. Returns its end and its partitions."""
    start = run.initial()
    end = run.plan(start)
    return end, run.partitions(start, end)


def next_end(run, start):
    """Plans until there is a batch."""
    return wait_until(lambda: (end := run.plan(start)) != start and end, "a batch")


def test_a_batch_that_was_planned_before_takes_nothing(rmq, caplog):
    """Seen: its tasks claimed after the pause had returned."""
    queue = rmq.due(20)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        end, partitions = planned(run)
        pause(rmq, queue)
        assert run.read(partitions) == []
        assert queue.figures().prepare.count == 0
        assert run.read(partitions) == []  # a task that is run again, a second action
        assert run.plan(end) == end  # it commits the batch
        pause(rmq, queue, False)
        later = next_end(run, end)
        assert sorted(contents(run.batch(end, later))) == names(20)
        assert run.plan(later) == later
    figures = queue.figures()
    assert (figures.counters["committed"], figures.counters["claimed"]) == (20, 20)
    assert "the plan of batch" not in logged(caplog)


def test_a_batch_that_met_a_pause_stays_empty_after_the_resume(rmq, caplog):
    """Its first reader has seen no message, so no second one may."""
    queue = rmq.due(20)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        end, partitions = planned(run)
        pause(rmq, queue)
        assert run.read(partitions) == []
        pause(rmq, queue, False)
        assert run.read(partitions) == []
        assert "or the topic was paused for a while" in logged(caplog)
        later = next_end(run, end)
        assert sorted(contents(run.batch(end, later))) == names(20)


def test_a_hold_between_plan_and_read_leaves_the_batch_empty_also_after_its_end(rmq, caplog):
    queue = rmq.due(20)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        end, partitions = planned(run)
        rmq.broker.hold(queue.definition.name, "1h")
        assert run.read(partitions) == []
        for slot in queue.slots:  # as when the time has passed
            key = queue.keys.consumers(slot)
            queue.server.command("HSET", key, "@paused", queue.now_ms())
        assert run.read(partitions) == []
        later = next_end(run, end)
        assert sorted(contents(run.batch(end, later))) == names(20)


def test_while_a_topic_is_held_nothing_is_planned(rmq):
    queue = rmq.due(20)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        ends_ms = queue.now_ms() + 500
        rmq.broker.hold(queue.definition.name, 500)
        end = next_end(run, start)
        assert queue.now_ms() >= ends_ms
        assert sorted(contents(run.batch(start, end))) == names(20)


def test_what_was_read_before_the_pause_is_read_again_and_nothing_else(rmq):
    queue = rmq.due(40)
    with rmq.by_hand(queue, numPartitions=2) as run:
        start = run.initial()
        end = run.plan(start)
        first, second = run.partitions(start, end)
        before = run.read([first])
        assert before
        pause(rmq, queue)
        assert run.read([first, second]) == before
        assert run.read([second, first]) == before
        assert run.plan(end) == end
        figures = queue.figures()
        assert (figures.counters["committed"], figures.prepare.count) == (len(before), 0)
        pause(rmq, queue, False)
        later = next_end(run, end)
        rest = run.batch(end, later)
        assert run.plan(later) == later
    assert sorted(contents(before) + contents(rest)) == names(40)
    assert queue.figures().counters["committed"] == 40


def test_a_restart_while_paused_replays_what_was_read(rmq):
    queue = rmq.due(40)
    killed = rmq.by_hand(queue, numPartitions=2)
    start = killed.initial()
    end = killed.plan(start)
    before = killed.read(killed.partitions(start, end)[:1])
    pause(rmq, queue)
    with killed.again() as run:
        again = run.batch(start, end)
        assert sorted(contents(again)) == sorted(contents(before))
        end, nothing = run.next(end)
        assert nothing == []
        assert run.plan(end) == end
        pause(rmq, queue, False)
        rest = run.batch(end, next_end(run, end))
    assert sorted(contents(before) + contents(rest)) == names(40)


def test_an_available_now_query_that_meets_a_pause_says_so(rmq, caplog):
    queue = rmq.due(20)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue, maxRecordsPerTrigger=5) as run:
        run.reader.prepareForTriggerAvailableNow()
        start = run.initial()
        end = run.plan(start)
        assert len(run.batch(start, end)) == 5
        later = run.plan(end)
        pause(rmq, queue)
        assert run.batch(end, later) == []
        assert run.plan(later) == later
    assert "the query ends with 15 due messages unread: the topic is paused" in logged(caplog)
    assert "other consumers" not in logged(caplog)
    assert "no task reads them" not in logged(caplog)


@pytest.mark.long
def test_a_query_that_is_paused_comes_to_rest_and_can_be_stopped(spark, rmq):
    """What docs/consume.md says about stopping with nothing in progress."""
    queue = rmq.due(50)
    query = rmq.into_parquet(
        rmq.read(spark, queue, maxRecordsPerTrigger=5), processingTime="0 seconds"
    )
    wait_until(lambda: queue.figures().counters["committed"] > 0, "the first batch")
    pause(rmq, queue)
    claimed = queue.figures().counters["claimed"]
    send_due(queue, range(50, 60))
    wait_until(lambda: queue.figures().prepare.count == 0, "the last batch to be committed")
    query.stop()
    figures = queue.figures()
    assert figures.counters["claimed"] == figures.counters["committed"] == claimed
    assert figures.store.count == 60 - claimed
    pause(rmq, queue, False)
    rmq.drain(rmq.read(spark, queue))
    assert rmq.contents(spark) == names(60)
    assert queue.figures().counters["claimed"] == 60


def test_an_idle_query_asks_no_slot_of_a_paused_topic(alone):
    """Seen: it asked all of them at every pollInterval, as their stores held due messages."""
    queue = alone.due(20, slots=64)
    pause(alone, queue)
    with alone.by_hand(queue, pollInterval="1ms") as run:
        start = run.initial()
        assert run.plan(start) == start
        before = scripts_run(queue)
        for _ in range(20):
            time.sleep(0.002)
            assert run.plan(start) == start
        assert scripts_run(queue) - before < 64
        pause(alone, queue, False)
        assert len(run.batch(start, next_end(run, start))) == 20


def scripts_run(queue):
    stats = queue.server.command("INFO", "commandstats")
    return stats["cmdstat_evalsha"]["calls"]
