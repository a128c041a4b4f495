"""Redis falls back to an earlier state within a batch: no message that it accepts later is lost.

Redis is really killed and comes back from an older file, or a replica that lags takes over.
"""

import logging
from collections.abc import Callable

import pytest
from redis import Redis

import rmq_spark
from rmq_spark import Message
from rmq_spark.errors import CheckpointRefused, Fenced
from rmq_spark.local.redis import LocalRedis

from ...logs import logged
from ...rounds.proxy import Proxy
from ...waiting import wait_until
from ..driving import DUE, Rmq, Run, contents, names, refused, rest_of

VOLATILE = {"appendonly": "no"}


@pytest.fixture
def own(request, tmp_path):
    """A server that a test may kill, and what the tests of this folder see of it."""
    with LocalRedis(settings=VOLATILE) as redis:
        rmq = Rmq(redis.url, request.node.originalname, tmp_path)
        yield redis, rmq
        rmq.close()


def save(redis: LocalRedis, rmq: Rmq) -> Callable[[], None]:
    """Saves the state; what is returned kills Redis and brings it back as it was then."""
    rmq.broker.server.client.save()

    def fall_back() -> None:
        redis.kill()
        redis.start()

    return fall_back


def send_first(queue, how_many: int) -> list[str]:
    """Messages that sort before all others."""
    early = [f"early{n}" for n in range(how_many)]
    queue.send([Message(content, fixed_time=DUE - 1000 + n) for n, content in enumerate(early)])
    return early


def test_a_second_action_takes_nothing_that_was_sent_after_the_fall_back(own):
    """Else the batch's commit removes messages that its first action has never seen."""
    redis, rmq = own
    queue = rmq.due(100)
    fall_back = save(redis, rmq)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        partitions = run.partitions(start, end)
        assert sorted(contents(run.read(partitions))) == names(100)
        fall_back()
        early = send_first(queue, 30)
        assert run.read(partitions) == []  # the second action
        later = rest_of(run, end)
    assert sorted(later) == sorted([*early, *names(100)])
    assert queue.figures().counters["committed"] == 130


def test_a_plan_that_outlived_the_fall_back_makes_no_claim_anew(own):
    """The state is from between the plan and the first claim."""
    redis, rmq = own
    queue = rmq.due(100)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        fall_back = save(redis, rmq)
        partitions = run.partitions(start, end)
        assert sorted(contents(run.read(partitions))) == names(100)
        fall_back()
        early = send_first(queue, 30)
        assert run.read(partitions) == []
        assert sorted(rest_of(run, end)) == sorted([*early, *names(100)])


def test_claims_that_outlived_the_fall_back_are_read_again(own):
    redis, rmq = own
    queue = rmq.due(100)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        partitions = run.partitions(start, end)
        first = run.read(partitions)
        fall_back = save(redis, rmq)
        fall_back()
        early = send_first(queue, 30)
        assert run.read(partitions) == first
        assert sorted(rest_of(run, end)) == sorted(early)


def test_a_restart_between_two_claims_of_a_batch_of_one_action_stops_no_query(own, caplog):
    """Its other claims are not made; their messages come in the next batch."""
    redis, rmq = own
    queue = rmq.due(100, slots=4)
    with rmq.by_hand(queue, numPartitions=2) as run:
        start = run.initial()
        end = run.plan(start)
        first, second = run.partitions(start, end)
        taken = contents(run.read([first]))
        save(redis, rmq)()
        with caplog.at_level(logging.WARNING):
            assert run.read([second]) == []
        rest = rest_of(run, end)
    assert taken
    assert rest
    assert sorted([*taken, *rest]) == names(100)
    lost = "Redis was restarted, failed over, or has lost the plan of batch 1 (counted from 1)"
    assert f"topic {queue.definition.name}: {lost}" in logged(caplog)


def wait_for_replica(redis: LocalRedis) -> None:
    """Until a replica has all that was written so far.

    WAIT speaks of the writes of its own connection. Without one, it is content with a replica that
    is still loading its first snapshot.
    """
    # Later than WAIT itself: redis-py's default is shorter.
    with (
        Redis.from_url(redis.url, socket_timeout=90) as client,
        client.pipeline(transaction=False) as writes,
    ):
        writes.set("a write", "to wait for").wait(1, 60_000)
        assert writes.execute() == [True, 1]


def test_a_replica_that_lags_and_takes_over_makes_no_claim_anew(own, tmp_path):
    redis, rmq = own
    queue = rmq.due(100)
    with LocalRedis(settings=VOLATILE) as replica:
        behind = Redis.from_url(replica.url)
        behind.replicaof("127.0.0.1", str(redis.port))
        proxy = Proxy(redis.port)
        with Run({**rmq.options(queue), "redis.url": f"redis://127.0.0.1:{proxy.port}"}) as run:
            start = run.initial()
            end = run.plan(start)
            partitions = run.partitions(start, end)
            wait_for_replica(redis)
            behind.replicaof("NO", "ONE")  # what comes now it does not have
            assert sorted(contents(run.read(partitions))) == names(100)
            redis.kill()
            proxy.lead_to(replica.port)
            there = rmq_spark.connect(replica.url)
            early = send_first(there.queue(queue.definition.name), 30)
            there.close()
            assert run.read(partitions) == []
            assert sorted(rest_of(run, end)) == sorted([*early, *names(100)])
        proxy.close()
        behind.close()


