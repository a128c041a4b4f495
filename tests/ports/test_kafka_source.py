"""Records of Kafka go into a topic: each once, with keys and headers."""

import uuid

import pytest
from confluent_kafka import Producer

from ..kafka_broker import QUIET

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
