"""Leases: renewed while a batch is in progress or waits for its trigger, and lost otherwise."""

import logging
import time

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from redis.exceptions import RedisClusterException

from rmq_spark.errors import Fenced, LeaseLost, ServerUnavailable, UnreadableContent
from rmq_spark.protocol import claiming, reading
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.redis.server import Server
from rmq_spark.spark.options import parse_source_options
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.source import leases as lease_module
from rmq_spark.spark.source.leases import LeaseTimer

from ...seeding import suspect
from ...waiting import wait_until
from ..driving import Run, contents, names, refused, send_due

# Renewed each second: on a busy machine, that may be two seconds late.
LEASE_MS = 3000
LEASE = f"{LEASE_MS}ms"


def deadlines(queue) -> list[int]:
    """When the leases of all claims end, in ms."""
    found = []
    for slot in queue.slots:
        for record in queue.server.client.hvals(queue.keys.claims(slot)):
            found.append(int(record.split()[3]))
    return found


def wait_past_the_lease(queue) -> None:
    """Until the leases that run now would have ended had nobody renewed them."""
    last = max(deadlines(queue))
    wait_until(lambda: queue.now_ms() > last, "the lease to end")


def due_to_another(queue) -> int:
    return sum(slot.due for slot in queue.ask(reading.due, queue.slots, "another"))


def test_a_batch_that_takes_longer_than_the_lease_is_not_delivered_twice(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout=LEASE) as run:
        start = run.initial()
        end, rows = run.next(start)
        wait_past_the_lease(queue)
        assert due_to_another(queue) == 0
        with rmq.by_hand(queue) as other:
            assert other.next(other.initial())[1] == []
        assert run.batch(start, end) == rows


def test_a_finished_batch_that_waits_for_a_late_trigger_is_not_delivered_twice(rmq):
    """Only the next trigger can tell that it is done, whenever that is."""
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout=LEASE) as run:
        end, _ = run.next(run.initial())
        run.reader.reportLatestOffset()
        wait_past_the_lease(queue)
        wait_past_the_lease(queue)
        assert due_to_another(queue) == 0
        assert run.plan(end) == end
    assert queue.figures().counters["committed"] == 6
    assert queue.figures().counters["rolledBack"] == 0


def test_a_replay_whose_reading_waits_longer_than_the_lease_loses_nothing(rmq):
    queue = rmq.due(6)
    killed = rmq.by_hand(queue, visibilityTimeout=LEASE)
    start = killed.initial()
    end, rows = killed.next(start)
    killed.die()
    with killed.again() as run:
        partitions = run.partitions(start, end)
        wait_past_the_lease(queue)
        assert due_to_another(queue) == 0
        assert contents(run.read(partitions)) == contents(rows)


def test_a_plan_whose_reading_waits_longer_than_the_lease_is_read(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout=LEASE) as run:
        start = run.initial()
        partitions = run.partitions(start, run.plan(start))
        begun = queue.now_ms()
        wait_until(lambda: queue.now_ms() > begun + LEASE_MS, "the lease to end")
        assert len(run.read(partitions)) == 6
        wait_past_the_lease(queue)  # the timer still renews
        assert due_to_another(queue) == 0


def test_when_the_lease_runs_out_another_consumer_gets_the_messages(rmq):
    queue = rmq.due(6)
    killed = rmq.by_hand(queue, visibilityTimeout=LEASE)
    start = killed.initial()
    end, _ = killed.next(start)
    killed.die()
    assert due_to_another(queue) == 0
    wait_until(lambda: due_to_another(queue) == 6, "the messages to be due to another")
    with rmq.by_hand(queue) as other:
        others_end, rows = other.until(other.initial(), 6)
        assert sorted(contents(rows)) == names(6)
        assert {row["deliveryCount"] for row in rows} == {1}
        with pytest.raises(LeaseLost):
            killed.batch(start, end)
        # The late commit of the first takes nothing from the other.
        held = queue.figures().prepare.count
        with pytest.raises(LeaseLost):
            killed.plan(end)
        assert queue.figures().prepare.count == held > 0
        assert other.plan(others_end) == others_end
    assert queue.figures().counters["committed"] == 6


