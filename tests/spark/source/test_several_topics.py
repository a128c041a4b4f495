"""One query that reads several topics: which they are, what a batch takes of each, and restarts."""

import re
from collections import Counter

import pytest

from rmq_spark.errors import (
    CheckpointRefused,
    InvalidOption,
    ScriptFailed,
    ServerUnavailable,
    UnknownTopic,
)
from rmq_spark.protocol import claiming, reading
from rmq_spark.spark.source.batch_sizer import FIRST_MESSAGES
from rmq_spark.spark.source.leases import LeaseTimer
from rmq_spark.topics.keys import topics_key

from ...waiting import wait_until
from ..driving import Run, contents, knows_available_now, names, refused, send_due


@pytest.fixture
def two(rmq):
    """Two topics with five and seven messages that are due: m0 ..., in each."""
    return rmq.due(5), rmq.due(7)


def options(rmq, **more):
    return {"redis.url": rmq.url, "pollInterval": "20ms", **{k: str(v) for k, v in more.items()}}


def listed(*queues):
    return ",".join(queue.definition.name for queue in queues)


def by_topic(rows):
    return Counter(row["topic"] for row in rows)


def test_a_batch_holds_messages_of_all_topics_and_is_committed_in_all(rmq, two):
    with Run(options(rmq, topics=listed(*two))) as run:
        end, rows = run.next(run.initial())
        assert by_topic(rows) == {listed(two[0]): 5, listed(two[1]): 7}
        assert sorted(contents(rows)) == sorted(names(5) + names(7))
        assert run.plan(end) == end
    assert [queue.figures().counters["committed"] for queue in two] == [5, 7]


def test_a_commit_goes_through_the_held_slots_once_however_many_topics_there_are(rmq, monkeypatch):
    """With a thousand topics, once for each of them took seconds."""
    asked, slots = [], LeaseTimer.slots
    monkeypatch.setattr(LeaseTimer, "slots", lambda timer: asked.append(1) or slots(timer))
    queues = [rmq.due(2) for _ in range(5)]
    with Run(options(rmq, topics=listed(*queues))) as run:
        end, rows = run.next(run.initial())
        assert len(rows) == 10
        asked.clear()
        assert run.plan(end) == end
        assert len(asked) == 1
    assert [queue.figures().counters["committed"] for queue in queues] == [2] * 5


def test_a_restart_reads_the_same_rows_of_every_topic(rmq, two):
    with Run(options(rmq, topics=listed(*two))) as run:
        start = run.initial()
        end, rows = run.next(start)
        for queue in two:
            send_due(queue, range(100, 110))
        again = run.again()
        repeated = again.batch(start, end)
    assert sorted(map(str, contents(rows))) == sorted(map(str, contents(repeated)))
    with again:
        later, rows = again.next(end)
        assert len(rows) == 20
        assert again.plan(later) == later


def test_with_release_on_stop_the_messages_of_every_topic_are_given_back(rmq, two):
    with Run(options(rmq, topics=listed(*two), releaseOnStop="true")) as run:
        run.next(run.initial())
    with Run(options(rmq, topics=listed(*two))) as other:
        _, rows = other.until(other.initial(), 12)
    assert len(rows) == 12


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_topic_had_in_work_when_it_left_is_not_committed_when_it_returns(rmq, two, restarts):
    """The batch was replayed without it: nobody has finished its claims."""
    first, second = two
    pattern = re.escape(first.definition.name.rpartition(".")[0]) + "[.](?:{}|{})".format(
        *(queue.definition.name.rpartition(".")[2] for queue in two)
    )
    killed = Run(options(rmq, topicPattern=pattern))
    start = killed.initial()
    end, rows = killed.next(start)
    mine = len([row for row in rows if row["topic"] == first.definition.name])
    assert 0 < mine < len(rows)
    rmq.broker.alter(first.definition.name, exclusive=True)
    with killed.again() as run:
        assert by_topic(run.batch(start, end)) == {second.definition.name: len(rows) - mine}
        rmq.broker.alter(first.definition.name, exclusive=False)
        if restarts:  # Spark has finished the batch, and Redis does not know yet
            run.stop()
            run = run.again()
        for queue in two:
            send_due(queue, range(100, 103))
        while (later := run.plan(end)) != end:
            run.batch(end, later)
            end = later
    figures = first.figures()
    assert (figures.prepare.count, figures.counters["committed"]) == (mine, 3)
    assert second.figures().counters["committed"] == len(rows) - mine + 3


