"""A batch that is run again, and what older runs may do meanwhile: calls made by hand."""

import contextlib

import pytest

from rmq_spark.errors import AlreadyCommitted, Fenced, LeaseLost
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.names import ClaimId

from ..driving import contents, names, refused, rest_of, send_due


def run_of(rows) -> int:
    """The number of the run that read these."""
    return ClaimId.parse(rows[0]["claimId"]).run


def test_an_old_task_that_claims_after_the_replay_takes_nothing(rmq):
    """Without it, the commit of the replayed batch deletes what nobody has read (seen)."""
    queue = rmq.due(20)
    old = rmq.by_hand(queue)
    start = old.initial()
    end = old.plan(start)
    late = old.partitions(start, end)
    with old.again() as new:
        assert new.batch(start, end) == []
        with refused(Fenced, "was superseded by run ", "A newer run of the same query"):
            old.read(late)
        assert queue.figures().store.count == 20
        later, rows = new.next(end)
        assert sorted(contents(rows)) == names(20)
        with pytest.raises(Fenced):
            old.read(late)
        assert new.plan(later) == later
    assert queue.figures().counters["committed"] == 20


def test_a_replay_holds_what_the_old_run_had_claimed_and_the_next_batch_the_rest(rmq):
    queue = rmq.due(40, slots=8)
    old = rmq.by_hand(queue, numPartitions=4)
    start = old.initial()
    end = old.plan(start)
    done, *late = old.partitions(start, end)
    taken = old.read([done])
    with old.again() as new:
        replayed = new.batch(start, end)
        for partition in late:
            with pytest.raises(Fenced):
                old.read([partition])
        _, rest = new.next(end)
    assert contents(replayed) == contents(taken) != []
    assert sorted(contents(replayed + rest)) == names(40)


def test_an_old_run_can_neither_plan_nor_commit_once_a_newer_one_has_begun(rmq):
    queue = rmq.due(5)
    old = rmq.by_hand(queue)
    start = old.initial()
    end, _ = old.next(start)
    with old.again() as new:
        new.batch(start, end)
        with pytest.raises(Fenced):
            old.plan(end)
        with pytest.raises(Fenced):
            old.reader.commit(end)
        old.stop()  # releases nothing of the new run
        for consumer in ("other", end["consumer"]):
            assert sum(slot.due for slot in queue.ask(reading.due, queue.slots, consumer)) == 0
        assert queue.figures().prepare.count == 5


