"""A topic is paused: from then on nobody makes a claim, whatever else happens at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rmq_spark.client import Broker
from rmq_spark.client.queue import Queue
from rmq_spark.client.receiving import consumer as consumer_module
from rmq_spark.client.receiving.consumer import Consumer
from rmq_spark.errors import GroupNotEmpty, InvalidOption
from rmq_spark.protocol import claiming
from rmq_spark.topics.keys import Keys

from ..seeding import numbered
from ..waiting import wait_until

ROUNDS = 20


@pytest.fixture
def topic(broker):
    broker.create("T", "FixedTime", 4, groups=("", "g"))
    return broker.queue("T")


def marks(broker, groups=("", "g")):
    """Which slots of a topic are marked as paused: all, none, or a mixture."""
    queues = [broker.queue("T", group=group) for group in groups]
    keys = [queue.keys.consumers(slot) for queue in queues for slot in queue.slots]
    return {bool(broker.server.client.hexists(key, "@paused")) for key in keys}


def all_keys(broker):
    return broker.server.client.keys(f"{broker.key_prefix}*")


def before_asking(monkeypatch, build, act):
    """Let another caller act once, just before the first request of this kind."""
    ask, left = Queue.ask, [act]

    def interrupted(queue, wanted, *args, **keywords):
        if wanted is build and left:
            left.pop()()
        return ask(queue, wanted, *args, **keywords)

    monkeypatch.setattr(Queue, "ask", interrupted)
    return left


def before_replacing(monkeypatch, act):
    """Let another caller act once, just before the first change of a definition."""
    replace, left = Broker._replace, [act]

    def interrupted(broker, *args):
        if left:
            left.pop()()
        return replace(broker, *args)

    monkeypatch.setattr(Broker, "_replace", interrupted)
    return left


# -- consumers


def test_a_claim_that_was_about_to_be_made_gets_nothing(broker, topic, monkeypatch):
    """Seen: it took messages after the pause had returned."""
    topic.send(numbered(20), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        left = before_asking(monkeypatch, claiming.claim, lambda: broker.alter("T", paused=True))
        assert len(consumer.poll()) == 0
        assert left == []
        assert topic.figures().prepare.count == 0
        assert len(consumer.poll()) == 0
        broker.alter("T", paused=False)
        batch = consumer.poll()
        assert len(batch) == 20
        assert batch.commit() == 20


def test_a_batch_that_was_taken_before_is_renewed_rolled_back_and_committed(broker, topic):
    topic.send(numbered(20), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        batch = consumer.poll(limit=15)
        broker.alter("T", paused=True)
        batch.renew()
        assert batch.rollback(list(batch)[:5]) == 5
        assert batch.commit() == 10
        assert len(consumer.poll()) == 0
    figures = topic.figures()
    assert (figures.prepare.count, figures.store.count) == (0, 10)


def test_a_consumer_that_waits_in_its_loop_gets_nothing_until_the_resume(
    broker, topic, monkeypatch
):
    taken, polls, seen = [], [], threading.Event()
    poll = Consumer._poll
    monkeypatch.setattr(Consumer, "_poll", lambda *args: polls.append(args) or poll(*args))
    monkeypatch.setattr(consumer_module, "REFRESH_S", 0.05)

    def work():
        with broker.consumer("T", "a") as consumer:
            for batch in consumer.batches():
                taken.extend(message.content for message in batch)
                batch.commit()
                seen.set()
                if b"last" in taken:
                    return

    worker = threading.Thread(target=work)
    worker.start()
    topic.send([b"first"], fixed_time=1000)
    assert seen.wait(30)
    broker.alter("T", paused=True)
    topic.send([b"last"], fixed_time=1000)
    polls.clear()
    wait_until(lambda: len(polls) > 3, "a few polls")
    assert (taken, topic.figures().store.count) == ([b"first"], 1)
    broker.alter("T", paused=False)
    worker.join(30)
    assert taken == [b"first", b"last"]


# -- topics and groups


def test_all_slots_of_all_groups_are_marked_and_unmarked(broker, topic):
    assert marks(broker) == {False}
    for paused in (True, True, False, False):
        assert broker.alter("T", paused=paused).paused is paused
        assert marks(broker) == {paused}


def test_another_change_leaves_a_pause_as_it_is(broker, topic):
    broker.alter("T", paused=True)
    broker.alter("T", max_retries=3, groups=("", "g", "h"))
    assert marks(broker, ("", "g", "h")) == {True}
    broker.alter("T", paused=False, retry_backoff="1s")
    assert marks(broker, ("", "g", "h")) == {False}


def test_a_topic_that_is_created_paused_gives_nothing_until_it_is_resumed(broker):
    broker.create("T", "FixedTime", 2, paused=True)
    broker.queue("T").send(numbered(5), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        assert len(consumer.poll()) == 0
        broker.create("T", "FixedTime", 2)  # it is there: nothing changes
        assert len(consumer.poll()) == 0
        broker.alter("T", paused=False)
        assert len(consumer.poll()) == 5


def test_a_topic_that_exists_is_not_paused_by_a_second_create(broker, topic):
    assert not broker.create("T", "FixedTime", 4, paused=True).paused
    assert marks(broker) == {False}


def test_a_group_that_is_added_to_a_paused_topic_gives_nothing_either(broker, topic):
    broker.alter("T", paused=True)
    broker.add_group("T", "h")
    broker.remove_group("T", "g")
    broker.add_group("T", "g")
    assert marks(broker, ("", "g", "h")) == {True}
    topic = broker.queue("T")
    topic.send(numbered(5), fixed_time=1000)
    with broker.consumer("T", "a", group="h") as consumer:
        assert len(consumer.poll()) == 0
        broker.alter("T", paused=False)
        assert len(consumer.poll()) == 5


def test_a_topic_that_is_deleted_while_paused_runs_when_it_is_made_anew(broker, topic):
    broker.alter("T", paused=True)
    broker.delete("T")
    assert all_keys(broker) == []
    broker.create("T", "FixedTime", 4, groups=("", "g"))
    assert marks(broker) == {False}
    broker.queue("T").send(numbered(5), fixed_time=1000)
    with broker.consumer("T", "a") as consumer:
        assert len(consumer.poll()) == 5


def test_a_group_that_is_put_back_after_a_resume_is_not_paused(broker, topic, monkeypatch):
    """It gets messages while it is removed, so the removal puts it back with its keys."""
    broker.alter("T", paused=True)
    removed, put_back = Broker._replace, Broker._with_group

    def remove(*args):
        monkeypatch.setattr(Broker, "_replace", removed)
        topic.send(numbered(5), fixed_time=1000)
        return removed(*args)

    def resume_first(*args, **keywords):
        broker.alter("T", paused=False)
        return put_back(*args, **keywords)

    monkeypatch.setattr(Broker, "_replace", remove)
    monkeypatch.setattr(Broker, "_with_group", resume_first)
    with pytest.raises(GroupNotEmpty):
        broker.remove_group("T", "g")
    assert (broker.definition("T").paused, marks(broker)) == (False, {False})


# -- several callers at once, and callers that die


@pytest.mark.parametrize("dies_in", ["_mark", "_replace", "_mark_slots"])
@pytest.mark.parametrize("paused", [True, False])
def test_a_call_that_died_half_way_never_leaves_a_running_topic_that_gives_nothing(
    broker, topic, monkeypatch, paused, dies_in
):
    """And the same call again completes it."""
    broker.alter("T", paused=not paused)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Broker, dies_in, die)
        with pytest.raises(KeyboardInterrupt):
            broker.alter("T", paused=paused)
    assert broker.definition("T").paused or marks(broker) == {False}
    broker.alter("T", paused=paused)
    assert (broker.definition("T").paused, marks(broker)) == (paused, {paused})


def test_a_resume_repairs_a_topic_that_says_it_is_running(broker, topic):
    topic.ask(claiming.pause, None)
    broker.alter("T", paused=False)
    assert marks(broker) == {False}


def test_a_group_is_not_paused_by_what_an_earlier_one_left(broker, topic):
    """A pause that was in progress when the group went has marked its slots."""
    for put_back in (
        lambda: broker.alter("T", groups=("", "g")),
        lambda: broker.add_group("T", "g"),
    ):
        broker.remove_group("T", "g")
        keys = Keys("T", broker.key_prefix, "g")
        broker.server.client.hset(keys.consumers(0), "@paused", "inf")
        put_back()
        assert marks(broker) == {False}


def test_a_pause_and_a_resume_meanwhile_leave_a_running_topic(broker, topic, monkeypatch):
    left = before_asking(monkeypatch, claiming.pause, lambda: broker.alter("T", paused=False))
    broker.alter("T", paused=True)
    assert left == []
    assert (broker.definition("T").paused, marks(broker)) == (False, {False})


@pytest.mark.parametrize("change", [{}, {"max_retries": 3}], ids=["alone", "with another change"])
def test_a_resume_and_a_pause_meanwhile_agree(broker, topic, monkeypatch, change):
    broker.alter("T", paused=True)
    left = before_replacing(monkeypatch, lambda: broker.alter("T", paused=True, **change))
    broker.alter("T", paused=False)
    assert left == []
    assert (broker.definition("T").paused, marks(broker)) == (False, {False})


def test_a_topic_that_is_deleted_while_it_is_paused_leaves_no_key(broker, topic, monkeypatch):
    left = before_asking(monkeypatch, claiming.pause, lambda: broker.delete("T"))
    broker.alter("T", paused=True)
    assert left == []
    assert all_keys(broker) == []


def test_a_topic_that_is_made_anew_while_it_is_paused_runs(broker, topic, monkeypatch):
    def make_anew():
        broker.delete("T")
        broker.create("T", "Priority", 4, groups=("", "g"))

    before_asking(monkeypatch, claiming.pause, make_anew)
    broker.alter("T", paused=True)
    assert (broker.definition("T").paused, marks(broker)) == (False, {False})


def test_a_group_that_is_added_while_the_topic_is_paused_is_paused_too(broker, topic, monkeypatch):
    before_asking(monkeypatch, claiming.pause, lambda: broker.add_group("T", "h"))
    broker.alter("T", paused=True)
    assert marks(broker, ("", "g", "h")) == {True}


def test_pauses_and_resumes_of_several_threads_agree_in_the_end(broker, topic):
    begin = threading.Barrier(2)

    def change(paused):
        begin.wait(30)
        for turn in (paused, not paused, paused):
            broker.alter("T", paused=turn)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            list(threads.map(change, (True, False)))
            assert marks(broker) == {broker.definition("T").paused}


# -- one group


def paused_groups(broker, groups=("", "g")):
    """The groups whose slots are all marked; none is marked in part."""
    return [group for group in groups if marks(broker, [group]) == {True}]


def test_one_group_is_paused_and_the_others_go_on(broker, topic):
    topic.send(numbered(5), fixed_time=1000)
    assert broker.pause("T", group="g").paused_groups == ("g",)
    assert paused_groups(broker) == ["g"]
    with (
        broker.consumer("T", "a") as others,
        broker.consumer("T", "a", group="g") as paused,
    ):
        assert len(paused.poll()) == 0
        assert len(others.poll()) == 5
        assert broker.resume("T", group="g").paused_groups == ()
        assert len(paused.poll()) == 5


@pytest.mark.parametrize(
    ("steps", "whole", "groups"),
    [
        ([("pause", "g"), ("pause", "g")], False, ["g"]),
        ([("pause", ""), ("pause", "g")], False, ["", "g"]),
        ([("pause", "default")], False, [""]),
        ([("pause", "g"), ("pause", None)], True, ["", "g"]),
        ([("pause", None), ("pause", "g")], True, ["", "g"]),
        ([("pause", None), ("resume", "g")], False, [""]),
        ([("pause", "g"), ("resume", "")], False, ["g"]),
        ([("pause", "g"), ("resume", None)], False, []),
        ([("pause", "g"), ("pause", None), ("resume", None)], False, ["g"]),
        ([("pause", None), ("pause", "g"), ("resume", None)], False, ["g"]),
        ([("pause", "g"), ("pause", None), ("resume", None), ("resume", None)], False, []),
        ([("pause", None), ("resume", "g"), ("resume", None)], False, []),
        ([("resume", "g"), ("resume", None)], False, []),
    ],
)
def test_pauses_of_groups_and_of_all(broker, topic, steps, whole, groups):
    for change, group in steps:
        definition = getattr(broker, change)("T", group=group)
    assert definition == broker.definition("T")
    assert definition.paused is whole
    assert paused_groups(broker) == groups
    assert [group for group in ("", "g") if definition.is_paused(group)] == groups


def test_another_change_leaves_a_paused_group_as_it_is(broker, topic):
    broker.pause("T", group="g")
    broker.alter("T", max_retries=3, groups=("", "g", "h"))
    assert paused_groups(broker, ("", "g", "h")) == ["g"]


def test_a_topic_that_is_created_with_a_paused_group_gives_it_nothing(broker):
    broker.create("T", "FixedTime", 4, groups=("", "g"), paused_groups=("g",))
    assert paused_groups(broker) == ["g"]


def test_a_paused_group_must_be_one_of_the_topic(broker, topic):
    """Else a group that is added later would be paused, and nobody would know why."""
    for change in (broker.alter, lambda name, **how: broker.create("U", "FixedTime", 4, **how)):
        with pytest.raises(InvalidOption, match="paused_groups names other, no group of topic"):
            change("T", paused_groups=("other",))
    assert broker.find("U") is None


def test_a_paused_group_that_is_removed_is_not_paused_when_it_is_added_again(broker, topic):
    broker.pause("T", group="g")
    broker.remove_group("T", "g")
    broker.add_group("T", "g")
    assert paused_groups(broker) == []
    assert not broker.definition("T").paused_groups


def test_a_group_that_is_unknown_is_refused_and_nothing_changes(broker, topic):
    for change in (broker.pause, broker.resume):
        with pytest.raises(InvalidOption, match="group"):
            change("T", group="other")
    assert paused_groups(broker) == []


def test_pauses_and_resumes_of_a_group_and_of_all_agree_in_the_end(broker, topic):
    begin = threading.Barrier(2)

    def change(group):
        begin.wait(30)
        for turn in (broker.pause, broker.resume, broker.pause):
            turn("T", group=group)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            list(threads.map(change, (None, "g")))
            definition = broker.definition("T")
            assert paused_groups(broker) == [g for g in ("", "g") if definition.is_paused(g)]
            broker.resume("T")
