"""Consumer groups: each reads its own copy, at its own pace."""

import pytest

import rmq_spark
from rmq_spark.errors import CheckpointRefused, GroupNotEmpty, InvalidOption, TopicMismatch

from ..driving import Run, contents, drained, names, refused, send_due


@pytest.fixture
def queue(rmq):
    """A topic of the groups a and b, without the default group, with ten messages due."""
    name = rmq.name()
    rmq.broker.create(name, "FixedTime", 4, groups=("a", "b"), max_retries=1)
    queue = rmq.broker.queue(name, group="a")
    send_due(queue, range(10))
    return queue


def counts(queue):
    return [queue.of_group(group).figures().store.count for group in queue.definition.groups]


def test_every_group_reads_everything_at_its_own_pace(rmq, queue):
    with rmq.by_hand(queue, group="a") as a:
        end, rows = a.next(a.initial())
        assert sorted(contents(rows)) == names(10)
        assert a.plan(end) == end
        assert counts(queue) == [0, 10]
        with rmq.by_hand(queue, group="b") as b:
            _, rows = b.next(b.initial())
            assert sorted(contents(rows)) == names(10)


def test_a_restart_replays_within_its_group(rmq, queue):
    with rmq.by_hand(queue, group="a") as run:
        start = run.initial()
        end, rows = run.next(start)
        again = run.again()
        with again:
            assert sorted(contents(again.batch(start, end))) == sorted(contents(rows))
    assert counts(queue)[1] == 10


def test_a_checkpoint_belongs_to_its_group(rmq, queue):
    with rmq.by_hand(queue, group="a") as run:
        end, _ = run.next(run.initial())
    with refused(CheckpointRefused, "consumer group 'a'", "'b'"):
        rmq.by_hand(queue, group="b").plan(end)


def test_a_group_that_the_topic_lacks_is_named_with_those_it_has(rmq, queue):
    with refused(InvalidOption, "group='default' is not a consumer group", "Accepted: a, b"):
        rmq.by_hand(queue).plan(rmq.by_hand(queue).initial())


@pytest.mark.long
def test_failed_messages_go_back_to_the_group_that_read_them(spark, rmq, queue):
    """By each_message and by rows: the claimId tells the group."""

    def fail(message):
        raise ValueError(message.content)

    body = rmq_spark.each_message(fail, options={"redis.url": rmq.url})
    frame = rmq.read(spark, queue, group="b", maxRecordsPerTrigger=10)
    writer = frame.writeStream.foreachBatch(body)
    drained(writer.option("checkpointLocation", str(rmq.folder / "each")))
    dead = queue.of_group("b").figures().dead.count
    assert (counts(queue)[0], dead) == (10, 10)
    with rmq.by_hand(queue, group="a") as run:
        _, rows = run.next(run.initial())
        columns = ("content", "slot", "claimId")
        failed = spark.createDataFrame(
            [tuple(row[c] for c in columns) for row in rows[:3]],
            "content STRING, slot INT, claimId STRING",
        )
        rmq.write(failed, queue.definition.name, operation="rollback")
        assert counts(queue)[0] == 3


def test_cancel_recalls_the_copies_of_all_groups_or_of_one(spark, rmq, queue):
    name = queue.definition.name
    one, two = (spark.createDataFrame([(c,)], "content STRING") for c in ("m1", "m2"))
    rmq.write(one, name, operation="cancel")
    assert counts(queue) == [9, 9]
    rmq.write(two, name, operation="cancel", group="b")
    assert counts(queue) == [9, 8]


def test_requeue_brings_back_what_died_in_a_group(spark, rmq, queue):
    of_b = queue.of_group("b")
    for _ in range(2):
        with rmq.broker.consumer(queue.definition.name, "c", group="b") as consumer:
            consumer.poll().rollback()
    assert of_b.figures().dead.count == 10
    rows = spark.createDataFrame([(c,) for c in names(10)], "content STRING")
    rmq.write(rows, queue.definition.name, operation="requeue", group="b")
    assert (of_b.figures().dead.count, counts(queue)) == (0, [10, 10])


def test_a_group_belongs_to_what_it_can_change(spark, rmq, queue):
    rows = spark.createDataFrame([("m",)], "content STRING")
    with refused(Exception, "group='a' is not accepted with operation=send"):
        rmq.write(rows, queue.definition.name, group="a", fixedTime="1")