def test_a_task_that_is_run_again_gets_the_same_rows(rmq):
    queue = rmq.due(50, slots=1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        (partition,) = run.partitions(start, run.plan(start))
        given_up = run.reader.read(partition)
        first = next(given_up).to_pylist()
        given_up.close()
        send_due(queue, range(50, 60))
        assert run.read([partition]) == first
    assert len(first) == 50


def test_partitions_asked_twice_are_the_same_claims(rmq):
    """df.union(df) asks twice and reads twice."""
    queue = rmq.due(30)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        first = run.batch(start, end)
        assert run.batch(start, end) == first
        with run.again() as later:
            replayed = later.batch(start, end)
            assert later.batch(start, end) == replayed
            later.plan(end)
    assert contents(replayed) == contents(first)
    assert queue.figures().counters["committed"] == 30


def test_a_task_of_a_batch_that_is_settled_is_refused(rmq):
    queue = rmq.due(5, slots=1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        partitions = run.partitions(start, end)
        run.read(partitions)
        run.plan(end)
        with refused(AlreadyCommitted, "batch 1 of consumer", "is settled"):
            run.read(partitions)


def test_messages_sent_while_a_batch_is_in_work_do_not_join_its_replay(rmq):
    queue = rmq.due(5, slots=1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, first = run.next(start)
        send_due(queue, range(10))  # five of them again
        with run.again() as later:
            assert contents(later.batch(start, end)) == contents(first)
            _, second = later.next(end)
    assert sorted(contents(second)) == names(10)


def test_a_first_batch_is_run_again_although_its_start_was_made_up_anew(rmq):
    """Batch 0 has no start in the checkpoint: Spark asks initialOffset again."""
    queue = rmq.due(6)
    with rmq.by_hand(queue) as run:
        end, rows = run.next(run.initial())
    with run.again() as later:
        other_start = later.initial()
        assert other_start["consumer"] != end["consumer"]
        assert contents(later.batch(other_start, end)) == contents(rows)
        assert rest_of(later, end) == []
    assert queue.figures().counters["committed"] == 6


def test_a_run_that_gets_no_new_batch_first_asks_for_nothing(rmq):
    """Of two sources in a query one may stand still: its partitions(start, start) is none."""
    queue = rmq.due(6)
    with rmq.by_hand(queue) as run:
        end, _ = run.next(run.initial())
        run.plan(end)
    send_due(queue, range(6, 9))
    with run.again() as later:
        assert later.partitions(end, end) == []
        _, rows = later.next(end)
    assert sorted(contents(rows)) == ["m6", "m7", "m8"]


def test_a_restart_commits_in_every_slot_what_the_run_before_had_finished(rmq):
    queue = rmq.due(64, slots=16)
    with rmq.by_hand(queue, maxRecordsPerTrigger=8) as run:
        end = run.initial()
        for _ in range(4):
            end, _ = run.next(end)
    assert queue.figures().prepare.count == 8
    with run.again(maxRecordsPerTrigger="1") as later:
        later.plan(end)
    figures = queue.figures()
    assert (figures.prepare.count, figures.counters["committed"]) == (0, 32)


def test_what_is_lost_fails_a_second_read_and_is_not_in_the_next_run(rmq):
    """A second read must not silently be smaller than the first."""
    queue = rmq.due(6, slots=1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, first = run.next(start)
        queue.ask(claiming.release, queue.slots, end["consumer"], run_of(first))
        with rmq.by_hand(queue) as other:
            others_end, taken = other.until(other.initial(), 6)
            assert contents(taken) == contents(first)
            with refused(LeaseLost, ":1:0 is gone: its lease ended", "raise visibilityTimeout"):
                run.batch(start, end)
            with run.again() as later:
                assert later.batch(start, end) == []
                assert rest_of(later, end) == []
            # The first consumer's commits did not touch what the other holds.
            assert queue.figures().prepare.count == 1
            other.plan(others_end)
            assert queue.figures().counters["committed"] == 6


def test_after_stop_the_messages_stay_claimed(rmq):
    """Spark may have finished the batch: whoever got it then would have it a second time."""
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout="1h") as run:
        start = run.initial()
        end, rows = run.next(start)
    with rmq.by_hand(queue) as other:
        assert other.next(other.initial())[1] == []
    with run.again() as later:
        assert contents(later.batch(start, end)) == contents(rows)
        later.plan(end)
    assert queue.figures().counters["committed"] == 6


def test_after_stop_others_get_the_messages_at_once_if_asked_for(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout="1h", releaseOnStop="true") as run:
        run.next(run.initial())
        with rmq.by_hand(queue) as other:
            start = other.initial()
            assert other.plan(start) == start
    with rmq.by_hand(queue) as other:
        _, rows = other.until(other.initial(), 6)
    assert sorted(contents(rows)) == names(6)
    assert {row["deliveryCount"] for row in rows} == {1}  # the first may have failed by any of them


def test_a_stopped_query_still_replays_what_nobody_took_meanwhile(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, rows = run.next(start)
    with run.again() as later:
        assert contents(later.batch(start, end)) == contents(rows)
        assert rest_of(later, end) == []
    assert queue.figures().counters["committed"] == 6


def test_a_reader_that_lost_its_killed_driver_gives_nothing_back(rmq):
    """The same checkpoint may be started again within the lease: nobody else may have read it."""
    queue = rmq.due(6)
    run = rmq.by_hand(queue)
    start = run.initial()
    end, rows = run.next(start)
    with contextlib.suppress(EOFError), run:
        raise EOFError  # what reading from the JVM does then
    assert sum(slot.due for slot in queue.ask(reading.due, queue.slots, "other")) == 0
    with run.again() as later:
        assert contents(later.batch(start, end)) == contents(rows)


def test_stop_is_harmless_before_any_call_and_twice(rmq):
    queue = rmq.due(2)
    run = rmq.by_hand(queue)
    run.stop()
    run.next(run.initial())
    run.stop()
    run.stop()
    assert sum(slot.due for slot in queue.ask(reading.due, queue.slots, "other")) == 0


def test_a_query_triggered_once_does_not_release_when_it_stops(rmq):
    """It asks for no offset after its batch: whether that is done is not known."""
    queue = rmq.due(6)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start, all_available=True)
        assert len(run.batch(start, end)) == 6
    assert sum(slot.due for slot in queue.ask(reading.due, queue.slots, "other")) == 0
    with run.again() as later:
        assert later.plan(end, all_available=True) == end
    assert queue.figures().counters["committed"] == 6


def test_a_run_that_only_replays_does_not_release_when_it_stops(rmq):
    """A query triggered once ends behind its replay: the batch is done, and nothing tells so."""
    queue = rmq.due(6)
    run = rmq.by_hand(queue, releaseOnStop="true")
    start = run.initial()
    end = run.plan(start, all_available=True)
    run.batch(start, end)  # and it is killed
    with run.again() as replay:
        assert len(replay.batch(start, end)) == 6
    assert sum(slot.due for slot in queue.ask(reading.due, queue.slots, "other")) == 0


def test_a_batch_with_several_claims_a_slot_is_replayed_in_order(rmq):
    queue = rmq.due(20_000, slots=1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, _ = run.next(start)
        with run.again() as later:
            rows = later.batch(start, end)
    assert contents(rows) == [f"m{n}" for n in range(20_000)]
    assert len({row["claimId"] for row in rows}) == 7