def warnings_of_replays(caplog):
    said = [record.getMessage() for record in caplog.records]
    return [text for text in said if " is replayed without " in text]


def test_a_replay_whose_claims_redis_has_forgotten_warns_once(own, caplog):
    redis, rmq = own
    queue = rmq.due(50, slots=2)
    killed = rmq.by_hand(queue, failOnDataLoss="false")
    start = killed.initial()
    fall_back = save(redis, rmq)
    end, rows = killed.next(start)
    killed.reader._run._lease.end()
    consumer, _, _ = rows[0]["claimId"].partition(":")
    fall_back()
    with caplog.at_level(logging.WARNING), killed.again() as run:
        assert run.batch(start, end) == run.batch(start, end) == []  # one for each action
        assert sorted(rest_of(run, end)) == names(50)
    [said] = warnings_of_replays(caplog)
    assert said.startswith(
        f"rmq: topic {queue.definition.name}, slots 0 to 1: batch 1 (counted from 1) is replayed"
    )
    assert f"Redis has no claim {consumer}:1:*." in said
    assert "Redis fell back to an earlier state" in said


def test_a_replay_names_no_claims_of_an_earlier_batch(own, caplog):
    """Failed before: those of batch 1, which Redis had, were said to be gone from batch 3."""
    redis, rmq = own
    queue = rmq.due(30, slots=1)
    killed = rmq.by_hand(queue, maxRecordsPerTrigger="10")
    first, _ = killed.next(killed.initial())
    fall_back = save(redis, rmq)
    second, _ = killed.next(first)
    third, _ = killed.next(second)
    killed.reader._run._lease.end()
    fall_back()
    with caplog.at_level(logging.WARNING), killed.again() as run:
        assert run.batch(second, third) == []
        assert len(rest_of(run, third)) == 20  # the claims of batch 1 stay for their lease
    [said] = warnings_of_replays(caplog)
    assert (
        "batch 3 (counted from 1) is replayed without a message, because Redis has no claim" in said
    )


def test_a_replay_whose_leases_have_ended_in_one_slot_warns_of_it(rmq, caplog):
    queue = rmq.due(50, slots=2)
    killed = rmq.by_hand(queue, visibilityTimeout="1s")
    start = killed.initial()
    end, rows = killed.next(start)
    killed.reader._run._lease.end()
    ended = queue.now_ms() + 1000
    wait_until(lambda: queue.now_ms() > ended, "the leases to end")
    given_back = queue.expire([1])
    name = next(row["claimId"].rpartition(":")[0] for row in rows if row["slot"] == 1)
    with caplog.at_level(logging.WARNING), killed.again() as run:
        kept = run.batch(start, end)
        assert len(kept) == 50 - given_back
        assert {row["slot"] for row in kept} == {0}
        assert len(rest_of(run, end)) == given_back
    [said] = warnings_of_replays(caplog)
    gone = f"batch 1 (counted from 1) is replayed without the claims {name} of the slots [1]: "
    assert said.startswith(f"rmq: topic {queue.definition.name}: {gone}")


def test_a_replay_whose_claims_are_all_there_warns_of_nothing(rmq, caplog):
    queue = rmq.due(50, slots=2)
    with rmq.by_hand(queue) as first:
        start = first.initial()
        end, _ = first.next(start)
        with caplog.at_level(logging.WARNING), first.again() as run:
            assert sorted(contents(run.batch(start, end))) == names(50)
    assert warnings_of_replays(caplog) == []


def test_the_first_batch_of_a_query_on_an_empty_topic_warns_of_nothing(rmq, caplog):
    """Spark starts a query with a batch from the initial offset to itself."""
    with rmq.by_hand(rmq.queue(slots=2)) as run, caplog.at_level(logging.WARNING):
        start = run.initial()
        assert run.plan(start) == start
        assert run.batch(start, start) == []
    assert warnings_of_replays(caplog) == []


