"""Records of Kafka go into a topic: each once, with keys and headers."""

import uuid

import pytest
from confluent_kafka import Producer

from rmq_spark.jobs import spark_session
from rmq_spark.jobs.program import JobFailed

from ..kafka_broker import QUIET
from ..servers import NOBODYS_PORT

SELECT = "CAST(value AS STRING) AS content, headers, CAST(key AS STRING) AS slotBasis"


@pytest.fixture
def topic(kafka):
    return kafka.create(f"t{uuid.uuid4().hex[:8]}")


@pytest.fixture
def from_kafka(trade, kafka, topic):
    def send(*arguments):
        return trade.job(
            *("send", "--stream", "--once", "--from", "kafka", "--topic", "Orders"),
            *("--source-option", f"kafka.bootstrap.servers={kafka.address}"),
            *("--source-option", f"subscribe={topic}"),
            *("--source-option", "startingOffsets=earliest"),
            *("--source-option", "includeHeaders=true"),
            *("-o", "topicType=FixedTime", "-o", "slotAmount=4", "-o", "delay=0"),
            *("--checkpoint", trade.folder / "checkpoint", "--select", SELECT, *arguments),
        )

    return send


def produce(kafka, topic, values):
    producer = Producer({"bootstrap.servers": kafka.address, **QUIET})
    for value in values:
        producer.produce(topic, value, key="a", headers=[("source", b"web")])
    assert producer.flush(60) == 0


def taken(trade):
    """Take all messages that are due, as contents with headers."""
    found = []
    with trade.broker.consumer("Orders", "clerk") as clerk:
        for batch in clerk.batches(wait=False):
            found += [(message.content, message.headers) for message in batch]
            batch.commit()
    return found


def test_a_replayed_batch_adds_nothing_even_if_its_messages_are_gone(
    trade, kafka, topic, from_kafka
):
    produce(kafka, topic, [f"order {number}" for number in range(100)])
    from_kafka()
    found = dict(taken(trade))
    assert found.keys() == {b"order %d" % number for number in range(100)}
    assert {tuple(headers) for headers in found.values()} == {(("source", b"web"),)}
    # As after a kill: Spark does not know that the batch is done.
    for name in ("0", ".0.crc"):
        (trade.folder / "checkpoint" / "commits" / name).unlink()
    produce(kafka, topic, ["the next"])
    from_kafka()
    assert [content for content, _ in taken(trade)] == [b"the next"]


@pytest.mark.long
def test_a_topic_that_is_not_there_is_told(from_kafka):
    with pytest.raises(JobFailed, match="has no topic Nowhere, and does not create it"):
        from_kafka("--source-option", "subscribe=Nowhere")


@pytest.mark.long
def test_brokers_that_are_down_are_told(from_kafka):
    down = f"127.0.0.1:{NOBODYS_PORT}"
    soon = ("default.api.timeout.ms=2000", "request.timeout.ms=2000", f"bootstrap.servers={down}")
    given = [word for one in soon for word in ("--source-option", f"kafka.{one}")]
    with pytest.raises(JobFailed, match=f"Kafka at {down} failed: .* Check that the brokers run"):
        from_kafka(*given)


@pytest.mark.long
def test_without_the_connector_its_coordinates_are_named(trade, from_kafka, monkeypatch):
    _, *package = spark_session._CONNECTORS["kafka"]
    monkeypatch.setitem(spark_session._CONNECTORS, "kafka", ("no.such.Class", *package))
    named = (
        r"--conf spark\.jars\.packages=org\.apache\.spark:spark-sql-kafka-0-10_2\.13:4\.[012]\.0"
    )
    with pytest.raises(JobFailed, match=named):
        from_kafka()
