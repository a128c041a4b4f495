"""Queues read as tables: by spark.read, by SQL, and back through the sink's operations."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql.types import StringType

import rmq_spark
from rmq_spark.errors import InvalidOption, UnknownTopic
from rmq_spark.protocol import sending
from rmq_spark.spark.datasource import RmqDataSource
from rmq_spark.spark.schemas import SOURCE_SCHEMA, TABLE_SCHEMA
from rmq_spark.topics.keys import HIGHEST_SCORE

from ...seeding import FAR_MS
from ..driving import DUE, chained_text, refused
from ..sink.test_bad_rows import write

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CONTENT = "content STRING"


@pytest.fixture(params=["false", "true"])
def pushdown(spark, request):
    """Whether Spark hands filters to sources that take them; ours must not: see RmqTableReader."""
    spark.conf.set(PUSHDOWN, request.param)
    yield
    spark.conf.unset(PUSHDOWN)


def table(spark, rmq, of, **options):
    given = {"redis.url": rmq.url, "topic": of.definition.name, "queue": "all", **options}
    return spark.read.format("rmq").options(**given).load()


def filled(rmq, **settings):
    """A topic with something in each queue: three prepared, one waiting, two dead, ten stored."""
    queue = rmq.queue("FixedTime", 4, **settings)
    bury(queue, ["d0", "d1"])
    queue.send([rmq_spark.Message(f"p{n}", fixed_time=DUE + n) for n in range(3)])
    rmq.broker.consumer(queue.definition.name, "worker").poll(3)
    queue.server.client.zadd(queue.keys.retry(1), {"r0": 5_004})
    queue.send([rmq_spark.Message(f"s{n}", fixed_time=FAR_MS + n) for n in range(10)])
    return queue


def bury(queue, contents):
    for number, content in enumerate(contents):
        queue.server.client.zadd(queue.keys.dead(number % 2), {content: 1_000 + number})


def test_dead_messages_show_the_reason_and_who_had_them_last(spark, rmq):
    queue = rmq.queue("FixedTime", 1, max_retries=0)
    queue.send(["m0", "m1"], fixed_time=DUE)
    with rmq.broker.consumer(queue.definition.name, "clerk") as clerk:
        batch = clerk.poll()
        batch.rollback(list(batch)[:1], reason="closed")
        batch.commit()
    bury(queue, ["of an earlier version"])
    rows = table(spark, rmq, queue, queue="dead").collect()
    assert {row.content: (row.consumer, row.reason) for row in rows} == {
        "m0": ("clerk", "closed"),
        "of an earlier version": (None, None),
    }


def contents(frame):
    return sorted(row.content for row in frame.select("content").collect())


def stored(*numbers):
    return [f"s{n}" for n in numbers]


def test_all_queues_are_shown_and_nothing_is_consumed(spark, rmq):
    queue = filled(rmq)
    before = queue.figures()
    rows = {row.content: row for row in table(spark, rmq, queue).collect()}
    assert len(rows) == 16
    assert {row.topic for row in rows.values()} == {queue.definition.name}
    by_queue = {}
    for row in rows.values():
        by_queue.setdefault(row.queue, set()).add(row.content)
    assert by_queue == {
        "store": set(stored(*range(10))),
        "prepare": {"p0", "p1", "p2"},
        "retry": {"r0"},
        "dead": {"d0", "d1"},
    }
    prepared = rows["p1"]
    assert (prepared.dueTime, prepared.consumer, prepared.retriesLeft) == (
        datetime.fromtimestamp((DUE + 1) / 1000, UTC).replace(tzinfo=None),
        "worker",
        16,
    )
    assert prepared.preparedAt is not None
    assert rows["d1"].diedAt == datetime(1970, 1, 1, 0, 0, 1, 1_000)
    assert rows["r0"].dueTime == datetime(1970, 1, 1, 0, 0, 5)
    assert (rows["d1"].slot, rows["r0"].slot) == (1, 1)
    assert queue.figures() == before


def test_one_queue_or_several_are_read(spark, rmq):
    queue = filled(rmq)
    assert contents(table(spark, rmq, queue, queue="dead")) == ["d0", "d1"]
    assert contents(table(spark, rmq, queue, queue="retry,dead")) == ["d0", "d1", "r0"]


def test_slots_and_times_are_chosen_by_options(spark, rmq):
    queue = filled(rmq)
    assert contents(table(spark, rmq, queue, queue="dead", slots="1-3")) == ["d1"]
    times = {"startingTime": FAR_MS + 2, "endingTime": FAR_MS + 5}
    assert contents(table(spark, rmq, queue, queue="store", **times)) == stored(2, 3, 4)
    assert contents(table(spark, rmq, queue, queue="store", startingTime="2290-01-01T00:00Z")) == []


def test_a_filter_finds_the_same_whether_spark_pushes_it_or_not(spark, rmq, pushdown):
    queue = filled(rmq)
    frame = table(spark, rmq, queue)
    assert contents(frame.where("queue = 'dead' and slot = 1")) == ["d1"]
    assert contents(frame.where(f"dueTime < timestamp_millis({FAR_MS + 3})")) == sorted(
        [*stored(0, 1, 2), "r0", "p0", "p1", "p2"]
    )
    assert contents(frame.where("diedAt = timestamp_millis(1001)")) == ["d1"]
    assert contents(frame.where("diedAt <= timestamp_millis(1001) or slot > 9")) == ["d0", "d1"]
    assert contents(frame.where("consumer is not null")) == ["p0", "p1", "p2"]
    assert contents(frame.where("content like 's%' and retriesLeft = 16")) == stored(*range(10))
    assert contents(frame.where("queue = 'none'")) == []


def test_one_frame_may_be_filtered_in_many_ways(spark, rmq, pushdown):
    frame = table(spark, rmq, filled(rmq))
    dead, first = frame.where("queue = 'dead'"), frame.where("slot = 1 and content = 'r0'")
    assert contents(dead) == ["d0", "d1"]
    assert frame.count() == 16
    assert contents(dead.union(first)) == ["d0", "d1", "r0"]
    assert contents(dead.union(frame).union(dead)) == sorted([*contents(frame), *2 * ["d0", "d1"]])


def test_priorities_are_shown_and_filtered(spark, rmq, pushdown):
    queue = rmq.queue("Priority", 4)
    queue.send([rmq_spark.Message(f"m{n}", priority=100 + n) for n in range(10)])
    frame = table(spark, rmq, queue)
    assert contents(frame.where("priority >= 107")) == ["m7", "m8", "m9"]
    assert contents(frame.where("dueTime is null")) == [f"m{n}" for n in range(10)]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 1), ({"numPartitions": "3"}, 3), ({"numPartitions": "2147483647"}, 8)],
)
def test_slots_are_shared_out_to_tasks(spark, rmq, options, tasks):
    queue = rmq.due(50, slots=8)
    frame = table(spark, rmq, queue, **options)
    assert frame.rdd.getNumPartitions() == tasks
    assert len(contents(frame)) == 50


def test_a_large_queue_is_read_by_several_tasks_in_many_pages(spark, rmq):
    queue = rmq.queue("FixedTime", 2)
    pairs = [value for n in range(60_000) for value in (DUE + n, b"m%d" % n)]
    queue.ask(sending.send, {0: pairs, 1: pairs})
    frame = table(spark, rmq, queue)
    assert frame.rdd.getNumPartitions() == 2
    assert frame.selectExpr("count(*)", "count(distinct slot, content)").first() == (
        120_000,
        120_000,
    )


def test_an_empty_topic_is_an_empty_table(spark, rmq):
    assert table(spark, rmq, rmq.queue()).count() == 0


def test_a_group_has_its_own_queues(spark, rmq):
    name = rmq.queue(groups=["", "audit"]).definition.name
    queue = rmq.broker.queue(name)
    queue.send([rmq_spark.Message("m", fixed_time=DUE)])
    assert queue.cancel({slot: [b"m"] for slot in queue.slots}) == 1
    assert contents(table(spark, rmq, queue, group="audit")) == ["m"]
    assert contents(table(spark, rmq, queue)) == []
    with pytest.raises(Exception, match="group='other' is not a consumer group"):
        table(spark, rmq, queue, group="other").collect()


def test_a_part_of_the_columns_may_be_asked_for_and_contents_as_bytes(spark, rmq):
    queue = rmq.queue()
    queue.send([rmq_spark.Message(b"\xff", fixed_time=DUE), rmq_spark.Message("m", fixed_time=DUE)])
    given = {"redis.url": rmq.url, "topic": queue.definition.name, "queue": "store"}
    frame = spark.read.format("rmq").options(**given).schema("CONTENT BINARY, slot INT").load()
    assert {bytes(row[0]) for row in frame.collect()} == {b"\xff", b"m"}
    assert {row.content for row in table(spark, rmq, queue).collect()} == {None, "m"}


def test_a_schema_with_what_a_table_has_not_is_refused(spark, rmq):
    with pytest.raises(Exception, match="asks for claimId string, which the table does not have"):
        spark.read.format("rmq").options(
            **{"redis.url": rmq.url, "topic": "T", "queue": "dead"}
        ).schema("claimId STRING").load().collect()


def test_a_topic_that_does_not_exist_and_slots_that_it_has_not_are_refused(rmq):
    given = {"redis.url": rmq.url, "queue": "dead"}
    with refused(UnknownTopic, "does not exist"):
        RmqDataSource({**given, "topic": "nobody"}).reader(TABLE_SCHEMA).partitions()
    name = rmq.queue(slots=4).definition.name
    with refused(InvalidOption, "slots names 4", "Accepted: 0 to 3"):
        RmqDataSource({**given, "topic": name, "slots": "0,4-9"}).reader(TABLE_SCHEMA).partitions()


def test_a_batch_read_without_a_queue_says_what_there_is(rmq):
    with refused(InvalidOption, "cannot consume messages", "availableNow", 'option("queue"'):
        RmqDataSource({"redis.url": rmq.url, "topic": "T"}).reader(SOURCE_SCHEMA)


# -- SQL


@pytest.fixture
def dead_table(spark, rmq):
    queue = filled(rmq)
    name = f"dead_{abs(hash(queue.definition.name))}"
    spark.sql(
        f"CREATE TABLE {name} USING rmq OPTIONS "
        f"(topic '{queue.definition.name}', queue 'dead', `redis.url` '{rmq.url}') "
        "COMMENT 'what died' TBLPROPERTIES ('team' = 'billing')"
    )
    yield name
    spark.sql(f"DROP TABLE {name}")


def test_a_table_of_the_catalog_is_read_by_sql(spark, dead_table, pushdown):
    assert contents(spark.sql(f"SELECT content FROM {dead_table} WHERE slot = 1")) == ["d1"]
    assert spark.table(dead_table).count() == 2
    other = f"SELECT * FROM {dead_table} WITH (queue = 'retry')"
    assert contents(spark.sql(other)) == ["r0"]


def test_times_beyond_pythons_calendar_are_shown_as_its_last_day(spark, rmq):
    queue = rmq.queue("FixedTime", 1)
    queue.send(["near"], fixed_time=FAR_MS, time_to_live=1)
    queue.send(["far"], fixed_time=HIGHEST_SCORE, time_to_live=HIGHEST_SCORE // 2)
    shown = spark.read.schema("content STRING, dueTime TIMESTAMP, expiresAt TIMESTAMP")
    given = {"redis.url": rmq.url, "topic": queue.definition.name, "queue": "store"}
    rows = shown.format("rmq").options(**given).load()
    found = {row.content: [time and time.year for time in row[1:]] for row in rows.collect()}
    assert found == {"near": [2286, 2286], "far": [9999, 9999]}


def test_a_view_is_read_by_sql(spark, rmq, pushdown):
    queue = filled(rmq)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW dead USING rmq OPTIONS "
        f"(topic '{queue.definition.name}', queue 'dead', `redis.url` '{rmq.url}')"
    )
    assert contents(spark.sql("SELECT content FROM dead WHERE slot = 0")) == ["d0"]


def test_a_table_with_a_list_of_columns_says_how_it_must_be_made(spark):
    spark.sql("CREATE TABLE listed (content STRING) USING rmq OPTIONS (topic 'T', queue 'dead')")
    try:
        with pytest.raises(Exception, match="without a list of columns"):
            spark.table("listed").collect()
    finally:
        spark.sql("DROP TABLE listed")


def test_a_write_of_sql_names_the_topic_in_its_own_statement(spark, rmq):
    """Spark passes the options of CREATE TABLE to no writer; those of a view it does."""
    queue, row = rmq.queue(), "SELECT 'm' AS content"
    given = {"topic": queue.definition.name, "redis.url": rmq.url, "fixedTime": str(DUE)}
    options = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
    spark.sql(f"CREATE TABLE sent (content STRING) USING rmq OPTIONS ({options})")
    try:
        for refused in (
            f"INSERT INTO sent {row}",
            f"CREATE TABLE selected USING rmq OPTIONS ({options}) AS {row}",
        ):
            with pytest.raises(Exception, match=r"INSERT INTO t WITH \(topic = 'T'\) SELECT"):
                spark.sql(refused)
        own = options.replace("` '", "` = '")
        spark.sql(f"INSERT INTO sent WITH ({own}) {row}")
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW v (content STRING) USING rmq OPTIONS ({options})"
        )
        spark.sql("INSERT INTO v SELECT 'n' AS content")
    finally:
        spark.sql("DROP TABLE sent")
    assert queue.figures().store.count == 2


@pytest.mark.parametrize(
    "secret",
    [
        "`redis.url` 'redis://me:Xy7-word@127.0.0.1:1'",
        "`redis.url` 'redis://127.0.0.1:1/0?password=Xy7-word'",
        "`redis.u_rl` 'redis://:Xy7-word@127.0.0.1:1'",
        "`redis.Password` 'Xy7-word'",
        "`redis.pass_word_` 'Xy7-word'",
    ],
)
def test_a_password_is_not_put_into_the_catalog(spark, secret):
    with pytest.raises(Exception, match="RMQ_REDIS_URL") as caught:
        spark.sql(f"CREATE TABLE kept USING rmq OPTIONS (topic 'T', queue 'dead', {secret})")
    assert "Xy7-word" not in chained_text(caught.value)
    assert not spark.catalog.tableExists("kept")


# -- what is read goes back through the sink


def test_dead_messages_are_filtered_and_brought_back(spark, rmq):
    queue = filled(rmq)
    dead = table(spark, rmq, queue, queue="dead").where("diedAt < timestamp_millis(1001)")
    rmq.write(dead.select("topic", "slot", "content"), None, operation="requeue")
    assert contents(table(spark, rmq, queue, queue="dead")) == ["d1"]
    assert "d0" in contents(table(spark, rmq, queue, queue="store"))


def test_dead_messages_are_mended_sent_anew_and_purged(spark, rmq):
    queue = rmq.queue()
    bury(queue, [json.dumps({"order": n}) for n in range(4)])
    dead = table(spark, rmq, queue, queue="dead").localCheckpoint()
    mended = dead.selectExpr("replace(content, 'order', 'orderId') AS content")
    rmq.write(mended, queue.definition.name, fixedTime="99")
    rmq.write(dead.select("topic", "slot", "content"), None, operation="purge")
    assert contents(table(spark, rmq, queue)) == [json.dumps({"orderId": n}) for n in range(4)]


def test_a_purge_counts_what_it_did_not_find(rmq):
    queue = rmq.queue(slots=1)
    bury(queue, ["d0"])
    columns = {"content": (StringType(), ["d0", "unknown"])}
    done = write(rmq, queue.definition.name, columns, operation="purge")
    assert done.counts == {"purged": 1, "not found": 1}


@pytest.mark.parametrize("by", ["option", "column"])
def test_of_several_groups_a_purge_must_name_one(spark, rmq, by):
    """Failed before with a column: the first group's message was deleted in place of audit's."""
    queue = rmq.queue(groups=["", "audit"])
    audit = queue.of_group("audit")
    for of in (queue, audit):
        bury(of, ["d0"])
    dead = table(spark, rmq, queue, queue="dead", group="audit").select("topic", "slot", "content")
    topic = queue.definition.name if by == "option" else None
    with pytest.raises(Exception, match="Name the one whose dead messages"):
        rmq.write(dead, topic, operation="purge")
    assert (queue.figures().dead.count, audit.figures().dead.count) == (1, 1)
    rmq.write(dead, topic, operation="purge", group="audit")
    assert (queue.figures().dead.count, audit.figures().dead.count) == (1, 0)


def test_stored_messages_are_chosen_and_recalled(spark, rmq):
    queue = filled(rmq)
    chosen = table(spark, rmq, queue, queue="store").where("content in ('s1', 's2')")
    rmq.write(chosen.select("topic", "slot", "content"), None, operation="cancel")
    assert len(contents(table(spark, rmq, queue, queue="store"))) == 8
