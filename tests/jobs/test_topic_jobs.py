"""The jobs that tend topics: requeue_dead, expire and report, on real queues."""

import time

import pytest

from rmq_spark.client import Message
from rmq_spark.jobs.program import JobFailed


def kill(trade, *contents):
    """Messages that are in the dead queue."""
    trade.orders(contents)
    trade.broker.alter("Orders", max_retries=0)
    with trade.broker.consumer("Orders", "clerk") as consumer:
        for batch in consumer.batches(wait=False):
            batch.rollback(list(batch), delay="0ms")
            batch.commit()
    assert trade.broker.queue("Orders").figures().dead.count == len(contents)


def test_what_died_comes_back(trade):
    kill(trade, b"a", b"b", b"\xff")
    assert trade.job("requeue_dead", "--topic", "Orders", "--dry-run").startswith("3 dead")
    assert trade.job("requeue_dead", "--topic", "Orders", "--where", "content = 'a'") == (
        "1 dead message of Orders requeued"
    )
    assert trade.contents() == ["a"]
    assert trade.job("requeue_dead", "--topic", "Orders").startswith("2 dead messages")
    assert trade.job("requeue_dead", "--topic", "Orders").startswith("0 dead messages")
    figures = trade.broker.queue("Orders").figures()
    assert (figures.store.count, figures.dead.count) == (3, 0)


def test_dead_messages_are_chosen_by_why_and_at_whose_they_died(trade):
    trade.orders(["a", "b"])
    trade.broker.alter("Orders", max_retries=0)
    with trade.broker.consumer("Orders", "clerk") as consumer:
        for message in (batch := consumer.poll()):
            batch.rollback([message], reason=f"Refused: {message.content.decode()}")
    chosen = ("requeue_dead", "--topic", "Orders", "--where")
    assert trade.job(*chosen, "consumer <> 'clerk' or reason is null").startswith("0 dead")
    assert trade.job(*chosen, "consumer = 'clerk' and reason = 'Refused: b'").startswith("1 dead")
    assert trade.contents() == ["b"]


def test_the_dead_of_a_keyed_topic_come_back_by_their_keys(trade):
    trade.broker.create("Orders", "FixedTime", 2, keyed=True, max_retries=0)
    trade.orders([Message("paid", key="a"), Message(None, key="b"), Message("paid", key=b"\xff")])
    with trade.broker.consumer("Orders", "clerk") as consumer:
        for batch in consumer.batches(wait=False):
            batch.rollback(delay="0ms")
    requeue = ("requeue_dead", "--topic", "Orders")
    assert trade.job(*requeue, "--where", "key = 'a' AND content = 'paid'").startswith("1 dead")
    assert [(entry.key, entry.content) for entry in trade.entries()] == [(b"a", b"paid")]
    assert trade.job(*requeue).startswith("2 dead")
    contents = {entry.key: entry.content for entry in trade.entries()}
    assert contents == {b"a": b"paid", b"b": None, b"\xff": b"paid"}


def test_the_group_may_be_an_option_of_the_sink(trade):
    """Seen: the job searched one group and requeued in another, where there was nothing."""
    trade.broker.create("Orders", "FixedTime", 2, max_retries=0, groups=["default", "audit"])
    trade.orders(["a"])
    with trade.broker.consumer("Orders", "clerk", group="audit") as consumer:
        consumer.poll().rollback()
    requeue = ("requeue_dead", "--topic", "Orders")
    assert trade.job(*requeue).startswith("0 dead")
    assert trade.job(*requeue, "-o", "Group=audit").startswith("1 dead")
    figures = trade.broker.queue("Orders", group="audit").figures()
    assert (figures.store.count, figures.dead.count) == (1, 0)


def test_what_died_by_another_clock_is_found(trade):
    kill(trade, b"a")
    queue = trade.broker.queue("Orders")
    slot = queue.definition.slot_of(b"a")
    assert queue.server.client.zadd(queue.keys.dead(slot), {b"a": 9_999_999_999_999}, ch=True) == 1
    assert trade.job("requeue_dead", "--topic", "Orders").startswith("1 dead message")


def test_slots_and_times_choose_among_the_dead(trade):
    kill(trade, b"a", b"b")
    slot = trade.broker.definition("Orders").slot_of(b"a")
    assert trade.broker.definition("Orders").slot_of(b"b") != slot
    requeue = ("requeue_dead", "--topic", "Orders")
    assert trade.job(*requeue, "--until", "2020-01-01T00:00:00Z").startswith("0 ")
    assert trade.job(*requeue, "--slots", slot, "-o", "fixedTime=9999999999999").startswith("1 ")
    assert trade.contents() == ["a"]
    assert trade.job(*requeue, "-o", "delay=1h").startswith("1 ")
    store = trade.broker.queue("Orders").figures().store
    assert (store.count, store.due) == (2, 0)


def test_a_priority_topic_takes_its_dead_back_with_a_priority(trade):
    trade.broker.create("Jobs", "Priority", slot_amount=1, max_retries=0)
    trade.broker.queue("Jobs").send([Message(b"j", priority=50)])
    with trade.broker.consumer("Jobs", "clerk") as consumer:
        for batch in consumer.batches(wait=False):
            batch.rollback(list(batch), delay="0ms")
            batch.commit()
    trade.job("requeue_dead", "--topic", "Jobs", "-o", "priority=60")
    assert trade.contents("Jobs") == ["j"]


