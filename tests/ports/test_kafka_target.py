"""A topic goes into Kafka: what the records are, what names them, and what is refused."""

import itertools
import re
import socket
import struct
import subprocess
import sys
import threading
import uuid

import pytest
from confluent_kafka import Producer, TopicPartition

from rmq_spark.client import Message
from rmq_spark.jobs.program import JobFailed
from rmq_spark.jobs.targets import kafka as kafka_target
from rmq_spark.jobs.targets.base import NUMBER, ExportBatch
from rmq_spark.jobs.targets.kafka import (
    GROUP,
    KafkaCluster,
    KafkaTransactions,
    kafka_records,
)

from .. import programs, quick_spark
from ..jobs.trade import Killed
from ..kafka_broker import KafkaBroker
from ..servers import NOBODYS_PORT
from .kafka_ports import ID

WAYS = pytest.mark.parametrize("way", [(), ("--exactly-once",)], ids=["connector", "transactions"])
WRITERS = {(): KafkaCluster, ("--exactly-once",): KafkaTransactions}


@pytest.fixture
def topic(kafka):
    return kafka.create(f"t{uuid.uuid4().hex[:8]}")


@pytest.fixture
def to_kafka(trade, kafka, topic):
    def export(*arguments, broker=kafka, checkpoint="checkpoint", to=topic):
        return trade.export(
            *("--to", "kafka", "--checkpoint", trade.folder / checkpoint),
            *("--target-option", f"kafka.bootstrap.servers={broker.address}"),
            *("--target-option", f"topic={to}", *arguments),
        )

    return export


def id_of(record):
    headers = dict(record.headers())
    return tuple(headers[name].decode() for name in ID)


def values(records):
    return sorted(record.value() for record in records)


@WAYS
def test_a_message_becomes_a_record_with_a_name_for_ever(way, trade, kafka, topic, to_kafka):
    sent = [b"order %d" % number for number in range(200)]
    trade.orders(sent)
    assert to_kafka(*way) == "200 messages done, 0 of them refused"
    found = kafka.records(topic)
    assert values(found) == sorted(sent)
    names = [id_of(record) for record in found]
    assert len(set(names)) == 200
    by_claim = {}
    for record, (source, slot, claim, position, row) in zip(found, names, strict=True):
        assert (source, row) == ("Orders", "0")
        assert record.key() == slot.encode()
        by_claim.setdefault((slot, claim), []).append(int(position))
    # In each slot in order, from the first to the last.
    assert all(at == list(range(len(at))) for at in by_claim.values())
    assert trade.broker.queue("Orders").figures().messages == 0


@pytest.mark.long
@WAYS
def test_a_replayed_batch_has_the_same_names(way, trade, kafka, topic, to_kafka, monkeypatch):
    writer = WRITERS[way]
    write = writer.write

    def killed_after(*arguments):
        write(*arguments)
        raise Killed

    trade.orders(f"order {number}" for number in range(100))
    with monkeypatch.context() as patched:
        patched.setattr(writer, "write", killed_after)
        with pytest.raises(Exception, match="Killed"):
            to_kafka(*way)
    once = {(record.value(), id_of(record)) for record in kafka.records(topic)}
    assert len(once) == 100
    assert to_kafka(*way) == "100 messages done, 0 of them refused"
    again = [(record.value(), id_of(record)) for record in kafka.records(topic)]
    assert set(again) == once
    assert len(again) == (100 if way else 200)


@pytest.mark.long
@WAYS
def test_keys_payloads_and_headers_of_messages_are_those_of_records(
    way, trade, kafka, topic, to_kafka
):
    trade.broker.create("Orders", "FixedTime", 2, keyed=True)
    trade.orders(
        [
            Message("paid", key="a", headers=[("source", "web"), ("none", None)]),
            Message("", key="b"),
            Message(key="c"),
        ]
    )
    to_kafka("--headers", *way)
    found = {record.key(): record for record in kafka.records(topic)}
    assert {key: record.value() for key, record in found.items()} == {
        b"a": b"paid",
        b"b": b"",
        b"c": None,
    }
    assert found[b"a"].headers()[:2] == [("source", b"web"), ("none", None)]
    assert [name for name, _ in found[b"c"].headers()] == list(ID)


