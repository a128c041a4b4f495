"""What a batch holds and in which order: the reader's calls made by hand."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from rmq_spark import Message
from rmq_spark.protocol.claims import Claim
from rmq_spark.redis.server import Server
from rmq_spark.spark.compatibility import arrow_schema
from rmq_spark.spark.schemas import SOURCE_SCHEMA
from rmq_spark.spark.source import run as run_module
from rmq_spark.spark.source import task
from rmq_spark.spark.source import topic as topic_module
from rmq_spark.topics.definition import TopicDefinition, TopicType

from ...seeding import rollback
from ...waiting import wait_until
from ..driving import DUE, Run, contents, names, send_due


def test_times_come_ascending_within_a_slot(rmq):
    queue = rmq.queue("FixedTime", 1)
    send_due(queue, iter([5, 1, 9, 3]))
    with rmq.by_hand(queue) as run:
        _, rows = run.next(run.initial())
    assert contents(rows) == ["m1", "m3", "m5", "m9"]


def test_priorities_come_descending_within_a_slot(rmq):
    queue = rmq.queue("Priority", 1)
    queue.send([Message(f"p{n}", priority=n) for n in (17, 400, 23, 2**53)])
    with rmq.by_hand(queue) as run:
        _, rows = run.next(run.initial())
    assert contents(rows) == [f"p{2**53}", "p400", "p23", "p17"]


@pytest.mark.parametrize(
    ("topic_type", "value"), [("FixedTime", "fixed_time"), ("Priority", "priority")]
)
def test_the_order_is_the_same_on_a_second_read_and_on_a_replay(rmq, topic_type, value):
    queue = rmq.queue(topic_type, 1)
    queue.send([Message(f"m{n}", **{value: DUE + n * 7919 % 5000}) for n in range(4500)])
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, first = run.next(start)
        assert run.batch(start, end) == first
        with run.again() as later:
            replayed = later.batch(start, end)
    scores = [int(content[1:]) * 7919 % 5000 for content in contents(first)]
    assert scores == sorted(scores, reverse=topic_type == "Priority")
    assert contents(replayed) == contents(first)
    assert {row["retriesLeft"] for row in first} == {16}
    assert {row["retriesLeft"] for row in replayed} == {15}


def test_a_first_delivery_shows_its_time_its_counts_and_its_claim(rmq):
    queue = rmq.queue("FixedTime", 1)
    queue.send(["hello"], fixed_time=1_600_000_000_123)
    before = queue.now_ms()
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, (row,) = run.next(start)
        assert run.batch(start, end) == [row]
    claimed_at, claim_id = row.pop("claimedAt"), row.pop("claimId")
    assert before <= round(claimed_at.timestamp() * 1000) <= queue.now_ms()
    assert claim_id.startswith(f"{end['consumer']}:1:0:")
    assert row == {
        "content": "hello",
        "key": None,
        "topic": queue.definition.name,
        "slot": 0,
        "dueTime": datetime(2020, 9, 13, 12, 26, 40, 123_000, tzinfo=UTC),
        "priority": None,
        "deliveryCount": 1,
        "retriesLeft": 16,
    }


def test_a_priority_topic_shows_the_priority_and_no_time(rmq):
    queue = rmq.queue("Priority", 1)
    queue.send(["urgent"], priority=99)
    with rmq.by_hand(queue) as run:
        _, (row,) = run.next(run.initial())
    assert (row["priority"], row["dueTime"]) == (99, None)


@pytest.mark.parametrize(
    ("topic_type", "value"), [("FixedTime", "fixed_time"), ("Priority", "priority")]
)
def test_a_retry_has_no_time_and_no_priority_and_the_delivery_count_2(rmq, topic_type, value):
    queue = rmq.queue(topic_type, 1)
    queue.send(["again"], **{value: DUE})
    with rmq.by_hand(queue) as run:
        end, (first,) = run.next(run.initial())
        assert rollback(queue, 0, first["claimId"], [b"again"]) == (1, 0)
        assert run.batch(run.initial() | {"consumer": end["consumer"]}, end) == []
        _, (second,) = run.next(end)
    assert (second["dueTime"], second["priority"]) == (None, None)
    assert (second["deliveryCount"], second["retriesLeft"]) == (2, 15)
    assert second["claimId"] != first["claimId"]


def test_a_replay_keeps_the_time_of_the_first_delivery_and_counts_one_more(rmq):
    queue = rmq.due(1, slots=1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, (first,) = run.next(start)
        with run.again() as later:
            (replayed,) = later.batch(start, end)
    assert replayed["dueTime"] == first["dueTime"] is not None
    assert (replayed["deliveryCount"], replayed["retriesLeft"]) == (2, 15)


def test_an_all_replayed_message_is_never_buried_by_replays_alone(rmq):
    queue = rmq.due(1, slots=1)
    run = rmq.by_hand(queue)
    start = run.initial()
    end, _ = run.next(start)
    left = []
    for _ in range(20):
        run = run.again()
        left += [row["retriesLeft"] for row in run.batch(start, end)]
    run.stop()
    assert left == [*range(15, 0, -1), *[0] * 5]
    assert queue.figures().dead.count == 0


def test_a_topic_with_fewer_retries_counts_its_deliveries_from_one(rmq):
    queue = rmq.due(1, slots=1, max_retries=2)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end, (row,) = run.next(start)
        # A claim keeps the number that the topic had. Seen: a replay counted by that of now.
        rmq.broker.alter(queue.definition.name, max_retries=5)
        with run.again() as later:
            (replayed,) = later.batch(start, end)
    assert (row["deliveryCount"], row["retriesLeft"]) == (1, 2)
    assert (replayed["deliveryCount"], replayed["retriesLeft"]) == (2, 1)


def test_equal_contents_merge_and_the_first_due_time_stays_in_a_range_merge_topic(rmq):
    queue = rmq.queue("RangeMerge", 1)
    assert queue.send(["plane"], time_range=1).new == 1
    assert queue.send(["plane"], time_range=3_600_000).merged == 1
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = start
        while end == start:  # due after a millisecond of Redis' clock
            end = run.plan(start)
        assert contents(run.batch(start, end)) == ["plane"]


def test_a_user_schema_picks_columns_and_bytes_in_its_own_order(rmq):
    queue = rmq.queue("FixedTime", 1)
    queue.send([b"\xff\x00"], fixed_time=DUE)
    schema = StructType(
        [StructField("retriesLeft", IntegerType()), StructField("CONTENT", BinaryType())]
    )
    with rmq.by_hand(queue, schema) as run:
        _, rows = run.next(run.initial())
    assert rows == [{"retriesLeft": 16, "CONTENT": b"\xff\x00"}]


def test_a_batch_holds_no_more_than_max_records_and_the_next_goes_on(rmq):
    queue = rmq.due(10)
    with rmq.by_hand(queue, maxRecordsPerTrigger=4) as run:
        end, first = run.next(run.initial())
        end, second = run.next(end)
        end, third = run.next(end)
        assert run.plan(end) == end
    assert [len(first), len(second), len(third)] == [4, 4, 2]
    assert sorted(contents(first + second + third)) == sorted(f"m{n}" for n in range(10))
    assert queue.figures().prepare.count == 0


def test_no_limit_takes_everything_in_one_batch_up_to_16_claims_a_slot(rmq):
    queue = rmq.due(16 * 3072 + 100, slots=1)
    with rmq.by_hand(queue, maxRecordsPerTrigger=0) as run:
        end, first = run.next(run.initial())
        _, second = run.next(end)
    assert (len(first), len(second)) == (16 * 3072, 100)
    assert len(set(contents(first + second))) == 16 * 3072 + 100


def test_the_engines_own_limit_goes_before_the_option(rmq):
    queue = rmq.due(10)
    with rmq.by_hand(queue, maxRecordsPerTrigger=3) as run:
        start = run.initial()
        end = run.plan(start, all_available=True)
        assert len(run.batch(start, end)) == 10


def test_with_a_limit_of_one_messages_of_all_slots_come_in_their_order(rmq, monkeypatch):
    monkeypatch.setattr(topic_module.secrets, "randbelow", lambda most: 0)  # the first turn
    queue = rmq.due(40, slots=4)
    with rmq.by_hand(queue, maxRecordsPerTrigger=1) as run:
        end, taken = run.initial(), []
        for _ in range(40):
            end, rows = run.next(end)
            taken += contents(rows)
    assert taken[:7] == [f"m{n}" for n in range(7)]  # the eighth goes round the slots
    assert sorted(taken) == names(40)


def test_the_slots_are_shared_among_as_many_partitions_as_asked_for(rmq):
    queue = rmq.due(400, slots=16)
    with rmq.by_hand(queue, numPartitions=3) as run:
        start = run.initial()
        partitions = run.partitions(start, run.plan(start))
        by_task = [{row["slot"] for row in run.read([partition])} for partition in partitions]
    assert len(partitions) == 3
    assert sum(map(len, by_task)) == len(set.union(*by_task)) == 16


def planned(run, start):
    """The next batch, as soon as there is one."""
    return wait_until(lambda: (end := run.plan(start)) != start and end, "a batch")


@pytest.mark.parametrize(("messages", "tasks"), [(50, 1), (200, 2), (1600, 8)])
def test_by_default_a_batch_has_as_many_partitions_as_it_is_worth(
    rmq, monkeypatch, messages, tasks
):
    monkeypatch.setattr(run_module, "MESSAGES_A_TASK", 100)
    queue = rmq.due(messages, slots=16)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        assert len(run.partitions(start, run.plan(start))) == tasks


def test_while_nothing_is_due_only_the_stores_are_looked_at(rmq, monkeypatch):
    queue = rmq.queue("FixedTime", 16)
    asked = []
    pipeline = Server.pipeline

    def counted(self, calls, **how):
        asked.extend(getattr(call, "script", None) for call in calls)
        return pipeline(self, calls, **how)

    monkeypatch.setattr(Server, "pipeline", counted)
    with rmq.by_hand(queue, pollInterval="1ms") as run:
        start = run.initial()
        assert run.plan(start) == start
        assert asked.count("due") == 16
        asked.clear()
        while asked.count("any_due") < 3:
            assert run.plan(start) == start
        assert set(asked) <= {"any_due", "due", "renew"}  # a slow machine renews meanwhile
        assert asked.count("due") in (0, 16)  # a second may have passed
        send_due(queue, [7])
        assert contents(run.batch(start, planned(run, start))) == ["m7"]


def test_a_retry_whose_wait_ends_is_found_while_waiting(rmq):
    queue = rmq.due(1, slots=4)
    with rmq.by_hand(queue, pollInterval="1ms") as run:
        end, (row,) = run.next(run.initial())
        rollback(queue, row["slot"], row["claimId"], [b"m0"], delay_ms=300)
        assert run.plan(end) == end
        assert contents(run.batch(end, planned(run, end))) == ["m0"]


def test_contents_of_0_bytes_and_of_1_mib_come_as_they_were_sent(rmq):
    queue = rmq.queue("FixedTime", 2)
    large = "x" * 2**20
    queue.send(["", large], fixed_time=DUE)
    with rmq.by_hand(queue) as run:
        _, rows = run.next(run.initial())
    assert sorted(contents(rows)) == ["", large]


def test_more_bytes_than_one_arrow_batch_holds_come_in_several(rmq, monkeypatch):
    queue = rmq.queue("FixedTime", 1)
    queue.send([f"{n:02}" + "x" * 2**16 for n in range(40)], fixed_time=DUE)
    monkeypatch.setattr(task, "BYTES_A_READ", 2**20)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        (partition,) = run.partitions(start, run.plan(start))
        sizes = [batch.num_rows for batch in run.reader.read(partition)]
    assert sum(sizes) == 40
    assert len(sizes) > 1


def test_a_claim_of_more_bytes_than_arrow_addresses_comes_in_parts():
    """One content stands 2048 times for 2.2 GiB; the parts are looked at one by one."""
    topic = TopicDefinition("T", TopicType.FIXED_TIME, 1)
    rows = 2048
    claim = Claim("T", 0, "c", 1, 0, 1, [b"x" * 1_100_000] * rows, [b"1000"] * rows, 1, 16)
    schema = arrow_schema(SOURCE_SCHEMA)
    batches = task._batches(topic, schema, [claim], rows * 1_100_000)
    sizes = [(batch.num_rows, batch.nbytes) for batch in batches]
    assert sum(count for count, _ in sizes) == rows
    assert max(size for _, size in sizes) < 2 * task.BYTES_A_READ


def test_a_claim_of_large_messages_is_read_in_parts_of_a_bounded_size(rmq, monkeypatch):
    queue = rmq.queue("FixedTime", 1)
    sent = [f"{n:03}" + "x" * 2**16 for n in range(100)]
    queue.send(sent, fixed_time=DUE)
    monkeypatch.setattr(task, "FIRST_MESSAGES", 8)
    monkeypatch.setattr(task, "BYTES_A_READ", 2**21)
    read_at_once, _read_on = [], task._Reading._read_on

    def read_on(*args):
        claims = _read_on(*args)
        read_at_once.append(sum(len(content) for content in claims[0].contents))
        return claims

    monkeypatch.setattr(task._Reading, "_read_on", read_on)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        (partition,) = run.partitions(start, run.plan(start))
        got = [
            text.as_py() for batch in run.reader.read(partition) for text in batch.column("content")
        ]
    assert got == sent
    assert len(read_at_once) == 3
    assert max(read_at_once) <= task.BYTES_A_READ


def test_a_paused_topic_gives_nothing_until_it_goes_on(rmq):
    queue = rmq.due(3)
    rmq.broker.alter(queue.definition.name, paused=True)
    with rmq.by_hand(queue, pollInterval="1ms") as run:
        start = run.initial()
        assert run.plan(start) == start
        rmq.broker.alter(queue.definition.name, paused=False)
        end = start
        while end == start:
            end = run.plan(start)
        assert len(run.batch(start, end)) == 3


def test_a_topic_under_a_key_prefix_is_another_one(rmq):
    other = rmq.due(2)
    name = other.definition.name
    with pytest.raises(Exception, match=r"does not exist on .* under the prefix shop:"):
        rmq.by_hand(other, keyPrefix="shop:").plan(
            {"consumer": "c", "seq": 0, "topic": name, "version": 1}
        )


def test_what_falls_due_later_is_not_read_now(rmq):
    queue = rmq.due(1)
    queue.send(["later"], fixed_time=queue.now_ms() + 3_600_000)
    with rmq.by_hand(queue) as run:
        end, rows = run.next(run.initial())
        assert contents(rows) == ["m0"]
        assert run.plan(end) == end


def test_offsets_always_have_their_keys_in_the_same_order(rmq):
    queue = rmq.due(1)
    with rmq.by_hand(queue) as run:
        start = run.initial()
        end = run.plan(start)
    assert (
        list(json.loads(json.dumps(end))) == ["consumer", "seq", "topic", "version"] == list(start)
    )


def test_while_nothing_is_due_redis_is_asked_once_a_poll_interval(alone):
    queue = alone.queue("FixedTime", 4)

    def scripts_called() -> int:
        stats = queue.server.client.info("commandstats")
        return stats.get("cmdstat_evalsha", {}).get("calls", 0)

    with alone.by_hand(queue, pollInterval="1h") as run:
        start = run.initial()
        run.plan(start)
        before = scripts_called()
        for _ in range(50):
            assert run.plan(start) == start
        assert scripts_called() == before


def test_under_a_short_poll_interval_new_messages_are_found(rmq):
    queue = rmq.queue("FixedTime", 4)
    with rmq.by_hand(queue, pollInterval="1ms") as run:
        start = run.initial()
        assert run.plan(start) == start
        send_due(queue, range(3))
        end = start
        while end == start:
            end = run.plan(start)
        assert len(run.batch(start, end)) == 3


def test_the_backlog_is_reported_queue_by_queue(rmq):
    queue = rmq.queue("FixedTime", 1, max_retries=0)
    before = queue.now_ms()
    send_due(queue, range(5))
    after = queue.now_ms()
    queue.send(["later"], fixed_time=queue.now_ms() + 3_600_000)
    with rmq.by_hand(queue, maxRecordsPerTrigger=2, pollInterval="1ms") as run:
        _, rows = run.next(run.initial())
        rollback(queue, 0, rows[0]["claimId"], [b"m0"])
        report = run.reader.reportLatestOffset()
    counters = report.pop("counters")
    assert (counters["accepted"], counters["rolledBack"], counters["dead"]) == (6, 1, 1)
    assert report.pop("topic") == queue.definition.name
    assert before <= report.pop("oldestDueMs") <= after <= report.pop("asOfMs")
    assert report == {"due": 3, "delayed": 1, "prepared": 1, "retry": 0, "dead": 1}


def test_a_message_that_waits_for_its_retry_is_reported_so(rmq):
    queue = rmq.due(1, slots=1)
    with rmq.by_hand(queue, pollInterval="1ms") as run:
        _, (row,) = run.next(run.initial())
        rollback(queue, 0, row["claimId"], [b"m0"], delay_ms=3_600_000)
        report = run.reader.reportLatestOffset()
    assert (report["retry"], report["due"], report["prepared"]) == (1, 0, 0)
    assert report["oldestDueMs"] is None


def test_constructing_a_reader_asks_nothing_of_redis():
    run = Run({"redis.url": "redis://127.0.0.1:1/0", "topic": "T"})
    assert run.initial()["seq"] == 0
    run.stop()