def test_what_a_dead_consumer_holds_is_given_back_in_all_groups(trade):
    trade.broker.create("Orders", "FixedTime", slot_amount=2, groups=["billing", "audit"])
    trade.broker.create("Mails", "FixedTime", slot_amount=1)
    trade.orders(["a"])
    consumers = [
        trade.broker.consumer("Orders", "gone", group=group, visibility_timeout="1s")
        for group in ("billing", "audit")
    ]
    for consumer in consumers:
        assert len(consumer.poll()) == 1
        while not consumer.queue.figures().prepare.due:
            time.sleep(0.05)
    told = trade.job("expire")
    assert told.splitlines() == ["Mails: 0 messages given back", "Orders: 2 messages given back"]
    told = trade.job("expire", "--topics", "Ord.*")
    assert told == "Orders: 0 messages given back"
    assert [consumer.queue.figures().prepare.count for consumer in consumers] == [0, 0]


def test_the_long_dead_are_deleted_in_all_groups_and_reported(trade):
    settings = {"max_retries": 0, "dead_retention": "1ms", "groups": ["billing", "audit"]}
    trade.broker.create("Orders", "FixedTime", slot_amount=2, **settings)
    trade.orders(["a", "b"])
    for group in ("billing", "audit"):
        with trade.broker.consumer("Orders", "clerk", group=group) as clerk:
            clerk.poll().rollback()
    time.sleep(0.01)
    told = trade.job("expire")
    assert told == "Orders: 0 messages given back, 4 dead messages deleted"
    trade.job("report", "--to", "parquet", "--path", trade.folder / "report")
    rows = trade.spark.read.parquet(str(trade.folder / "report")).collect()
    assert [(row.dead, row.died, row.forgotten) for row in rows] == [(0, 2, 2)] * 2


def test_a_topic_that_cannot_be_read_keeps_no_other_from_giving_back(trade):
    trade.broker.create("Mails", "FixedTime", slot_amount=1)
    keys = trade.broker.queue("Mails").keys
    version_2 = "2 1700000000 1 0 0 0 1700000000000 0"
    trade.broker.server.client.hset(keys.claims(0), "clerk:1:0", version_2)
    trade.broker.server.client.hset(f"{trade.prefix}rmq_topics", "Later", "{}")
    trade.orders(["a"])
    consumer = trade.broker.consumer("Orders", "gone", visibility_timeout="1s")
    assert len(consumer.poll()) == 1
    while not consumer.queue.figures().prepare.due:
        time.sleep(0.05)
    with pytest.raises(JobFailed) as failure:
        trade.job("expire")
    later, mails, orders = str(failure.value).splitlines()
    assert "The definition of topic Later in rmq_topics cannot be read" in later
    assert mails.startswith("Mails: ")
    assert "another version of rmq-spark" in mails
    assert orders == "Orders: 1 messages given back"
    assert consumer.queue.figures().prepare.count == 0


def test_the_figures_of_all_topics_are_appended_to_a_table_of_postgresql(trade):
    trade.orders(["a", "b"])
    trade.broker.create("Mails", "RangeMerge", slot_amount=1, groups=["x", "y"])
    trade.broker.queue("Mails", group="x").send(["m"], time_range=100_000)
    report = ("report", "--to", "jdbc", "--table", trade.table)
    assert trade.job(*report) == "3 rows appended"
    assert trade.job(*report, "--topics", "Ord.*") == "1 rows appended"
    rows = trade.psql(
        "SELECT topic, consumer_group, due, delayed, dead, accepted FROM {t} ORDER BY at, 1, 2"
    )
    assert rows == [
        ["Mails", "x", "0", "1", "0", "1"],
        ["Mails", "y", "0", "1", "0", "1"],
        ["Orders", "default", "2", "0", "0", "2"],
        ["Orders", "default", "2", "0", "0", "2"],
    ]
    assert (
        trade.count("SELECT count(*) FROM {t} WHERE abs(extract(epoch FROM now() - at)) < 300") == 4
    )


def test_what_expires_is_reported(trade):
    trade.broker.create("Orders", "FixedTime", 1)
    trade.broker.queue("Orders").send(["a"], fixed_time=1_000_000_000_000, time_to_live=1)
    with trade.broker.consumer("Orders", "clerk") as consumer:
        assert len(consumer.poll()) == 0
    trade.job("report", "--to", "parquet", "--path", trade.folder / "report")
    (row,) = trade.spark.read.parquet(str(trade.folder / "report")).collect()
    assert (row.accepted, row.expired, row.claimed) == (1, 1, 0)


def test_reports_as_files_are_one_table(trade):
    trade.orders(["a"])
    before = time.time()
    for _ in range(2):
        trade.job("report", "--to", "parquet", "--path", trade.folder / "report")
    table = trade.spark.read.parquet(str(trade.folder / "report"))
    assert [row.due for row in table.collect()] == [1, 1]
    assert all(row.oldest_due.timestamp() <= before for row in table.collect())


def test_a_topic_that_is_not_asked_for_is_not_read(trade):
    trade.orders(["a"])
    trade.broker.create("Mails", "FixedTime", slot_amount=1)
    keys = trade.broker.queue("Mails").keys
    version_2 = "2 1700000000 1 0 0 0 1700000000000 0"
    trade.broker.server.client.hset(keys.claims(0), "clerk:1:0", version_2)
    report = ("report", "--to", "parquet", "--path", trade.folder / "report", "--topics")
    assert trade.job(*report, "Ord.*") == "1 rows appended"
    assert trade.job(*report, "Nothing") == "0 rows appended"


def test_no_topics_are_no_rows(trade):
    report = ("report", "--to", "parquet", "--path", trade.folder / "report")
    assert trade.job(*report) == "0 rows appended"