def test_a_number_limits_the_batch_and_topics_share_it_evenly(rmq, two):
    with Run(options(rmq, topics=listed(*two), maxRecordsPerTrigger=6)) as run:
        end, rows = run.next(run.initial())
        assert sorted(by_topic(rows).values()) == [3, 3]
        _, rows = run.next(end)
        assert sorted(by_topic(rows).values()) == [2, 4]


def test_json_limits_each_topic_for_itself(rmq, two):
    first, second = (queue.definition.name for queue in two)
    limits = f'{{"{second}": 2}}'
    with Run(options(rmq, topics=listed(*two), maxRecordsPerTrigger=limits)) as run:
        _, rows = run.next(run.initial())
    assert by_topic(rows) == {first: 5, second: 2}


def test_topics_may_be_added_to_a_checkpoint_but_not_taken_away(rmq, two):
    first, second = two
    with Run(options(rmq, topic=listed(first))) as run:
        start, _ = run.next(run.initial())
        assert run.plan(start) == start
    more = Run(options(rmq, topics=listed(*two)))
    with more:
        end, rows = more.next(start)
        assert by_topic(rows) == {second.definition.name: 7}
        assert more.plan(end) == end
    fewer = Run(options(rmq, topics=listed(first)))
    with refused(CheckpointRefused, "can add topics", "not remove", "new checkpoint"):
        fewer.plan(end)


def test_a_batch_that_was_begun_with_fewer_topics_stays_as_it_was(rmq, two):
    first, second = two
    with Run(options(rmq, topic=listed(first))) as run:
        start = run.initial()
        end, rows = run.next(start)
        with Run(options(rmq, topics=listed(*two))) as more:
            assert sorted(contents(more.batch(start, end))) == sorted(contents(rows))
            assert by_topic(more.next(end)[1]) == {second.definition.name: 7}


def test_a_pattern_takes_in_new_topics_while_it_runs_and_lets_go_of_deleted_ones(rmq):
    prefix = f"{rmq.name()}."
    for name in ("A", "B"):
        rmq.broker.create(f"{prefix}{name}", "FixedTime", 2)
    rmq.broker.create(f"not.{prefix}A", "FixedTime", 2)
    send_due(rmq.broker.queue(f"{prefix}A"), range(3))
    with Run(options(rmq, topicPattern=prefix.replace(".", "[.]") + "[A-Z]")) as run:
        start, rows = run.next(run.initial())
        assert by_topic(rows) == {f"{prefix}A": 3}
        rmq.broker.create(f"{prefix}C", "Priority", 2)
        rmq.broker.queue(f"{prefix}C").send([b"new"], priority=50)
        rmq.broker.delete(f"{prefix}B")
        end = wait_until(lambda: (e := run.plan(start)) != start and e, "the new topic is read")
        assert contents(run.batch(start, end)) == ["new"]
        report = run.reader.reportLatestOffset()
        assert set(report["topics"]) == {f"{prefix}A", f"{prefix}C"}


def test_a_pattern_fails_rather_than_leave_out_a_topic_that_cannot_be_read(rmq):
    name = rmq.name()
    rmq.broker.create(f"{name}.A", "FixedTime", 2)
    rmq.broker.server.command("HSET", topics_key(), f"{name}.B", "{}")
    try:
        with (
            Run(options(rmq, topicPattern=f"{name}[.].")) as run,
            pytest.raises(ScriptFailed, match=f"The definition of topic {name}.B in rmq_topics"),
        ):
            run.plan(run.initial())
    finally:
        rmq.broker.server.command("HDEL", topics_key(), f"{name}.B")


