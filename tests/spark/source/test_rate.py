"""Queries on a topic with a rate limit take no more than it allows, together with other readers."""

import logging
from collections import Counter

import pytest

from rmq_spark.errors import ServerUnavailable
from rmq_spark.protocol import claiming
from rmq_spark.redis.server import Server
from rmq_spark.spark.source.topic import TopicRun

from ...logs import logged
from ..driving import contents, knows_available_now, names
from .test_available_now import flat, run_to_the_end
from .test_pause import next_end

HOURLY = {"rate": "1/h", "burst": 5}


def test_a_batch_takes_what_the_limit_allows(rmq):
    queue = rmq.due(20, **HOURLY)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        assert len(run.batch(start, end)) == 5
        assert [run.plan(end) for _ in range(3)] == [end] * 3
        assert queue.ask(claiming.grant, 1)[0] == 0
    assert queue.figures().counters["claimed"] == 5


def test_each_slot_may_have_a_limit_of_its_own(rmq):
    queue = rmq.due(40, slots=2, rate_by="slot", **HOURLY)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        batch = run.batch(start, end)
        assert Counter(row["slot"] for row in batch) == {0: 5, 1: 5}
        assert [run.plan(end) for _ in range(3)] == [end] * 3
    assert queue.figures().counters["claimed"] == 10


@pytest.mark.parametrize("settings", [{}, {"rate_by": "slot"}], ids=["all", "slot"])
@pytest.mark.parametrize("fails", ["_quotas", "mark"])
def test_permits_of_a_plan_that_fails_come_back(rmq, monkeypatch, fails, settings):
    """Failed before: a query that failed and began again waited for an hour."""
    queue = rmq.due(40, slots=2, **HOURLY, **settings)

    def fail(*_):
        raise ServerUnavailable("Redis is away.")

    with rmq.by_hand(queue) as run:
        monkeypatch.setattr(TopicRun, fails, fail)
        with pytest.raises(ServerUnavailable):
            run.plan(run.initial())
        monkeypatch.undo()
    granted = queue.ask(claiming.grants, {0: 5, 1: 5}, take=False)
    assert [permits for permits, _ in granted.values()] == [5, 5]


def test_permits_for_messages_that_were_gone_come_back(rmq):
    """Failed before, as plain consumers never did."""
    queue = rmq.due(5, **HOURLY)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        assert queue.cancel(names(3)) == 3
        assert len(run.batch(start, end)) == 2
        assert run.plan(end) == end
    assert queue.ask(claiming.grant, 3)[0] == 3
    assert queue.ask(claiming.grant, 1)[0] == 0


def test_a_query_that_ends_reads_what_slots_with_permits_have(rmq):
    """Seen: the earliest messages, which it planned, were in a slot without permits."""
    queue = rmq.queue("FixedTime", 2, rate="1/h", burst=2, rate_by="slot")
    by_slot = [[n for n in names(60) if queue.definition.slot_of(n) == slot] for slot in (0, 1)]
    queue.send(by_slot[0][:10], fixed_time=1000)
    queue.send(by_slot[1][:10], fixed_time=2000)
    with rmq.by_hand(queue, maxRecordsPerTrigger=1) as run:
        _, batches = run_to_the_end(run)
    taken = Counter(row["slot"] for row in flat(batches))
    assert taken == {0: 2, 1: 2}


def test_it_goes_on_when_the_limit_allows_it(rmq):
    queue = rmq.due(6, rate="10/s", burst=2)
    with rmq.by_hand(queue) as run:
        start, taken = run.initial(), []
        while len(taken) < 6:
            end = next_end(run, start)
            batch = contents(run.batch(start, end))
            assert 1 <= len(batch) <= 2
            taken += batch
            start = end
    assert sorted(taken) == names(6)


def test_a_replayed_batch_takes_no_permit_again(rmq):
    queue = rmq.due(20, **HOURLY)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        first = contents(run.batch(start, end))
    queue.ask(claiming.grant, -1)  # one is there again
    with rmq.by_hand(queue) as again:
        assert contents(again.batch(start, end)) == first
        assert len(first) == 5
        assert queue.ask(claiming.grant, 100) == (1, 0)


def test_another_reader_may_take_the_permits_between_look_and_plan(rmq, monkeypatch):
    queue = rmq.due(20, rate="2/s", burst=2)
    with rmq.by_hand(queue) as run:
        start, look = run.initial(), TopicRun.look

        def and_take(topic):
            due = look(topic)
            queue.ask(claiming.grant, 2)
            monkeypatch.undo()
            return due

        monkeypatch.setattr(TopicRun, "look", and_take)
        assert run.plan(start) == start
        assert 1 <= len(run.batch(start, next_end(run, start))) <= 2


def test_a_query_that_ends_waits_for_the_limit_and_reads_all(rmq):
    queue = rmq.due(12, rate="20/s", burst=4)
    with rmq.by_hand(queue) as run:
        _, batches = run_to_the_end(run)
    assert sorted(contents(flat(batches))) == names(12)
    assert max(map(len, batches)) <= 4


def test_a_query_that_ends_does_not_wait_for_hours(rmq, caplog):
    queue = rmq.due(12, **HOURLY)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        _, batches = run_to_the_end(run)
    assert [len(batch) for batch in batches] == [5]
    assert "the rate 1/h of the topic allows the next one in" in logged(caplog)


def test_a_query_that_ends_does_not_wait_for_ever_while_others_take_each_permit(
    rmq, monkeypatch, caplog
):
    queue = rmq.due(12, rate="2/s", burst=1)
    monkeypatch.setattr("rmq_spark.spark.source.topic.LONGEST_PERMIT_WAIT_S", 2)
    pause = Server.pause

    def and_take(server, seconds):
        pause(server, seconds)
        queue.ask(claiming.grant, 1)

    monkeypatch.setattr(Server, "pause", and_take)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        _, batches = run_to_the_end(run)
    assert len(batches) < 12
    assert "the rate 2/s of the topic allows the next one in" in logged(caplog)


@knows_available_now
def test_a_real_query_keeps_to_the_limit(rmq, spark):
    queue = rmq.due(30, rate="20/s", burst=5)
    began_ms = queue.now_ms()
    rmq.drain(rmq.read(spark, queue))
    assert rmq.contents(spark) == sorted(names(30))
    assert queue.now_ms() - began_ms >= (30 - 5) * 50
