"""Messages of a batch whose query has ended: one of them may be the reason."""

import itertools

from rmq_spark.protocol import claiming

from ...seeding import suspect
from ..driving import Run, contents, names, send_due


def put_suspects(queue, slots):
    """Stores a message to be alone with in each of some slots."""
    for slot in slots:
        scored = suspect(4, 17), f"suspect{slot}"
        queue.server.command("ZADD", queue.keys.store(slot), *scored)
        queue.server.command("HINCRBY", queue.keys.stats(slot), "accepted", 1)


def lose(queue, run, end):
    """Ends the leases of a run that is gone."""
    queue.ask(claiming.release, queue.slots, end["consumer"], run.number)


def test_a_batch_has_one_message_to_be_alone_with_and_no_other(rmq):
    queue = rmq.due(20)
    put_suspects(queue, [1, 3])
    with rmq.by_hand(queue, numPartitions=4) as run:
        end, batches = run.initial(), []
        for _ in range(3):
            end, rows = run.next(end)
            batches.append(sorted(contents(rows)))
        run.plan(end)
    assert sorted(batches[:2]) == [["suspect1"], ["suspect3"]]
    assert batches[2] == names(20)
    assert queue.figures().counters["committed"] == 22


def test_so_has_a_batch_of_several_topics(rmq):
    first, second = rmq.due(5), rmq.due(5)
    put_suspects(second, [0])
    topics = f"{first.definition.name},{second.definition.name}"
    with Run({"redis.url": rmq.url, "topics": topics, "pollInterval": "20ms"}) as run:
        end, rows = run.next(run.initial())
        assert contents(rows) == ["suspect0"]
        end, rows = run.next(end)
        assert len(rows) == 10


def test_an_available_now_query_reads_them_too(spark, rmq):
    queue = rmq.due(10)
    put_suspects(queue, [0, 1, 2])
    rmq.drain(rmq.read(spark, queue))
    assert rmq.contents(spark) == sorted([*names(10), "suspect0", "suspect1", "suspect2"])


def test_one_that_ends_each_query_is_dead_after_so_many_and_costs_the_others_nothing(rmq):
    queue = rmq.due(300, slots=2, max_retries=1)
    send_due(queue, range(300, 302))
    lost, done = 0, []
    for _ in itertools.count():
        with rmq.by_hand(queue, visibilityTimeout="1h") as run:
            end = start = run.initial()
            while True:
                start, end = end, run.plan(end)
                if start == end:
                    break
                rows = run.batch(start, end)
                if "m7" in contents(rows):
                    lost += 1
                    lose(queue, run, end)
                    break
                done += rows
        figures = queue.figures()
        if not figures.store.count + figures.prepare.count:
            break
    assert lost <= 4 + 1 + 1
    assert sorted(contents(done)) == sorted({*names(302)} - {"m7"})
    assert {row["retriesLeft"] for row in done} == {1}
    assert figures.dead.count == 1