@pytest.fixture
def idle(rmq):
    """An idle run of a pattern and a group, with so many slots that it asks them after minutes."""
    prefix = f"{rmq.name()}."
    rmq.broker.create(f"{prefix}Slots", "FixedTime", 4096, groups=("", "late"))
    given = options(rmq, topicPattern=prefix.replace(".", "[.]") + "[A-Z][a-z]+", group="late")
    with Run(given) as run:
        start = run.initial()
        assert run.plan(start) == start
        yield prefix, run, start


@pytest.mark.parametrize("change", ["created", "plain", "group"])
def test_an_idle_query_finds_a_topic_soon_whatever_the_slots(rmq, idle, change):
    prefix, run, start = idle
    groups, exclusive = ("",) if change == "group" else ("", "late"), change == "plain"
    rmq.broker.create(f"{prefix}New", "FixedTime", 2, groups=groups, exclusive=exclusive)
    assert run.plan(start) == start
    if change == "plain":
        rmq.broker.alter(f"{prefix}New", exclusive=False)
    if change == "group":
        rmq.broker.add_group(f"{prefix}New", "late")
    send_due(rmq.broker.queue(f"{prefix}New"), range(3))
    end = wait_until(lambda: (e := run.plan(start)) != start and e, "the new topic is read")
    assert by_topic(run.batch(start, end)) == {f"{prefix}New": 3}


def test_a_pattern_may_match_nothing_yet(rmq):
    name = rmq.name()
    with Run(options(rmq, topicPattern=f"{name}.*")) as run:
        start = run.initial()
        assert run.plan(start) == start
        assert run.reader.reportLatestOffset()["due"] == 0
        rmq.broker.create(f"{name}X", "FixedTime", 2)
        send_due(rmq.broker.queue(f"{name}X"), range(3))
        end = wait_until(lambda: (e := run.plan(start)) != start and e, "the new topic is read")
        assert sorted(contents(run.batch(start, end))) == names(3)


def test_a_topic_that_is_named_must_exist(rmq, two):
    run = Run(options(rmq, topics=f"{listed(two[0])},Nobody"))
    with refused(UnknownTopic, "Nobody"):
        run.plan(run.initial())


def test_the_backlog_stands_in_the_report_by_topic_and_in_all(rmq, two):
    since = [queue.figures().store.oldest_ms for queue in two]
    with Run(options(rmq, topics=listed(*two))) as run:
        report = run.reader.reportLatestOffset()
    assert (report["due"], report["oldestDueMs"]) == (12, min(since))
    assert [report["topics"][queue.definition.name]["oldestDueMs"] for queue in two] == since
    assert [report["topics"][queue.definition.name]["due"] for queue in two] == [5, 7]


@knows_available_now
def test_available_now_reads_what_was_due_in_every_topic(spark, rmq, two):
    frame = (
        spark.readStream.format("rmq").options(**options(rmq, topics=listed(*two))).load()
    )  # fmt: skip
    query = rmq.drain(frame)
    assert rmq.contents(spark) == sorted(names(5) + names(7))
    assert {queue.figures().prepare.count for queue in two} == {0}
    topics = query.lastProgress.sources[0].latestOffset
    assert listed(two[0]) in str(topics)


