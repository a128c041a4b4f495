"""Sources whose slots are their own by ZooKeeper, call by call and in Spark's queries."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from pyspark.errors import StreamingQueryException

import rmq_spark
from rmq_spark.errors import ExclusiveSlot, OwnershipError, OwnershipUnavailable, TopicMismatch
from rmq_spark.local.zookeeper import LocalEnsemble
from rmq_spark.ownership.nodes import Nodes
from rmq_spark.protocol import claiming, reading, sending
from rmq_spark.protocol.claims import ClaimRequest, CommitResult
from rmq_spark.spark.source.backlog import Backlog

from ...seeding import open_run
from ...waiting import wait_until
from ..driving import Run, contents, knows_available_now, names, refused

SLOTS = 4


@pytest.fixture
def owning(rmq, zookeeper, root):
    """Makes sources that share slots; they end with the test."""
    runs = []

    def start(queue, **options):
        keeper = {"zookeeper.hosts": zookeeper.hosts, "zookeeper.root": root}
        run = rmq.by_hand(
            queue,
            **keeper,
            **{"zookeeper.sessionTimeout": "6s", "visibilityTimeout": "60s", **options},
        )
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.stop()


def member_of(run):
    return next(iter(run.reader._run._topics.values())).ownership._member


def planned(run, start):
    """The next offset, once there is something to read in what it owns."""
    return wait_until(lambda: (end := run.plan(start)) != start and end, "planned")


def share(*starts):
    """Asks sources for offsets, as idle queries do, until each owns as many slots as the others.

    starts: the sources, each with its offset. All are asked: a source gives up slots only then.
    """

    def owned():
        for run, start in starts:
            run.plan(start)
        return [len(member_of(run).between_batches()) for run, _ in starts]

    wait_until(lambda: owned() == [SLOTS // len(starts)] * len(starts), "they share the slots")


def end_session(run, zookeeper):
    twin = KazooClient(zookeeper.hosts, client_id=member_of(run)._client.client_id)
    twin.start()
    twin.stop()
    twin.close()


def test_alone_a_query_reads_every_slot_and_the_topic_is_exclusive_from_then_on(rmq, owning):
    queue = rmq.due(40, SLOTS)
    run = owning(queue)
    run.reader.prepareForTriggerAvailableNow()  # waits for its slots
    start = run.initial()
    end, rows = run.next(start)
    assert sorted(contents(rows)) == names(40)
    assert run.plan(end) == end
    assert queue.figures().counters["committed"] == 40
    assert rmq.broker.definition(queue.definition.name).exclusive
    with refused(ExclusiveSlot, "is exclusive"), rmq.by_hand(queue) as other:
        other.plan(other.initial())


def test_a_query_that_shares_with_nobody_ends_when_the_topic_becomes_exclusive(rmq, owning):
    queue = rmq.due(4, SLOTS)
    with rmq.by_hand(queue) as plain:
        start, _ = plain.next(plain.initial())
        run = owning(queue)
        run.plan(run.initial())
        with refused(ExclusiveSlot, "is exclusive"):
            wait_until(lambda: plain.plan(start) is None, "refused")


def test_two_queries_read_from_different_slots_and_together_all(rmq, owning):
    queue = rmq.queue("FixedTime", SLOTS)
    runs = [owning(queue), owning(queue)]
    starts = [run.initial() for run in runs]
    owns_all(runs[1], starts[1])  # whichever comes first
    share(*zip(runs, starts, strict=True))
    for slot in range(SLOTS):
        queue.ask(sending.send, {slot: [1000, b"m%d" % slot]})
    rows = [run.batch(start, planned(run, start)) for run, start in zip(runs, starts, strict=True)]
    slots = [{row["slot"] for row in of_run} for of_run in rows]
    assert not slots[0] & slots[1]
    assert sorted(contents(rows[0] + rows[1])) == names(SLOTS)


def test_a_slot_changes_its_owner_only_after_the_batch_in_flight(rmq, owning):
    queue = rmq.due(40, SLOTS)
    first = owning(queue)
    start = first.initial()
    owns_all(first, start)
    end = planned(first, start)
    rows = first.batch(start, end)
    second = owning(queue)
    second_start = second.initial()
    second.plan(second_start)
    wait_until(lambda: len(member_of(second).members) == 2, "they know each other")
    time.sleep(0.5)  # time enough to do wrong
    assert member_of(second).between_batches() == {}
    share((first, end), (second, second_start))  # the batch is done
    assert sorted(contents(rows)) == names(40)
    assert queue.figures().counters["committed"] == 40


def owns_all(run, start):
    """Before there is anything to read: asks the member alone."""
    run.reader._opened_run(offset_of(run, start), replays=False)
    wait_until(lambda: len(member_of(run).between_batches()) == SLOTS, "owns all")


def offset_of(run, start):
    from rmq_spark.spark.source.offset import Offset

    return Offset.from_dict(start, run.reader._options.subscription)


def test_what_a_lost_owner_has_in_flight_nobody_else_gets_before_its_lease_ends(
    rmq, owning, zookeeper
):
    queue = rmq.due(8, SLOTS)
    first = owning(queue, visibilityTimeout="2s")
    start = first.initial()
    owns_all(first, start)
    held = first.batch(start, planned(first, start))
    first.die()  # nobody renews for it any more
    second = owning(queue)
    second_start = second.initial()
    second.plan(second_start)
    member_of(first)._client.stop()  # leaves ZooKeeper, as a session that has ended
    end = planned(second, second_start)
    assert queue.figures().prepare.due == 8 or queue.figures().counters["rolledBack"]
    rows = second.batch(second_start, end)
    assert set(contents(rows)) <= set(contents(held))
    assert len(rows) <= SLOTS  # suspects, one of each slot
    assert {row["deliveryCount"] for row in rows} == {1}


def test_an_owner_that_was_lost_after_planning_gets_no_rows(rmq, owning, zookeeper):
    queue = rmq.due(8, SLOTS)
    first = owning(queue)
    start = first.initial()
    owns_all(first, start)
    end = planned(first, start)
    partitions = first.partitions(start, end)
    member_of(first)._client.stop()
    second = owning(queue)
    second_start = second.initial()
    owns_all(second, second_start)
    rows = second.batch(second_start, planned(second, second_start))
    assert sorted(contents(rows)) == names(8)
    assert first.read(partitions) == []


def test_a_restart_reads_its_batch_again_whoever_owns_the_slots_by_now(rmq, owning):
    queue = rmq.due(8, SLOTS)
    first = owning(queue)
    start = first.initial()
    owns_all(first, start)
    end = planned(first, start)
    rows = first.batch(start, end)
    first.die()
    member_of(first).stop()
    second = owning(queue)
    second_start = second.initial()
    owns_all(second, second_start)
    assert second.plan(second_start) == second_start  # held by the first
    again = first.again()
    try:
        assert contents(again.batch(start, end)) == contents(rows)
        again.plan(end)
        assert queue.figures().counters["committed"] == 8
    finally:
        again.stop()


def test_a_query_that_stops_keeps_what_is_in_work_for_its_lease(rmq, owning):
    queue = rmq.due(8, SLOTS)
    run = owning(queue)
    start = run.initial()
    owns_all(run, start)
    run.batch(start, planned(run, start))
    run.stop()
    prepare = queue.figures().prepare
    assert (prepare.count, prepare.due) == (8, 0)


@pytest.mark.long
def test_while_zookeeper_is_away_nothing_new_is_claimed(rmq, root):
    queue = rmq.due(8, SLOTS)
    with LocalEnsemble() as own:
        keeper = {"zookeeper.hosts": own.hosts, "zookeeper.root": root}
        run = rmq.by_hand(queue, **keeper, **{"zookeeper.sessionTimeout": "20s"})
        with run:
            start = run.initial()
            owns_all(run, start)
            own.servers[0].kill()
            wait_until(lambda: not member_of(run).between_batches(), "suspended")
            assert run.plan(start) == start
            own.servers[0].start()
            assert sorted(contents(run.batch(start, planned(run, start)))) == names(8)


def test_an_epoch_of_another_ensemble_is_an_error_that_names_the_remedy(rmq, owning):
    queue = rmq.due(8, SLOTS)
    topic = queue.definition.name
    rmq.broker.alter(topic, exclusive=True)
    queue.server.command("HSET", queue.keys.consumers(2), "@epoch", 2**50)
    run = owning(queue)
    start = run.initial()
    with refused(OwnershipError, "Slot 2", str(2**50), f" lower-epochs {topic}"):
        wait_until(lambda: run.plan(start) is None, "refused")
    command = [sys.executable, "-m", "rmq_spark.cli", "--redis-url", rmq.url]
    done = subprocess.run([*command, "lower-epochs", topic], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{topic}: epoch reset in 1 slot\n")
    assert sorted(contents(run.batch(start, planned(run, start)))) == names(8)


def test_a_query_that_cannot_join_one_topic_joins_none(rmq, zookeeper, root, client):
    queues = [rmq.queue("FixedTime", SLOTS) for _ in range(2)]
    first, second = (Nodes(root, queue.definition.name) for queue in queues)
    another = replace(queues[1].definition, slot_amount=2 * SLOTS)
    client.create(second.definition, another.to_json().encode(), makepath=True)
    given = rmq.options(queues[0], topics=",".join(queue.definition.name for queue in queues))
    del given["topic"]

    def members(of):
        return len(client.get_children(of.members))

    with Run({**given, "zookeeper.hosts": zookeeper.hosts, "zookeeper.root": root}) as run:
        start = run.initial()
        with pytest.raises(TopicMismatch):
            run.plan(start)
        client.delete(second.definition)
        run.plan(start)
        wait_until(lambda: all(map(members, (first, second))), "joined")
        assert [members(of) for of in (first, second)] == [1, 1]


def test_what_a_dead_consumer_held_takes_nobodys_place(rmq):
    """A slot that is held when the query begins, and released while it runs."""
    queue = rmq.queue("FixedTime", 2)
    queue.ask(sending.send, {0: [v for n in range(10) for v in (1000 + n, b"a%d" % n)]})
    queue.ask(sending.send, {1: [v for n in range(4) for v in (2000 + n, b"b%d" % n)]})
    epochs = {0: 1, 1: 1}
    run_number = open_run(queue, "dead", 0)
    queue.ask(
        claiming.claim,
        [ClaimRequest(0, 0, 1)],
        claiming.Claiming(consumer="dead", run=run_number, seq=1, lease_ms=60_000, epochs=epochs),
    )
    backlog = Backlog(queue, queue.now_ms())
    slots = backlog.takeable(queue.ask(reading.due, [0, 1], "new", epochs=epochs))
    assert [slot.due for slot in slots] == [0, 4]
    backlog.begin({1: 2})
    backlog.note_committed(CommitResult(claimed=2, moved=0, committed=2))
    queue.ask(claiming.release, [0], "dead", run_number)
    assert backlog.bound(10**9) >= 9 + 2  # nine that waited behind it, and two of the other slot


def test_a_query_triggered_once_waits_for_its_slots(rmq, owning):
    queue = rmq.due(8, SLOTS)
    run = owning(queue)
    start = run.initial()
    end = run.plan(start, all_available=True)
    assert sorted(contents(run.batch(start, end))) == names(8)


def test_who_switches_exclusive_off_ends_the_queries_that_rely_on_it(rmq, owning):
    queue = rmq.due(8, SLOTS)
    run = owning(queue)
    start = run.initial()
    owns_all(run, start)
    rmq.broker.alter(queue.definition.name, exclusive=False)
    with refused(OwnershipError, "is no longer exclusive"):
        wait_until(lambda: run.plan(start) is None, "refused")


def test_a_batch_takes_the_earliest_messages_of_all_slots(rmq):
    queue = rmq.queue("FixedTime", SLOTS)
    for slot, first in enumerate((1000, 5000, 3000, 1500)):
        queue.ask(
            sending.send, {slot: [v for n in range(100) for v in (first + n, b"%d %d" % (slot, n))]}
        )
    with rmq.by_hand(queue, maxRecordsPerTrigger=160) as run:
        _, rows = run.next(run.initial())
    assert len(rows) == 160
    taken = {slot: sum(row["slot"] == slot for row in rows) for slot in range(SLOTS)}
    # An eighth goes round: five for each slot. The first 140 are the whole of slot 0 and 40 of 3.
    assert taken[0] == 100
    assert taken[3] >= 40 + 5
    assert min(taken[1], taken[2]) >= 5


def test_a_batch_takes_the_highest_priorities_of_all_slots(rmq):
    queue = rmq.queue("Priority", SLOTS)
    for slot, lowest in enumerate((100, 2000, 1000, 500)):
        queue.ask(
            sending.send,
            {slot: [v for n in range(100) for v in (lowest + n, b"%d %d" % (slot, n))]},
        )
    with rmq.by_hand(queue, maxRecordsPerTrigger=100) as run:
        _, rows = run.next(run.initial())
    highest = sorted((row["priority"] for row in rows), reverse=True)
    assert highest[:88] == list(range(2099, 2011, -1))
    assert {row["slot"] for row in rows} == set(range(SLOTS))


# -- in Spark


def options_of(rmq, queue, zookeeper, root):
    keeper = {"zookeeper.hosts": zookeeper.hosts, "zookeeper.root": root}
    return rmq.options(queue, **keeper)


@knows_available_now
def test_spark_reads_all_there_is_and_reports_slots_and_members(spark, rmq, zookeeper, root):
    queue = rmq.due(100, SLOTS)
    frame = spark.readStream.format("rmq").options(**options_of(rmq, queue, zookeeper, root)).load()
    query = rmq.drain(frame)
    assert rmq.contents(spark) == names(100)
    import json

    figures = json.loads(query.recentProgress[0].sources[0].latestOffset)
    assert (figures["slotsOwned"], figures["members"]) == (SLOTS, 1)


def test_spark_ends_a_query_whose_zookeeper_is_not_there(spark, rmq):
    queue = rmq.due(4, SLOTS)
    nowhere = {"zookeeper.hosts": "127.0.0.1:1", "zookeeper.sessionTimeout": "1s"}
    query = rmq.into_parquet(rmq.read(spark, queue, **nowhere))
    with pytest.raises(StreamingQueryException) as ended:
        query.awaitTermination(60)
    assert OwnershipUnavailable.__name__ in str(ended.value)
    assert "127.0.0.1:1 did not answer within 1000 ms" in str(ended.value)


def test_plain_consumers_are_refused_where_slots_are_owned(rmq):
    queue = rmq.due(4, SLOTS, exclusive=True)
    with pytest.raises(ExclusiveSlot):
        rmq_spark.connect(rmq.url).consumer(queue.definition.name, "plain")


def test_a_progress_report_leaves_exclusive_off(rmq, owning):
    queue = rmq.due(8, SLOTS)
    run = owning(queue)
    owns_all(run, run.initial())
    rmq.broker.alter(queue.definition.name, exclusive=False)
    run.reader.reportLatestOffset()
    assert not rmq.broker.definition(queue.definition.name).exclusive