@pytest.mark.long
@WAYS
def test_select_makes_the_columns_of_records(way, trade, kafka, topic, to_kafka):
    trade.orders(["a b", "c", "skipped"])
    select = (
        "explode(split(content, ' ')) AS value, CAST(NULL AS STRING) AS key, 1 AS partition, "
        "array(named_struct('key', 'kind', 'value', CAST('word' AS BINARY))) AS headers"
    )
    assert to_kafka("--select", select, "--where", "content <> 'skipped'", *way).startswith("3 ")
    found = kafka.records(topic)
    assert values(found) == [b"a", b"b", b"c"]
    assert all(record.key() is None and record.partition() == 1 for record in found)
    assert all(record.headers()[0] == ("kind", b"word") for record in found)
    rows = {record.value(): id_of(record)[-1] for record in found}
    assert rows == {b"a": "0", b"b": "1", b"c": "0"}
    assert len({id_of(record) for record in found}) == 3


@pytest.mark.long
def test_a_select_without_a_topic_needs_the_option(trade, kafka):
    trade.orders(["a"])
    address = f"kafka.bootstrap.servers={kafka.address}"
    to = ("--to", "kafka", "--checkpoint", trade.folder / "c", "--target-option", address)
    with pytest.raises(Exception, match=r"makes no column topic.*topic may be an option instead"):
        trade.export(*to, "--select", "content AS value")
    trade.export(*to, "--select", "content AS value, 'Chosen' AS topic")
    assert values(kafka.records("Chosen")) == [b"a"]


@pytest.mark.long
def test_the_columns_of_one_topic_go_to_the_topic_of_that_name(trade, kafka):
    trade.orders(["a"])
    address = f"kafka.bootstrap.servers={kafka.address}"
    trade.export("--to", "kafka", "--checkpoint", trade.folder / "c", "--target-option", address)
    assert values(kafka.records("Orders")) == [b"a"]  # the broker creates topics


@pytest.mark.long
@WAYS
def test_what_the_transformation_refuses_goes_to_the_exceptions(way, trade, kafka, topic, to_kafka):
    trade.orders(["1", "x", "2"])
    said = to_kafka("--select", "CAST(CAST(content AS INT) AS STRING) AS value", *way)
    assert said == "3 messages done, 1 of them refused"
    assert values(kafka.records(topic)) == [b"1", b"2"]
    (refused,) = trade.spark.read.parquet(f"{trade.folder}/checkpoint_exceptions").collect()
    assert (refused.content, refused.topic) == ("x", "Orders")


@pytest.mark.long
@WAYS
def test_bytes_that_are_no_text_pass(way, trade, kafka, topic, to_kafka):
    trade.orders([b"\xff", b"a"])
    to_kafka("--binary", *way)
    assert values(kafka.records(topic)) == [b"a", b"\xff"]


@pytest.mark.long
@WAYS
def test_a_record_that_is_too_large_loses_nothing_and_can_be_refused(
    way, trade, kafka, topic, to_kafka
):
    trade.orders(["small", "x" * 1_500_000])
    with pytest.raises(Exception, match=r"failed: .*larger than|too large.*raise_error"):
        to_kafka(*way)
    assert trade.broker.queue("Orders").figures().messages == 2
    too_large = "IF(octet_length(content) > 900000, raise_error('too large'), content) AS value"
    assert to_kafka("--select", too_large, *way) == "2 messages done, 1 of them refused"
    assert set(values(kafka.records(topic))) == {b"small"}


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("content", "a column content of type string. No Kafka record has that"),
        ("key", "makes no column value"),
        ("1 AS value", "a column value of type int. No Kafka record has that"),
        ("content AS value, 'x' AS headers", "a column headers of type string"),
    ],
)
def test_a_select_that_makes_no_record_is_refused(trade, to_kafka, select, told):
    trade.orders(["a"])
    with pytest.raises(Exception, match=told):
        to_kafka("--select", select)
    assert trade.broker.queue("Orders").figures().messages == 1


@pytest.mark.long
@WAYS
def test_a_broker_that_is_down_is_told_in_one_line(way, trade, to_kafka):
    class Down:
        address = f"127.0.0.1:{NOBODYS_PORT}"

    trade.orders(["a"])
    names = () if way else ("default.api.timeout.ms", "request.timeout.ms")
    soon = itertools.chain(*(("--target-option", f"kafka.{name}=2000") for name in names))
    with pytest.raises(Exception, match=f"Kafka at {Down.address} failed: ") as told:
        to_kafka(*way, *soon, broker=Down)
    assert "Check that the brokers run" in str(told.value)
    assert "\n" not in str(told.value)
    assert trade.broker.queue("Orders").figures().messages == 1