@pytest.mark.parametrize("batches", [1, 2])
def test_claims_that_come_back_and_were_not_replayed_are_committed_by_nobody(own, batches):
    """The lease had ended, so the replay had nothing; no finished batch has read them."""
    redis, rmq = own
    queue = rmq.due(50, slots=1)
    killed = rmq.by_hand(queue, visibilityTimeout="1s")
    start = killed.initial()
    end, _ = killed.next(start)
    killed.reader._run._lease.end()
    fall_back = save(redis, rmq)
    ended = queue.now_ms() + 1000
    wait_until(lambda: queue.now_ms() > ended, "the lease to end")
    assert queue.expire() == 50
    with killed.again() as run:
        assert run.batch(start, end) == []
        if batches == 2:
            end, rows = run.next(end)
            assert len(rows) == 16
        fall_back()
        assert sorted(rest_of(run, end)) == names(50)
    assert queue.figures().counters["committed"] == 50


def elsewhere(own) -> Callable[[], None]:
    """Empties Redis and makes a topic of the same name. Returns a function that restores Redis."""
    redis, rmq = own
    fall_back = save(redis, rmq)
    (definition,) = rmq.broker.topics()
    rmq.broker.server.client.flushall()
    rmq.broker.create(definition.name, "FixedTime", definition.slot_amount)
    return fall_back


def test_a_batch_is_not_replayed_by_a_redis_that_does_not_know_the_query(own):
    """Failed before, with a mistyped keyPrefix: its messages were lost without a word."""
    queue = own[1].due(50, slots=1)
    killed = own[1].by_hand(queue)
    start = killed.initial()
    end, rows = killed.next(start)
    come_back = elsewhere(own)
    with refused(CheckpointRefused, "redis.url and keyPrefix", "failOnDataLoss=false"):
        killed.again().batch(start, end)
    come_back()
    with killed.again() as run:
        assert contents(run.batch(start, end)) == contents(rows)
        assert rest_of(run, end) == []
    assert queue.figures().counters["committed"] == 50


def test_claims_that_come_back_after_a_replay_without_them_are_committed_by_nobody(own):
    """Failed before: the next run took them for those of the finished batch."""
    queue = own[1].due(50, slots=1)
    killed = own[1].by_hand(queue, visibilityTimeout="1s", failOnDataLoss="false")
    start = killed.initial()
    end, _ = killed.next(start)
    killed.reader._run._lease.end()
    come_back = elsewhere(own)
    with killed.again() as replaying:
        assert replaying.batch(start, end) == []
        last = replaying.plan(end)
        assert last != end  # although nothing is due
        assert replaying.batch(end, last) == []
        assert replaying.plan(last) == last
    come_back()
    with killed.again() as run:
        wait_until(lambda: queue.figures().prepare.due == 50, "the end of the lease")
        assert sorted(rest_of(run, last)) == names(50)
    assert queue.figures().counters["committed"] == 50


@pytest.mark.parametrize("slots", [4, 8])
def test_a_topic_made_anew_within_a_batch_gives_it_nothing(rmq, slots):
    queue = rmq.due(100)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
        partitions = run.partitions(start, end)
        assert len(run.read(partitions)) == 100
        name = queue.definition.name
        rmq.broker.delete(name)
        rmq.broker.create(name, "FixedTime", slots)
        queue = rmq.broker.queue(name)
        early = send_first(queue, 30)
        assert run.read(partitions) == []
        assert sorted(rest_of(run, end)) == sorted(early)
    assert queue.figures().counters["committed"] == 30


def test_a_run_that_redis_has_forgotten_commits_nothing_of_the_run_that_follows(own):
    """Both would have the same number, were runs only counted."""
    redis, rmq = own
    queue = rmq.due(100)
    with rmq.by_hand(queue) as first:
        start = first.initial()
        end, _ = first.next(start)
    fall_back = save(redis, rmq)
    with first.again() as forgotten:
        forgotten.batch(start, end)
        assert rest_of(forgotten, end) == []
        fall_back()
        with first.again() as follower:
            follower.batch(start, end)
            second, nothing = follower.next(end)
            assert nothing == []
            early = send_first(queue, 30)
            third, rows = follower.next(second)
            assert sorted(contents(rows)) == sorted(early)
            with pytest.raises(Fenced):  # it would read, and then commit, the same claims
                forgotten.batch(second, third)
            forgotten.reader.commit(third)
            assert follower.batch(second, third) == rows


def test_a_foreach_batch_of_two_actions_loses_nothing_that_is_sent_after_the_fall_back(own, spark):
    redis, rmq = own
    queue = rmq.due(100)
    fall_back = save(redis, rmq)
    seen: list[str] = []
    second_actions: list[int] = []

    def write(batch, number):
        first = [row.content for row in batch.collect()]
        if not second_actions:
            fall_back()
            send_first(queue, 30)
        second_actions.append(batch.count())
        seen.extend(first)

    query = (
        rmq.read(spark, queue).writeStream.foreachBatch(write)
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .start()
    )  # fmt: skip
    wait_until(lambda: queue.figures().messages == 0, "all messages to be committed")
    query.stop()
    assert query.exception() is None
    assert second_actions[0] == 0
    early = {f"early{n}" for n in range(30)}
    assert set(seen) == early | set(names(100))
    assert len([content for content in seen if content in early]) == 30