def test_the_same_query_within_the_lease_gets_all_back_and_nobody_else(rmq):
    queue = rmq.due(6)
    killed = rmq.by_hand(queue, visibilityTimeout="1h")
    start = killed.initial()
    end, rows = killed.next(start)
    killed.die()
    with rmq.by_hand(queue) as other:
        nothing = other.initial()
        assert other.plan(nothing) == nothing
        with killed.again() as run:
            assert contents(run.batch(start, end)) == contents(rows)


def test_a_batch_older_than_max_processing_time_is_let_go(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout="1s", maxProcessingTime="1s") as run:
        start = run.initial()
        end, _ = run.next(start)
        wait_until(lambda: due_to_another(queue) == 6, "the hung batch to be let go")
        with rmq.by_hand(queue) as other:
            assert sorted(contents(other.until(other.initial(), 6)[1])) == names(6)
        with pytest.raises(LeaseLost):
            run.batch(start, end)


def test_the_timer_of_a_superseded_run_ends_and_that_of_the_new_one_renews(rmq):
    queue = rmq.due(6)
    old = rmq.by_hand(queue, visibilityTimeout=LEASE)
    start = old.initial()
    end, _ = old.next(start)
    timer = old.reader._run._lease._thread
    with old.again() as new:
        new.batch(start, end)
        wait_until(lambda: not timer.is_alive(), "the old timer to end")
        wait_past_the_lease(queue)
        assert due_to_another(queue) == 0


@pytest.mark.parametrize(
    "error", [RuntimeError("odd"), RedisClusterException("no node"), LeaseLost("gone")]
)
def test_the_timer_survives_any_failure_and_renews_again(rmq, monkeypatch, caplog, error):
    queue = rmq.due(6)
    renew, failing, made = claiming.renew, [error, error], []

    def fail_first(*args, **options):
        if failing:
            raise failing.pop()
        return renew(*args, **options)

    def counted(*args):
        made.append(Server(*args))
        return made[-1]

    monkeypatch.setattr(claiming, "renew", fail_first)
    monkeypatch.setattr(lease_module, "Server", counted)
    with rmq.by_hand(queue, visibilityTimeout="2s") as run, caplog.at_level(logging.WARNING):
        run.next(run.initial())
        wait_until(lambda: not failing, "the renewals to fail")
        first = max(deadlines(queue))
        wait_until(lambda: max(deadlines(queue), default=0) > first, "a renewal")
        assert run.reader._run._lease._thread.is_alive()
    logged = [r.getMessage() for r in caplog.records if "could not renew" in r.getMessage()]
    of_error = [line for line in logged if f"{type(error).__name__}: {error}" in line]
    assert len(of_error) == 2
    # On a busy machine, Redis may also not answer in time.
    late = [line for line in logged if "ServerUnavailable" in line]
    assert len(logged) == 2 + len(late)
    # A connection is made anew unless Redis itself has answered.
    needed = 1 if isinstance(error, LeaseLost) else 3
    assert needed <= len(made) <= needed + len(late)


def test_after_an_outage_the_topics_that_missed_its_end_are_renewed_soon(rmq, monkeypatch):
    """Failed before: the first one waited for a third of the lease, which could end meanwhile."""
    topics, waits, renew = [rmq.due(1, 1) for _ in range(2)], [], claiming.renew
    away = [ServerUnavailable("away")] * 2  # the call for all topics, and that for the first

    def fail_first(*args, **options):
        if away:
            raise away.pop()
        return renew(*args, **options)

    class Ended:
        def wait(self, seconds):
            waits.append(seconds)
            return len(waits) == 3

    options = parse_source_options(rmq.options(topics[0], visibilityTimeout="60s"))
    timer = LeaseTimer(options, "a", 1, 0)
    timer._held = [lease_module._Held(1, of, frozenset({0}), time.monotonic()) for of in topics]
    timer._ended = Ended()
    monkeypatch.setattr(claiming, "renew", fail_first)
    timer._renew_until_ended()
    assert waits == [20, lease_module.AGAIN_S, 20]


def test_a_timer_whose_thread_has_ended_is_started_again_by_the_next_batch(rmq, monkeypatch):
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout=LEASE) as run:
        with monkeypatch.context() as patched:
            patched.setattr(claiming, "renew", superseded)
            run.next(run.initial())
            lease = run.reader._run._lease
            wait_until(lambda: not lease._thread.is_alive(), "the thread to end")
        lease.hold(99, queue, queue.slots)
        wait_past_the_lease(queue)
        assert due_to_another(queue) == 0


def superseded(*_, **__):
    raise Fenced("by a newer one")