SECRET = "sesame-open"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required username='shop' "
    f"password='{SECRET}'"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "given"),
    [
        ((), {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}),
        (("--exactly-once",), {"sasl.password": SECRET, "sasl.mechanism": SECRET}),
        (("--exactly-once",), {}),
    ],
)
def test_no_secret_is_shown(way, given, trade, to_kafka, capfd, caplog):
    trade.orders(["a"])
    soon = dict.fromkeys(("default.api.timeout.ms", "request.timeout.ms"), "2000")
    settings = {**given, "sasl.jaas.config": JAAS, **({} if way else soon)}
    options = [("--target-option", f"kafka.{name}={value}") for name, value in settings.items()]
    with pytest.raises(Exception, match=r"Kafka at |kafka\.\* is not accepted: ") as told:
        to_kafka(*way, *itertools.chain(*options))
    shown = f"{told.value} {caplog.text} {''.join(capfd.readouterr())}"
    assert SECRET not in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to", "parquet", "--path", "x"), "--exactly-once is for --to kafka"),
        (("--to", "kafka"), "needs --target-option kafka.bootstrap.servers="),
        (
            ("--to", "kafka", "--target-option", "kafka.bootstrap.servers=a:1"),
            "and --target-option topic=NAME",
        ),
    ],
)
def test_what_exactly_once_needs_is_told(trade, arguments, told):
    with pytest.raises(Exception, match=told):
        trade.export(*arguments, "--exactly-once", "--checkpoint", trade.folder / "c")


def test_the_id_of_transactions_cannot_be_given(to_kafka):
    with pytest.raises(Exception, match=r"kafka.transactional.id is not accepted"):
        to_kafka("--exactly-once", "--target-option", "kafka.transactional.id=a")


def batch_of(spark, number, query):
    """A batch of one message, and its records."""
    schema = "content STRING, key STRING, topic STRING, slot INT, claimId STRING"
    messages = spark.createDataFrame(
        [(0, f"batch {number}", None, "Orders", 0, f"c:{number}:0:1")], f"{NUMBER} LONG, {schema}"
    )
    batch = ExportBatch(messages, lambda rows: rows, query, number, 10)
    return batch, kafka_records(batch, messages, required=None)


def test_of_two_exports_with_one_checkpoint_the_older_commits_nothing_more(spark, kafka, topic):
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic}
    older, newer = (KafkaTransactions(options, None) for _ in range(2))
    query = uuid.uuid4().hex
    first, second = batch_of(spark, 0, query), batch_of(spark, 1, query)
    assert not older.has(first[0])
    older.write(*first)
    assert not older.has(second[0])
    assert newer.has(first[0])
    with pytest.raises(Exception, match="Another export runs with the same checkpoint"):
        older.write(*second)
    assert not newer.has(second[0])
    newer.write(*second)
    assert values(kafka.records(topic)) == [b"batch 0", b"batch 1"]


def test_a_transaction_that_an_earlier_run_left_open_is_aborted(spark, kafka, topic):
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic}
    killed, next_run = (KafkaTransactions(options, None) for _ in range(2))
    batch, rows = batch_of(spark, 0, uuid.uuid4().hex)
    assert not killed.has(batch)
    killed._producer.begin_transaction()
    for row in rows.collect():
        killed._produce(row)
    assert killed._producer.flush(30) == 0
    noted = [killed._kafka.TopicPartition(topic, 0, 0)]
    killed._producer.send_offsets_to_transaction(noted, killed._group, 30)
    assert not next_run.has(batch)
    next_run.write(batch, rows)
    assert len(kafka.records(topic)) == 1
    assert len(kafka.records(topic, isolation="read_uncommitted")) == 2


def test_a_transaction_that_holds_the_offset_back_is_named(spark, kafka, topic, monkeypatch):
    """Failed before: the error advised to check that the brokers run, and they did."""
    monkeypatch.setattr(kafka_target, "_ANSWERS_S", 3.0)
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic}
    batch, rows = batch_of(spark, 0, uuid.uuid4().hex)
    export, next_run = (KafkaTransactions(options, None) for _ in range(2))
    assert not export.has(batch)
    other = Producer({"bootstrap.servers": kafka.address, "transactional.id": uuid.uuid4().hex})
    other.init_transactions(30)
    other.begin_transaction()
    other.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], export._group, 30)
    with pytest.raises(JobFailed, match=f"keeps back the offset of the group {GROUP}{batch.query}"):
        next_run.has(batch)
    other.abort_transaction(30)
    assert not next_run.has(batch)
    next_run.write(batch, rows)
    assert values(kafka.records(topic)) == [b"batch 0"]


