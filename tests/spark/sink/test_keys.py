"""Keyed topics, headers and expiry: what the sink accepts, and what the source hands out."""

from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException

import rmq_spark
from rmq_spark.errors import InvalidOption

from ..driving import DUE, refused

HEADERS = "array(named_struct('key', 'trace', 'value', CAST('t1' AS BINARY)))"
NAMELESS = "array(named_struct('key', CAST(NULL AS STRING), 'value', X'00'))"
KEYED = {"topicType": "FixedTime", "slotAmount": "4", "keyed": "true", "fixedTime": str(DUE)}


def keyed_rows(spark, count=10, keys=5):
    """Payloads p0, p1, ... in this order, for keys that come again."""
    columns = (f"concat('k', id % {keys}) AS key", "concat('p', id) AS content")
    return spark.range(0, count, 1, 1).selectExpr(*columns)


def stored(spark, rmq, topic, columns, queue="store"):
    """A queue as a table, by key or content."""
    given = {"redis.url": rmq.url, "topic": topic, "queue": queue}
    rows = spark.read.format("rmq").options(**given).schema(columns).load().collect()
    return {row[0]: tuple(row)[1:] if len(row) > 2 else row[1] for row in rows}


def last_payloads(count=10, keys=5):
    return {f"k{n % keys}": f"p{n}" for n in range(count)}


def test_the_last_payload_of_a_key_is_handed_out(spark, rmq):
    topic = rmq.name()
    rmq.write(keyed_rows(spark), topic, **KEYED)
    assert stored(spark, rmq, topic, "key STRING, content STRING") == last_payloads()
    queue = rmq.broker.queue(topic)
    rmq.drain(rmq.read(spark, queue))
    found = {row.key: row.content for row in rmq.parquet(spark).collect()}
    assert found == last_payloads()
    assert queue.figures().messages == 0


def test_the_first_payload_stays_where_the_topic_says_so(spark, rmq):
    topic = rmq.name()
    rmq.write(keyed_rows(spark), topic, **KEYED, payload="first")
    assert stored(spark, rmq, topic, "key STRING, content STRING") == last_payloads(5)


def test_the_slot_follows_from_the_key(spark, rmq):
    topic = rmq.name()
    rmq.write(keyed_rows(spark), topic, **KEYED)
    definition = rmq.broker.definition(topic)
    found = stored(spark, rmq, topic, "key STRING, slot INT")
    assert found == {key: definition.slot_of(key) for key in last_payloads()}