def test_a_paused_topic_waits_while_the_others_go_on(rmq, two):
    rmq.broker.alter(listed(two[0]), paused=True)
    with Run(options(rmq, topics=listed(*two))) as run:
        end, rows = run.next(run.initial())
        assert by_topic(rows) == {listed(two[1]): 7}
        rmq.broker.alter(listed(two[0]), paused=False)
        assert run.plan(end) != end


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "The option topic is missing"),
        ({"topic": "A", "topics": "A,B"}, "The options topic and topics exclude each other"),
        ({"topics": "A,B", "topicPattern": ".*"}, "topics and topicPattern exclude each other"),
        ({"topicPattern": "("}, "topicPattern='(' is not a regular expression"),
        ({"topics": "A,,B"}, "topics='' is not a topic name"),
        ({"topics": "A,B C"}, "topics='B C' is not a topic name"),
        ({"topic": "A,B"}, "topic='A,B' is not a topic name"),
        ({"topic": "A", "group": "a b"}, "group='a b' is not a group name"),
        ({"topic": "A", "maxRecordsPerTrigger": '{"A": 0}'}, "maxRecordsPerTrigger="),
        ({"topic": "A", "maxRecordsPerTrigger": '{"A": "5"}'}, "maxRecordsPerTrigger="),
        ({"topic": "A", "maxRecordsPerTrigger": '{"A": true}'}, "maxRecordsPerTrigger="),
        ({"topic": "A", "maxRecordsPerTrigger": '{"A": 5'}, "maxRecordsPerTrigger="),
        ({"topic": "A", "maxRecordsPerTrigger": "{}"}, "maxRecordsPerTrigger="),
        ({"topic": "A", "targetBatchDuration": "5"}, "targetBatchDuration='5' is not a duration"),
        ({"topic": "A", "targetBatchDuration": "0s"}, "targetBatchDuration='0s' is too short"),
    ],
)
def test_bad_options_are_named(rmq, given, text):
    with refused(InvalidOption, text):
        Run(options(rmq, **given))


def test_a_batch_takes_as_much_as_lasts_as_long_as_it_should(rmq):
    """Of the slow kind less than of the quick one, and of neither more than there is time for."""
    quick, slow = rmq.due(20_000), rmq.due(20_000)
    costs_s = {listed(quick): 0.001, listed(slow): 0.1}
    with Run(options(rmq, topics=listed(quick, slow), targetBatchDuration="2s")) as run:
        start, rows = run.next(run.initial())
        assert all(count <= FIRST_MESSAGES for count in by_topic(rows).values())
        now = [0.0]
        run.reader._run._sizer._clock = lambda: now[0]
        run.reader._run._sizer._begun = 0.0
        sizes = []
        for _ in range(25):
            took_s = 0.2 + sum(costs_s[topic] * n for topic, n in by_topic(rows).items())
            now[0] += took_s
            start, rows = run.next(start)
            sizes.append(by_topic(rows))
        report = run.reader.reportLatestOffset()["topics"]
    late = sizes[-5:]
    assert all(1.0 < sum(costs_s[t] * n for t, n in size.items()) < 3.0 for size in late), late
    assert all(size[listed(quick)] > 10 * size[listed(slow)] for size in late), late
    assert 50 < report[listed(slow)]["messageMs"] < 200


def test_one_topic_alone_may_have_a_target_too(rmq):
    queue = rmq.due(100)
    with rmq.by_hand(queue, targetBatchDuration="5s") as run:
        end, rows = run.next(run.initial())
        assert len(rows) <= FIRST_MESSAGES
        assert run.plan(end) != end
        assert "messageMs" in run.reader.reportLatestOffset()


# -- what an adversary found


def test_available_now_reads_every_topic_to_its_end_however_small_its_batches(rmq):
    queues = [rmq.due(3, slots=1) for _ in range(3)]
    with Run(options(rmq, topics=listed(*queues), maxRecordsPerTrigger=1)) as run:
        run.reader.prepareForTriggerAvailableNow()
        start, taken = run.initial(), Counter()
        for _ in range(30):
            end = run.plan(start)
            if end == start:
                break
            taken += by_topic(run.batch(start, end))
            start = end
    assert taken == {listed(queue): 3 for queue in queues}


def test_available_now_ends_though_senders_go_on_in_several_topics(rmq):
    queues = [rmq.queue("Priority", slots=1) for _ in range(2)]
    for queue in queues:
        queue.send([f"m{n}" for n in range(3)], priority=50)
    with Run(options(rmq, topics=listed(*queues), maxRecordsPerTrigger=1)) as run:
        run.reader.prepareForTriggerAvailableNow()
        start = run.initial()
        for batch in range(40):
            end = run.plan(start)
            if end == start:
                break
            run.batch(start, end)
            for queue in queues:
                queue.send([f"later {batch}"], priority=50)
            start = end
    assert batch <= 12, "it reads what was sent after it began"