def late_commit(kafka, name, producer_id, epoch):
    """Sends EndTxn, version 1, as a connection that has broken may deliver it late. Returns the
    error's code.
    """
    head = struct.pack(f">hhih3sh{len(name)}s", 26, 1, 7, 3, b"old", len(name), name.encode())
    request = head + struct.pack(">qh?", producer_id, epoch, True)
    host, port = kafka.address.split(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            return struct.unpack(">iih", answers.read(size))[2]


def test_a_commit_that_comes_late_commits_nothing_of_the_next_batch(
    spark, kafka, topic, monkeypatch
):
    """Failed before: half of a batch was committed, and came again after the next start."""
    export = KafkaTransactions({"kafka.bootstrap.servers": kafka.address, "topic": topic}, None)
    query, errors = uuid.uuid4().hex, []
    first, second = batch_of(spark, 0, query), batch_of(spark, 1, query)
    assert not export.has(first[0])
    export.write(*first)
    name = f"{GROUP}{query}"
    kafka.run_tool(
        *("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", kafka.address),
        *("describe", "--transactional-id", name),
    )
    producer = re.findall(rf"^\d+\s+{name}\s+(\d+)\s+(\d+)\s", kafka.log(), re.M)[-1]
    produce = KafkaTransactions._produce

    def produce_beside_a_late_commit(self, row):
        produce(self, row)
        assert self._producer.flush(30) == 0
        errors.append(late_commit(kafka, name, *map(int, producer)))
        assert values(kafka.records(topic)) == [b"batch 0"]

    monkeypatch.setattr(KafkaTransactions, "_produce", produce_beside_a_late_commit)
    assert not export.has(second[0])
    export.write(*second)
    assert errors == [47] or errors == [90]  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
    assert values(kafka.records(topic)) == [b"batch 0", b"batch 1"]


def test_a_call_that_kafkas_client_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(kafka_target, "_HANGS_S", 0.1)
    ended = threading.Event()
    with pytest.raises(JobFailed, match=r"has not answered for .* start the job again"):
        kafka_target._kept_waiting(ended.wait)
    ended.set()


@pytest.mark.long
def test_after_a_kill_without_exactly_once_it_is_not_guessed(
    trade, kafka, topic, to_kafka, monkeypatch
):
    trade.orders(["a"])
    to_kafka()
    trade.orders(["b"])
    with monkeypatch.context() as patched:
        patched.setattr(KafkaCluster, "write", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="ZeroDivision"):
            to_kafka()
    with pytest.raises(Exception, match="It is not known whether batch 1 is in the Kafka topic"):
        to_kafka("--exactly-once")
    to_kafka()
    trade.orders(["c"])
    assert to_kafka("--exactly-once") == "1 messages done, 0 of them refused"
    assert values(kafka.records(topic)) == [b"a", b"b", b"c"]


@pytest.fixture(scope="module")
def own_kafka():
    """A broker that a test may kill, and that creates no topics."""
    with KafkaBroker(auto_create_topics_enable="false") as broker:
        yield broker


@pytest.mark.long
@WAYS
def test_a_topic_that_is_not_there_is_told_where_the_broker_does_not_create_it(
    way, trade, to_kafka, own_kafka, topic
):
    trade.orders(["a"])
    with pytest.raises(Exception, match=f"has no topic {topic}, and does not create it") as told:
        to_kafka(*way, broker=own_kafka)
    assert "\n" not in str(told.value)
    assert trade.broker.queue("Orders").figures().messages == 1
    own_kafka.create(topic)
    to_kafka(*way, broker=own_kafka)
    assert values(own_kafka.records(topic)) == [b"a"]


@pytest.mark.long
@WAYS
def test_a_broker_that_is_killed_and_started_amid_a_batch_gets_all(
    way, trade, to_kafka, own_kafka, topic, monkeypatch
):
    own_kafka.create(topic)
    sent = [b"order %d" % number for number in range(2000)]
    trade.orders(sent)
    starting = threading.Thread(target=own_kafka.start)

    def fall():
        own_kafka.kill()
        starting.start()

    if way:
        produce, left = KafkaTransactions._produce, iter(range(1000))

        def falling(self, row):
            if next(left, None) == 500:
                self._producer.flush(30)
                fall()
            produce(self, row)

        monkeypatch.setattr(KafkaTransactions, "_produce", falling)
    else:
        write = KafkaCluster.write
        monkeypatch.setattr(KafkaCluster, "write", lambda *given: (fall(), write(*given)))
    to_kafka(*way, broker=own_kafka)
    starting.join()
    assert values(own_kafka.records(topic)) == sorted(sent)


@pytest.mark.long
def test_without_the_connector_an_export_names_its_coordinates(trade, kafka, topic):
    trade.orders(["a"])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rmq_spark.cli", "job"),
            *("export", "--topic", "Orders", *trade.redis),
            *("--to", "kafka", "--checkpoint", trade.folder / "checkpoint", "--once"),
            *("--target-option", f"kafka.bootstrap.servers={kafka.address}"),
            *("--target-option", f"topic={topic}"),
        ],
        env=programs.environment(**quick_spark.variables()),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("export: ")]
    assert "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4." in told