@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
def test_a_stream_sends_keys_payloads_headers_and_expiry(spark, rmq, guarantee):
    source, topic = str(rmq.folder / "source"), rmq.name()
    rows = keyed_rows(spark).selectExpr("*", f"{HEADERS} AS headers")
    rows.write.parquet(source)
    query = (
        spark.readStream.schema(rows.schema)
        .parquet(source)
        .writeStream.format("rmq")
        .options(**{"redis.url": rmq.url, "topic": topic, **KEYED})
        .options(deliveryGuarantee=guarantee, expiresAt="2100-01-01T00:00:00Z")
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    columns = "key STRING, content STRING, headers ARRAY<STRUCT<key STRING, value BINARY>>"
    found = stored(spark, rmq, topic, f"{columns}, expiresAt TIMESTAMP")
    assert found == {
        key: (payload, [("trace", b"t1")], datetime(2100, 1, 1, tzinfo=UTC).replace(tzinfo=None))
        for key, payload in last_payloads().items()
    }


def test_headers_come_where_they_are_asked_for(spark, rmq):
    topic = rmq.name()
    rows = spark.range(2).selectExpr("CAST(id AS STRING) AS content", f"{HEADERS} AS headers")
    rmq.write(rows, topic, topicType="FixedTime", fixedTime=str(DUE))
    frame = rmq.read(spark, rmq.broker.queue(topic), includeHeaders="true")
    assert "headers" in frame.columns
    rmq.drain(frame)
    assert [row.headers for row in rmq.parquet(spark).collect()] == [[("trace", b"t1")]] * 2


def test_a_payload_may_be_null_and_headers_empty(spark, rmq):
    topic = rmq.name()
    rows = spark.sql(
        "SELECT 'a' AS key, CAST(NULL AS STRING) AS content, array() AS headers UNION ALL "
        "SELECT 'b', '', NULL"
    ).selectExpr(
        "key", "content", "CAST(headers AS ARRAY<STRUCT<key STRING, value BINARY>>) AS headers"
    )
    rmq.write(rows, topic, **KEYED)
    columns = "key STRING, content STRING, headers ARRAY<STRUCT<key STRING, value BINARY>>"
    assert stored(spark, rmq, topic, columns) == {"a": (None, None), "b": ("", None)}


@pytest.mark.parametrize("lives", [{"time_to_live": "1h"}, {}])
def test_payloads_that_are_packed_alike_are_handed_out_whole(spark, rmq, lives):
    """A reader of many cuts the packed bodies at one place."""
    queue = rmq.queue(keyed=True)
    queue.send(rmq_spark.Message(f"p{n}", key=f"k{n}", fixed_time=0, **lives) for n in range(20))
    rmq.drain(rmq.read(spark, queue))
    found = {row.key: row.content for row in rmq.parquet(spark).collect()}
    assert found == {f"k{n}": f"p{n}" for n in range(20)}


def test_what_has_expired_does_not_come_and_an_available_now_query_ends(spark, rmq):
    queue = rmq.queue(keyed=True)
    messages = [
        rmq_spark.Message(b"p", key=f"k{n}", fixed_time=DUE, expires_at=None if n % 2 else DUE + 1)
        for n in range(200)
    ]
    queue.send(messages)
    rmq.drain(rmq.read(spark, queue, maxRecordsPerTrigger=16))
    keys = {row.key for row in rmq.parquet(spark).collect()}
    assert keys == {f"k{n}" for n in range(1, 200, 2)}
    counters = queue.figures().counters
    assert (counters["expired"], counters["committed"], queue.figures().messages) == (100, 100, 0)


def test_operations_name_messages_by_key(spark, rmq):
    topic = rmq.name()
    rmq.write(keyed_rows(spark), topic, **KEYED)
    rmq.write(spark.sql("SELECT 'k0' AS key, 'whatever' AS content"), topic, operation="cancel")
    assert sorted(stored(spark, rmq, topic, "key STRING, slot INT")) == ["k1", "k2", "k3", "k4"]
    queue = rmq.broker.queue(topic)

    def roll_back(frame, batch):
        given = {"redis.url": rmq.url, "operation": "rollback"}
        frame.write.format("rmq").options(**given).mode("append").save()

    rows = rmq.read(spark, queue).select("topic", "key", "content", "slot", "claimId")
    query = (
        rows.writeStream.foreachBatch(roll_back)
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert queue.figures().counters["rolledBack"] >= 4


def test_each_message_rolls_back_by_key(spark, rmq):
    queue = rmq.queue(keyed=True, max_retries=0)
    queue.send([rmq_spark.Message(f"p{n}", key=f"k{n}") for n in range(6)], fixed_time=DUE)

    def fail_even(message):
        if int(message.content[1:]) % 2 == 0:
            raise ValueError(message.key)

    listener = rmq_spark.each_message(fail_even, options={"redis.url": rmq.url})
    query = (
        rmq.read(spark, queue)
        .writeStream.foreachBatch(listener)
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    columns = "key STRING, content STRING, reason STRING"
    found = stored(spark, rmq, queue.definition.name, columns, "dead")
    assert {key: content for key, (content, _) in found.items()} == {
        "k0": "p0",
        "k2": "p2",
        "k4": "p4",
    }
    assert all(reason.startswith(f"ValueError: {key}") for key, (_, reason) in found.items())


def test_each_message_needs_the_key_of_a_keyed_topic(spark, rmq):
    queue = rmq.queue(keyed=True)
    queue.send([rmq_spark.Message("p", key="k")], fixed_time=DUE)
    rows = rmq.read(spark, queue).select("topic", "content", "slot", "claimId")
    query = (
        rows.writeStream.foreachBatch(rmq_spark.each_message(print, options={"redis.url": rmq.url}))
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="needs the column key too, because topic"):
        query.awaitTermination(60)


# -- what is refused


def columns_of(spark, **columns):
    return spark.range(1).selectExpr(*(f"{text} AS {name}" for name, text in columns.items()))


@pytest.mark.parametrize(
    ("columns", "texts"),
    [
        ({"key": "CAST(NULL AS STRING)"}, ["key is None", "not null", "is keyed"]),
        ({"key": "''"}, ["key is ''", "1 to 1024 bytes"]),
        ({"key": "repeat('x', 1025)"}, ["key is 'xxxx", "1 to 1024 bytes"]),
        (
            {"key": "'k'", "headers": NAMELESS},
            ["headers is", "each have a key"],
        ),
        (
            {"key": "'k'", "expiresAt": "BIGINT(5)"},
            ["expiresAt is 5", "not before the message is"],
        ),
        ({"key": "'k'", "expiresAt": "BIGINT(-5)"}, ["expiresAt is -5", "1 to"]),
        ({"key": "'k'", "timeToLive": "BIGINT(0)"}, ["timeToLive is 0", "1 to"]),
        (
            {"key": "'k'", "timeToLive": "BIGINT(9)", "expiresAt": f"BIGINT({DUE * 2})"},
            ["expiresAt is 2000000", "null, as the row has a timeToLive"],
        ),
    ],
)
def test_a_row_that_is_not_accepted_is_named(spark, rmq, columns, texts):
    topic = rmq.name()
    rmq.broker.create(topic, "FixedTime", 4, keyed=True)
    with refused(PySparkException, "Row 0 of its batch", *texts):
        rmq.write(columns_of(spark, **columns), topic, fixedTime=str(DUE))
    assert rmq.broker.queue(topic).figures().messages == 0


def test_a_key_in_a_topic_without_keys_is_refused(spark, rmq):
    queue = rmq.queue()
    rows = columns_of(spark, key="'k'", content="'c'")
    with refused(PySparkException, "key is 'k'", "null; the topic", "is not keyed"):
        rmq.write(rows, queue.definition.name, fixedTime=str(DUE))
    rmq.write(
        columns_of(spark, key="CAST(NULL AS STRING)", content="'c'"),
        queue.definition.name,
        fixedTime=str(DUE),
    )
    assert queue.figures().messages == 1


def test_a_write_without_the_column_that_names_its_messages_makes_no_topic(spark, rmq):
    topic = rmq.name()
    with refused(PySparkException, "The column key is missing", f"Topic {topic} is keyed"):
        rmq.write(columns_of(spark, content="'c'"), topic, **KEYED)
    assert rmq.broker.find(topic) is None


def test_headers_of_another_type_are_refused(spark, rmq):
    rows = columns_of(spark, key="'k'", headers="map('a', 'b')")
    with refused(PySparkException, "The column headers is MAP", "ARRAY<STRUCT<key STRING, value"):
        rmq.write(rows, rmq.name(), **KEYED)


def test_a_topic_that_is_keyed_differently_is_a_mismatch(spark, rmq):
    queue = rmq.queue()
    with refused(PySparkException, "keyed false, but you asked for keyed true"):
        rmq.write(columns_of(spark, key="'k'"), queue.definition.name, **KEYED)


def test_payload_is_for_keyed_topics(rmq):
    with pytest.raises(InvalidOption, match="payload='first' is for keyed topics"):
        rmq.broker.create(rmq.name(), "FixedTime", payload="first")


# -- rows without a body


NO_HEADERS = "CAST(NULL AS ARRAY<STRUCT<key STRING, value BINARY>>)"
NO_BODY = (f"{NO_HEADERS} AS headers", "CAST(NULL AS TIMESTAMP) AS expiresAt")


def bodies_in(rmq, topic):
    """What Redis keeps beside the messages that wait, by content."""
    queue = rmq.broker.queue(topic)
    hashes = [queue.server.client.hgetall(queue.keys.bodies(slot)) for slot in queue.slots]
    return {content.decode(): body for of_slot in hashes for content, body in of_slot.items()}


def stream_files(spark, rmq, topic, frames, guarantee):
    """Sends frames as one streaming batch of one task, in this order."""
    source = str(rmq.folder / "source")
    for frame in frames:
        frame.coalesce(1).write.mode("append").parquet(source)
    query = (
        spark.readStream.schema(frames[0].schema)
        .parquet(source)
        .coalesce(1)
        .writeStream.format("rmq")
        .options(**{"redis.url": rmq.url, "topic": topic, "topicType": "FixedTime"})
        .options(slotAmount="4", fixedTime=str(DUE), deliveryGuarantee=guarantee)
        .option("checkpointLocation", str(rmq.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
def test_rows_whose_headers_and_expiry_are_null_have_no_body(spark, rmq, guarantee):
    topic = rmq.name()
    names = "CAST(id AS STRING) AS content"
    rmq.write(
        spark.range(3).selectExpr(names, f"{HEADERS} AS headers"),
        topic,
        **{"topicType": "FixedTime", "slotAmount": "4", "fixedTime": str(DUE)},
    )
    assert set(bodies_in(rmq, topic)) == {"0", "1", "2"}
    stream_files(spark, rmq, topic, [spark.range(1, 50).selectExpr(names, *NO_BODY)], guarantee)
    assert set(bodies_in(rmq, topic)) == {"0"}
    assert rmq.broker.queue(topic).figures().store.count == 50


@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
def test_rows_with_and_without_headers_in_one_batch(spark, rmq, guarantee):
    topic, names = rmq.name(), "CAST(id AS STRING) AS content"
    some = f"CASE WHEN id % 3 = 0 THEN {HEADERS} END AS headers"
    frames = [
        spark.range(60).selectExpr(names, f"{NO_HEADERS} AS headers"),
        spark.range(60, 120).selectExpr(names, some),
    ]
    stream_files(spark, rmq, topic, frames, guarantee)
    assert set(bodies_in(rmq, topic)) == {str(n) for n in range(60, 120, 3)}
    columns = "content STRING, headers ARRAY<STRUCT<key STRING, value BINARY>>"
    found = stored(spark, rmq, topic, columns)
    assert {content for content, headers in found.items() if headers} == set(bodies_in(rmq, topic))
    assert len(found) == 120