@pytest.mark.parametrize("way", ["topic", "topicPattern"])
def test_a_topic_made_anew_with_more_slots_is_read_in_all_of_them(rmq, way):
    queue = rmq.due(5, slots=1)
    name = listed(queue)
    with Run(options(rmq, **{way: name})) as run:
        start, _ = run.next(run.initial())
        rmq.broker.delete(name)
        rmq.broker.create(name, "FixedTime", 8)
        send_due(rmq.broker.queue(name), range(40))
        end = wait_until(lambda: (e := run.plan(start)) != start and e, "a batch")
        assert sorted(contents(run.batch(start, end))) == names(40)


def test_topics_that_were_only_waited_for_bind_no_checkpoint(rmq, two):
    first, second = two
    third = rmq.due(2)
    with Run(options(rmq, topic=listed(first))) as run:
        start, _ = run.next(run.initial())
        assert run.plan(start) == start
    rmq.broker.alter(listed(second), paused=True)
    with Run(options(rmq, topics=listed(first, second))) as idle:
        assert idle.plan(start) == start
    rmq.broker.alter(listed(second), paused=False)
    with Run(options(rmq, topics=listed(first, third))) as run:
        _, rows = run.next(start)
    assert by_topic(rows) == {listed(third): 2}


def test_a_lease_that_cannot_be_renewed_in_one_topic_is_in_the_others(rmq, two, monkeypatch):
    renew, failing = claiming.renew, sorted(listed(queue) for queue in two)[0]

    def renewed(queues, *arguments, **options):
        if queues.definition.name == failing:
            raise ServerUnavailable("its node is dead")
        return renew(queues, *arguments, **options)

    monkeypatch.setattr(claiming, "renew", renewed)

    def free(queue):
        return sum(slot.due for slot in queue.ask(reading.due, queue.slots, "another"))

    lost, kept = sorted(two, key=lambda queue: listed(queue) != failing)
    with Run(options(rmq, topics=listed(*two), visibilityTimeout="3s")) as run:
        run.next(run.initial())
        wait_until(lambda: free(lost), "the end of the leases in the one")
        assert free(kept) == 0


def test_an_exclusive_topic_is_left_out_of_a_pattern(rmq):
    name = rmq.name()
    for kind in ("own", "shared"):
        rmq.broker.create(f"{name}.{kind}", "FixedTime", 1, exclusive=kind == "own")
        send_due(rmq.broker.queue(f"{name}.{kind}"), range(2))
    with Run(options(rmq, topicPattern=f"{name}.*")) as run:
        end, rows = run.next(run.initial())
        assert by_topic(rows) == {f"{name}.shared": 2}
        rmq.broker.alter(f"{name}.shared", exclusive=True)
        assert wait_until(lambda: run.plan(end) == end, "goes on without it")


def test_a_topic_made_after_an_available_now_query_began_is_not_read(rmq):
    name = rmq.name()
    rmq.broker.create(f"{name}.A", "FixedTime", 1)
    send_due(rmq.broker.queue(f"{name}.A"), range(2))
    with Run(options(rmq, topicPattern=f"{name}.*")) as run:
        run.reader.prepareForTriggerAvailableNow()
        rmq.broker.create(f"{name}.B", "FixedTime", 1)
        send_due(rmq.broker.queue(f"{name}.B"), range(2))
        end, rows = run.next(run.initial())
        assert by_topic(rows) == {f"{name}.A": 2}
        assert run.plan(end) == end


def test_limits_of_topics_that_are_not_read_are_refused(rmq):
    with refused(InvalidOption, "names orders, which this query does not read", "Accepted: Orders"):
        Run(options(rmq, topic="Orders", maxRecordsPerTrigger='{"orders": 5}'))