def test_the_sink_makes_a_topic_with_its_groups_and_says_when_it_has_others(spark, rmq):
    name = rmq.name()
    rows = spark.createDataFrame([("m",)], "content STRING")
    given = {"topicType": "FixedTime", "fixedTime": "1"}
    rmq.write(rows, name, groups="default, audit", **given)
    assert rmq.broker.definition(name).groups == ("", "audit")
    rmq.write(rows, name, groups="audit", **given)
    with refused(Exception, TopicMismatch.__name__, "no consumer group billing", "add-group"):
        rmq.write(rows, name, groups="audit,billing", **given)


def test_a_pattern_reads_the_topics_that_have_the_group(rmq, queue):
    name = queue.definition.name
    rmq.broker.create(f"{name}.other", "FixedTime", 2)
    send_due(rmq.broker.queue(f"{name}.other"), range(4))
    run = Run({"redis.url": rmq.url, "topicPattern": f"{name}.*", "group": "a"})
    with run:
        _, rows = run.next(run.initial())
    assert {row["topic"] for row in rows} == {name}


# -- adding and removing


def test_a_group_that_holds_messages_is_not_removed_unasked(rmq, queue):
    name = queue.definition.name
    with rmq.broker.consumer(name, "c", group="b") as consumer:
        consumer.poll(3)
        text = "holds 10 messages: 7 stored, 3 in progress, 0 waiting for a retry, 0 dead"
        with refused(GroupNotEmpty, text, "drop=True"):
            rmq.broker.remove_group(name, "b")
        assert rmq.broker.definition(name).groups == ("a", "b")
    assert rmq.broker.remove_group(name, "b", drop=True) == 10
    assert rmq.broker.definition(name).groups == ("a",)
    assert counts(rmq.broker.queue(name, group="a")) == [10]
    left = rmq.broker.server.client.keys(f"*{name}_*@b")
    assert left == []


def test_an_empty_group_goes_without_a_word_and_the_last_one_stays(rmq):
    name = rmq.name()
    rmq.broker.create(name, "FixedTime", 1)
    assert rmq.broker.add_group(name, "late").groups == ("", "late")
    assert rmq.broker.add_group(name, "late").groups == ("", "late")
    assert rmq.broker.remove_group(name, "default") == 0
    with refused(InvalidOption, "the only consumer group"):
        rmq.broker.remove_group(name, "late")
    with refused(InvalidOption, "group='x' is not a consumer group"):
        rmq.broker.remove_group(name, "x")


def test_alter_takes_no_group_away(rmq, queue):
    with refused(InvalidOption, "leaves out b", "remove_group"):
        rmq.broker.alter(queue.definition.name, groups=("a", "c"))


def test_a_query_of_a_removed_group_ends_with_a_word(rmq, queue):
    with rmq.by_hand(queue, group="b") as run:
        end, _ = run.next(run.initial())
        rmq.broker.remove_group(queue.definition.name, "b", drop=True)
        with refused(InvalidOption, "group='b' is not a consumer group"):
            run.reader._run._watch.found_something()
            run.plan(end)


@pytest.fixture
def default_last(rmq):
    """A topic whose default group is not its first, with ten messages due."""
    name = rmq.name()
    rmq.broker.create(name, "FixedTime", 4, groups=("a", ""), max_retries=1)
    queue = rmq.broker.queue(name)
    send_due(queue, range(10))
    return queue


def test_failed_messages_of_the_default_group_go_back_to_it_where_another_is_first(
    spark, rmq, default_last
):
    """Seen: the rollback went to the first group, found nothing, and the commit lost them."""

    def fail(message):
        raise ValueError(message.content)

    body = rmq_spark.each_message(fail, options={"redis.url": rmq.url})
    writer = rmq.read(spark, default_last).writeStream.foreachBatch(body)
    drained(writer.option("checkpointLocation", str(rmq.folder / "each")))
    assert (body.failed, body.left_alone) == (20, 0)
    assert default_last.figures().dead.count == 10
    assert default_last.of_group("a").figures().store.count == 10


def test_rows_of_the_default_group_are_rolled_back_and_requeued_where_another_is_first(
    spark, rmq, default_last
):
    dead = default_last.definition.name
    with rmq.by_hand(default_last) as run:
        end = run.initial()
        for _ in range(2):
            end, rows = run.next(end)
            columns = ("content", "slot", "claimId")
            failed = spark.createDataFrame(
                [tuple(row[c] for c in columns) for row in rows],
                "content STRING, slot INT, claimId STRING",
            )
            rmq.write(failed, dead, operation="rollback")
        run.plan(end)
    assert default_last.figures().dead.count == 10
    rmq.write(failed.drop("claimId"), dead, operation="requeue")
    figures = default_last.figures()
    assert (figures.store.count, figures.dead.count) == (10, 0)