def test_a_timer_that_was_ended_is_not_started_again(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout=LEASE) as run:
        run.next(run.initial())
        lease = run.reader._run._lease
        lease.end()
        wait_until(lambda: not lease._thread.is_alive(), "the thread to end")
        lease.hold(9, queue, [0])
        assert not lease._thread.is_alive()


def test_a_committed_batch_is_renewed_no_more(rmq):
    queue = rmq.due(6)
    with rmq.by_hand(queue, visibilityTimeout=LEASE) as run:
        end, _ = run.next(run.initial())
        run.plan(end)
        assert deadlines(queue) == []
        assert run.reader._run._lease.slots() == {}


# -- a content that cannot be handed out

NOT_UTF8 = b"\xc3\x28 is no text"


def unreadable(rmq, **options):
    """A topic with one bad content among good ones, read as STRING: the query fails."""
    queue = rmq.queue("FixedTime", 1)
    queue.send(["fine", NOT_UTF8, "too"], fixed_time=1_000_000)
    run = rmq.by_hand(queue, **options)
    start = run.initial()
    end = run.plan(start)
    with refused(
        UnreadableContent,
        f"Topic {queue.definition.name}, slot 0",
        "not valid UTF-8 (byte 0 of 13)",
        '.schema("content BINARY, ...")',
        "lost no retry",
    ):
        run.batch(start, end)
    return queue, run, start, end


@pytest.fixture
def binary_schema():
    content, *others = SOURCE_SCHEMA.fields
    return StructType([StructField(content.name, BinaryType()), *others])


def test_a_content_that_is_no_utf8_is_read_as_binary_by_the_same_checkpoint(rmq, binary_schema):
    _, run, start, end = unreadable(rmq)
    run.stop()
    with run.again(binary_schema) as later:
        rows = later.batch(start, end)
    assert {row["content"] for row in rows} == {b"fine", NOT_UTF8, b"too"}
    assert {(row["retriesLeft"], row["deliveryCount"]) for row in rows} == {(16, 1)}


def test_a_content_that_is_no_utf8_is_read_as_binary_by_a_new_checkpoint(rmq, binary_schema):
    queue, run, *_ = unreadable(rmq, releaseOnStop="true")
    run.stop()
    with rmq.by_hand(queue, binary_schema) as other:
        _, rows = other.next(other.initial())
    assert {row["content"] for row in rows} == {b"fine", NOT_UTF8, b"too"}
    assert {(row["retriesLeft"], row["deliveryCount"]) for row in rows} == {(16, 1)}


def test_a_content_that_is_no_utf8_costs_no_message_of_another_topic_a_retry(rmq):
    bad, good = rmq.queue("FixedTime", 1), rmq.due(3, slots=1)
    bad.send([NOT_UTF8], fixed_time=1_000_000)
    topics = ",".join(queue.definition.name for queue in (bad, good))
    asked = {**rmq.options(bad, numPartitions=1), "topics": topics}
    del asked["topic"]
    run = Run(asked)
    start = run.initial()
    end = run.plan(start)
    for _ in range(3):
        with pytest.raises(UnreadableContent):
            run.batch(start, end)
        run.stop()
        run = run.again()
    run.stop()
    [page] = good.pages(QueueKind.PREPARE, 0)
    assert page.retries_left() == [16] * 3


def test_no_retry_is_charged_however_often_it_fails_as_text(rmq, binary_schema):
    _, run, start, end = unreadable(rmq)
    for _ in range(3):
        run.stop()
        run = run.again()
        with pytest.raises(UnreadableContent):
            run.batch(start, end)
        with pytest.raises(UnreadableContent):  # a task that is run again
            run.batch(start, end)
    run.stop()
    with run.again(binary_schema) as later:
        assert {row["retriesLeft"] for row in later.batch(start, end)} == {16}


def test_without_the_column_content_it_may_be_anything(rmq):
    queue = rmq.queue("FixedTime", 1)
    queue.send([NOT_UTF8], fixed_time=1_000_000)
    with rmq.by_hand(queue, StructType().add("slot", IntegerType())) as run:
        assert run.next(run.initial())[1] == [{"slot": 0}]


def taken_by_another(rmq, queue):
    """What another consumer takes of the topic, until nothing is due, and commits."""
    taken = []
    with rmq.broker.consumer(queue.definition.name, "another") as other:
        for batch in other.batches(100_000, wait=False):
            taken += [message.content.decode() for message in batch]
            batch.commit()
    return sorted(taken)


