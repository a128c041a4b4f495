"""Queries that end: calls made by hand."""

import itertools
import logging

from rmq_spark import Message

from ...logs import logged
from ...seeding import rollback
from ..driving import contents, names, send_due


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def run_to_the_end(run, start=None, most=1000):
    """The batches of an AvailableNow query."""
    run.reader.prepareForTriggerAvailableNow()
    start, batches = start or run.initial(), []
    for _ in range(most):
        end = run.plan(start)
        if end == start:
            return end, batches
        batches.append(run.batch(start, end))
        start = end
    raise AssertionError("it does not end")


def test_it_reads_what_is_due_in_several_batches_and_commits_the_last(rmq):
    queue = rmq.due(10)
    with rmq.by_hand(queue, maxRecordsPerTrigger=4) as run:
        _, batches = run_to_the_end(run)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(contents(flat(batches))) == names(10)
    figures = queue.figures()
    assert (figures.prepare.count, figures.counters["committed"]) == (0, 10)


def test_it_leaves_what_falls_due_or_is_sent_after_its_start(rmq):
    queue = rmq.due(4)
    with rmq.by_hand(queue, maxRecordsPerTrigger=1) as run:
        run.reader.prepareForTriggerAvailableNow()
        begun = queue.now_ms()
        queue.send([Message(f"later{n}", fixed_time=begun + 1 + n) for n in range(20)])
        while queue.now_ms() <= begun + 25:
            pass
        start, taken = run.initial(), []
        while (end := run.plan(start)) != start:
            taken += contents(run.batch(start, end))
            start = end
    assert sorted(taken) == names(4)
    assert queue.figures().store.due == 20


def test_it_ends_although_a_sender_goes_on_all_the_time(rmq):
    queue = rmq.queue("Priority", 4)
    queue.send([Message(f"m{n}", priority=20) for n in range(10)])
    with rmq.by_hand(queue, maxRecordsPerTrigger=3) as run:
        run.reader.prepareForTriggerAvailableNow()
        start, taken, sent = run.initial(), 0, 10
        while (end := run.plan(start)) != start:
            taken += len(run.batch(start, end))
            queue.send([Message(f"m{n}", priority=30) for n in range(sent, sent + 5)])
            start, sent = end, sent + 5
    assert taken == 10


def test_it_ends_although_every_message_is_rolled_back(rmq):
    queue = rmq.due(10, slots=1)
    with rmq.by_hand(queue, maxRecordsPerTrigger=5) as run:
        run.reader.prepareForTriggerAvailableNow()
        start, deliveries = run.initial(), 0
        while (end := run.plan(start)) != start:
            for row in run.batch(start, end):
                rollback(queue, 0, row["claimId"], [row["content"].encode()])
                deliveries += 1
            start = end
    assert deliveries == 10 * 17  # until no retry is left
    assert queue.figures().dead.count == 10


def test_messages_that_fail_again_and_again_do_not_use_up_what_others_are_due(rmq):
    queue = rmq.due(100, slots=1)
    good = set()
    with rmq.by_hand(queue, maxRecordsPerTrigger=20) as run:
        run.reader.prepareForTriggerAvailableNow()
        start = run.initial()
        while (end := run.plan(start)) != start:
            for row in run.batch(start, end):
                if int(row["content"][1:]) < 10:
                    rollback(queue, 0, row["claimId"], [row["content"].encode()])
                else:
                    good.add(row["content"])
            start = end
    assert len(good) == 90
    assert queue.figures().dead.count == 10


def test_on_an_empty_topic_it_ends_at_once(rmq):
    with rmq.by_hand(rmq.queue()) as run:
        _, batches = run_to_the_end(run)
    assert batches == []


def test_on_a_paused_topic_it_ends_with_a_warning(rmq, caplog):
    queue = rmq.due(3)
    rmq.broker.alter(queue.definition.name, paused=True)
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        _, batches = run_to_the_end(run)
    assert batches == []
    assert "the query ends with 3 due messages unread: the topic is paused" in logged(caplog)


def test_on_a_topic_that_is_held_it_ends_with_a_warning(rmq, caplog):
    queue = rmq.due(3)
    rmq.broker.hold(queue.definition.name, "1h")
    with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
        _, batches = run_to_the_end(run)
    assert batches == []
    assert "ends with 3 due messages unread: a hold or the rate limit keeps them" in logged(caplog)


def test_it_goes_on_when_it_was_killed_before_its_first_claim(rmq):
    """The offset was logged, nothing was claimed: the replayed batch is empty, the query not."""
    queue = rmq.due(10)
    killed = rmq.by_hand(queue)
    killed.reader.prepareForTriggerAvailableNow()
    start = killed.initial()
    end = killed.plan(start)
    with killed.again() as run:
        run.reader.prepareForTriggerAvailableNow()
        assert run.batch(start, end) == []
        later = run.plan(end)
        assert later != end
        assert sorted(contents(run.batch(end, later))) == names(10)
        assert run.plan(later) == later


def test_a_replayed_batch_and_new_messages_are_read_in_one_go(rmq):
    queue = rmq.due(6)
    killed = rmq.by_hand(queue)
    start = killed.initial()
    end, rows = killed.next(start)
    send_due(queue, range(6, 9))
    with killed.again() as run:
        run.reader.prepareForTriggerAvailableNow()
        replayed = run.batch(start, end)
        _, batches = _rest(run, end)
    assert contents(replayed) == contents(rows)
    assert sorted(contents(flat(batches))) == ["m6", "m7", "m8"]


def _rest(run, start):
    batches = []
    while (end := run.plan(start)) != start:
        batches.append(run.batch(start, end))
        start = end
    return start, batches


def test_it_ends_with_a_warning_when_another_holds_what_looks_due(rmq, caplog):
    """A content that was sent again while it is in progress is stored, but cannot be taken yet."""
    queue = rmq.due(3)
    with rmq.by_hand(queue) as holder:
        holder.next(holder.initial())
        send_due(queue, range(3))
        with caplog.at_level(logging.WARNING), rmq.by_hand(queue) as run:
            _, batches = run_to_the_end(run, most=20)
    assert contents(flat(batches)) == []
    assert f"topic {queue.definition.name}: the query ends with" in logged(caplog)
    slots = sorted(queue.definition.slot_of(content) for content in names(3))
    assert "3 due messages unread: other consumers hold them until they commit" in logged(caplog)
    assert f"lease ends (slots {', '.join(map(str, dict.fromkeys(slots)))})" in logged(caplog)


def test_one_slot_whose_messages_others_hold_does_not_end_it_for_the_rest(rmq):
    """Batch by batch a different slot is tried; one that gives nothing says nothing of others."""
    queue = rmq.due(4, slots=4)
    held = [f"m{n}" for n in range(4)]
    with rmq.by_hand(queue) as holder:
        start = holder.initial()
        end = holder.plan(start)
        holder.batch(start, end)
        send_due(queue, range(4))  # due, but in progress
        send_due(queue, range(100, 140))
        for limit in (1, 2, 3):
            with rmq.by_hand(queue, maxRecordsPerTrigger=limit) as run:
                _, batches = run_to_the_end(run)
                taken = contents(flat(batches))
                assert not set(taken) & set(held)
                assert len(taken) == 40, f"a limit of {limit} read {len(taken)} of 40"
            send_due(queue, range(100, 140))