def test_a_processed_batch_that_another_has_taken_meanwhile_fails_with_lost(rmq):
    queue = rmq.due(40)
    run = rmq.by_hand(queue, visibilityTimeout="1s", numPartitions=4)
    end, rows = run.next(run.initial())
    run.die()
    wait_past_the_lease(queue)
    assert taken_by_another(rmq, queue) == sorted(contents(rows)) == names(40)
    with refused(
        LeaseLost, "Batch 1 is processed", "4 of its 4 claims", queue.definition.name, "are"
    ):
        run.plan(end)
    with run.again() as later:  # as Spark does: it counts the batch as done
        send_due(queue, range(40, 43))
        assert sorted(contents(later.next(end)[1])) == ["m40", "m41", "m42"]


def test_what_others_have_left_of_a_batch_is_committed_before_it_fails(rmq):
    queue = rmq.due(40)
    run = rmq.by_hand(queue, visibilityTimeout="1h")
    end, _ = run.next(run.initial())
    queue.ask(claiming.release, [0, 2], end["consumer"], run.number)
    taken = taken_by_another(rmq, queue)
    kept = 40 - len(taken)
    with refused(
        LeaseLost, "2 of its 4 claims", "slots [0, 2]", f"are committed, with {kept} messages"
    ):
        run.plan(end)
    assert queue.figures().counters["committed"] == 40
    assert queue.figures().prepare.count == 0


def test_claims_that_a_replay_lacked_do_not_fail_its_commit_and_later_losses_do(rmq):
    queue = rmq.due(40)
    run = rmq.by_hand(queue, visibilityTimeout="1h")
    start = run.initial()
    end, _ = run.next(start)
    queue.ask(claiming.release, [0], end["consumer"], run.number)
    taken = taken_by_another(rmq, queue)
    with run.again() as second:
        assert len(second.batch(start, end)) == 40 - len(taken)
        second.plan(end)
    run = rmq.by_hand(queue, visibilityTimeout="1h")
    send_due(queue, range(40))
    start = run.initial()
    end, _ = run.next(start)
    with run.again() as second:
        assert len(second.batch(start, end)) == 40
        queue.ask(claiming.release, [1, 3], end["consumer"], second.number)
        taken_by_another(rmq, queue)
        with refused(LeaseLost, "2 of its 4 claims", "slots [1, 3]"):
            second.plan(end)


def test_the_loss_of_a_message_that_is_alone_is_told_behind_a_replay_that_lacked_a_claim(rmq):
    """Failed before: the claim that the replay lacked was taken for the one that was lost."""
    queue = rmq.due(40)
    run = rmq.by_hand(queue, visibilityTimeout="1h")
    start = run.initial()
    end, _ = run.next(start)
    queue.ask(claiming.release, [0], end["consumer"], run.number)
    taken_by_another(rmq, queue)
    with run.again() as second:
        second.batch(start, end)
        queue.server.command("ZADD", queue.keys.store(0), suspect(4, 17), "suspect")
        queue.server.command("HINCRBY", queue.keys.stats(0), "accepted", 1)
        end, rows = second.next(end)
        assert contents(rows) == ["suspect"]
        queue.ask(claiming.release, [0], end["consumer"], second.number)
        taken_by_another(rmq, queue)
        with refused(LeaseLost, "1 of its 1 claims", "slots [0]"):
            second.plan(end)


def test_a_start_tells_that_the_batch_before_was_taken_while_no_query_ran(rmq, caplog):
    """It cannot be helped any more, and must not keep the query from starting."""
    queue = rmq.due(40)
    with rmq.by_hand(queue, visibilityTimeout="1h") as run:
        end, _ = run.next(run.initial())
        queue.ask(claiming.release, [0, 1], end["consumer"], run.number)
    taken_by_another(rmq, queue)
    with caplog.at_level(logging.WARNING), run.again() as later:
        assert later.plan(end) == end
    assert "2 of its 4 claims were given back before its commit" in caplog.text


def test_a_batch_that_was_not_read_or_only_in_part_is_not_lost(rmq):
    queue = rmq.due(40, slots=8)
    with rmq.by_hand(queue, numPartitions=4) as run:
        start = run.initial()
        end = run.plan(start)
        run.read(run.partitions(start, end)[:1])
        later = run.plan(end)
        assert run.plan(later)["seq"] == 3
