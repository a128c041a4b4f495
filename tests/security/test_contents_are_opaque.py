"""Contents that would do harm if anything but their receiver looked into them."""

import base64
import json
import os
import pickle

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from rmq_spark.client import Message, connect
from rmq_spark.client.exactly_once import StagedSink
from rmq_spark.client.staging import stage
from rmq_spark.protocol import claiming, sending
from rmq_spark.protocol.claims import ClaimRequest
from rmq_spark.protocol.staging import Manifest, StageName
from rmq_spark.spark.listener.child import InputFormat, Job
from rmq_spark.spark.listener.runner import MessageRunner
from rmq_spark.spark.options import parse_sink_options
from rmq_spark.spark.sink.writer import RmqWriter

from ..spark.driving import DUE, Run
from .journey import LEASE_MS

SOURCE = (
    StructType().add("content", BinaryType()).add("claimId", StringType()).add("slot", "integer")
)


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self._folder = folder

    def __reduce__(self):
        return os.mkdir, (self._folder,)


@pytest.fixture
def trap(tmp_path):
    """A folder that exists only if a content was executed."""
    folder = tmp_path / "executed"
    yield str(folder)
    assert not folder.exists()


@pytest.fixture
def dangerous(trap):
    python = f"__import__('os').mkdir({trap!r})"
    return [
        pickle.dumps(Bomb(trap)),
        pickle.dumps(Bomb(trap), protocol=0),  # text
        base64.b64encode(pickle.dumps(Bomb(trap))),
        python.encode(),
        f"!!python/object/apply:os.mkdir [{trap}]".encode(),
        json.dumps({"__class__": "os.mkdir", "py/reduce": [trap]}).encode(),
        f"$(mkdir {trap})".encode(),
        b"redis.call('FLUSHALL') return {err='x'}",
        b"'] redis.call('FLUSHALL') --[['",
        b"\x1bLua\x51\x00\x01\x04\x08\x04\x08\x00",  # the head of Lua bytecode
        b"*1\r\n$8\r\nFLUSHALL\r\n",
        b"\r\nFLUSHALL\r\n",
        b"$-1\r\n",
        b"-ERR no such message\r\n",
        b"RMQ_LEASELOST claim",
        b"\x93\xc0\xff\xcd\x01",  # cmsgpack
        b"'; DROP TABLE orders; --",
        b"{T_0}",
        b"%s%n{0}{__class__}",
        b"",
        b"\x00",
        b"a\x00b",
        b"\xff\xfe not UTF-8 \xed\xa0\x80",
        b"nan",
        b"inf",
        b"16",
        b"XX",
        b"GT",
    ]


@pytest.fixture
def queue(redis_url, request):
    broker = connect(redis_url, key_prefix=f"{request.node.name}:", patience_s=2)
    broker.create("T", "FixedTime", 2, max_retries=1)
    yield broker.queue("T")
    broker.delete("T")
    broker.close()


def by_slot(queue, contents):
    """As requeue and cancel want them: where each lies without a slotBasis."""
    slots = {slot: [] for slot in queue.slots}
    for content in contents:
        slots[queue.definition.slot_of(content)].append(content)
    return slots


def sorted_contents(messages):
    return sorted(message.content for message in messages)


def test_through_plain_python_a_rollback_the_dead_queue_and_back(queue, dangerous):
    broker_side = connect_like(queue)
    assert queue.send(dangerous, fixed_time=DUE).new == len(dangerous)
    with broker_side.consumer("T", "clerk") as clerk:
        for _ in range(2):
            batch = clerk.poll()
            assert sorted_contents(batch) == sorted(dangerous)
            assert batch.rollback() == len(dangerous)
        assert queue.figures().dead.count == len(dangerous)
        pairs = {
            slot: [value for content in of for value in (DUE, content)]
            for slot, of in by_slot(queue, dangerous).items()
        }
        assert queue.ask(sending.requeue, pairs) == len(dangerous)
        batch = clerk.poll()
        assert sorted_contents(batch) == sorted(dangerous)
        assert {message.delivery_count for message in batch} == {1}
        assert batch.commit() == len(dangerous)
    broker_side.close()


def connect_like(queue):
    return connect(queue.server.address, key_prefix=queue.key_prefix, patience_s=2)


def test_through_a_claim_that_is_read_again_and_one_that_expires(queue, dangerous):
    queue.send(dangerous, fixed_time=DUE)
    requests = [ClaimRequest(slot, 0, 2048) for slot in queue.slots]
    asked = {"consumer": "c", "run": 1, "seq": 1, "lease_ms": LEASE_MS}
    for _ in range(2):
        claims = queue.ask(claiming.claim, requests, claiming.Claiming(**asked))
        assert sorted(c for claim in claims for c in claim.contents) == sorted(dangerous)
    queue.ask(claiming.release, queue.slots, "c", 1)
    assert queue.expire() == len(dangerous)
    assert queue.cancel(by_slot(queue, dangerous)) == len(dangerous)


def test_through_the_retry_queue(queue, dangerous):
    broker = connect_like(queue)
    queue.send(dangerous, fixed_time=DUE)
    with broker.consumer("T", "clerk") as clerk:
        assert clerk.poll().rollback(delay="1ms") == len(dangerous)
        taken = []
        while len(taken) < len(dangerous):
            batch = clerk.poll()
            taken += [message.content for message in batch]
            batch.commit()
    assert sorted(taken) == sorted(dangerous)
    broker.close()


def test_as_bases_of_slots(queue, dangerous):
    queue.send([Message(b"m%d" % n, slot_basis=b) for n, b in enumerate(dangerous)], fixed_time=DUE)
    assert queue.figures().store.count == len(dangerous)


def test_through_the_stages_of_an_exactly_once_sink(queue, dangerous):
    broker = connect_like(queue)
    name = StageName("a-query", 0, 0, "attempt")
    slots = by_slot(queue, dangerous)
    pairs = {slot: [v for c in of for v in (DUE, c)] for slot, of in slots.items()}
    stage(queue, str(name), pairs, {})
    manifest = Manifest({str(name): {"T": {n: len(of) for n, of in slots.items()}}}, len(dangerous))
    assert StagedSink(broker, "a-query").publish(0, manifest).new == len(dangerous)
    with broker.consumer("T", "clerk") as clerk:
        assert sorted_contents(clerk.poll()) == sorted(dangerous)
    broker.close()


def options_of(queue, **more):
    return {
        "redis.url": queue.server.address,
        "keyPrefix": queue.key_prefix,
        "topic": "T",
        "pollInterval": "20ms",
        **more,
    }


def test_through_the_sink_and_the_source_of_spark(queue, dangerous):
    sink = {name: text for name, text in options_of(queue).items() if name != "pollInterval"}
    schema = StructType([StructField("content", BinaryType())])
    writer = RmqWriter(parse_sink_options({**sink, "fixedTime": str(DUE)}), schema)
    rows = pa.record_batch({"content": pa.array(dangerous, pa.binary())})
    assert writer.write(iter([rows])).counts["new"] == len(dangerous)
    with Run(options_of(queue), SOURCE) as run:
        _, taken = run.next(run.initial())
        assert sorted(row["content"] for row in taken) == sorted(dangerous)
        schema = StructType([*schema, StructField("claimId", StringType())]).add("slot", "integer")
        back = RmqWriter(parse_sink_options({**sink, "operation": "rollback"}), schema)
        columns = {name: [row[name] for row in taken] for name in ("content", "claimId")}
        slots = pa.array([row["slot"] for row in taken], pa.int32())
        rows = pa.record_batch({**columns, "slot": slots})
        assert back.write(iter([rows])).counts["rolled back"] == len(dangerous)
    assert queue.figures().store.count == len(dangerous)


def test_the_function_of_each_message_gets_the_bytes_and_nothing_else_is_done(dangerous, tmp_path):
    noted = str(tmp_path / "noted")

    def note(message):
        with open(noted, "ab") as file:
            file.write(base64.b64encode(message.content) + b"\n")

    schema = StructType([StructField("content", BinaryType())])
    runner = MessageRunner(Job("note", cloudpickle.dumps(note), InputFormat.MESSAGE, schema.json()))
    assert runner.run(pa.record_batch({"content": pa.array(dangerous, pa.binary())})) == []
    runner.close()
    with open(noted, "rb") as file:
        assert [base64.b64decode(line) for line in file] == dangerous


def test_the_trap_is_one(tmp_path):
    """What the contents would do where somebody unpickled them."""
    folder = tmp_path / "executed"
    pickle.loads(pickle.dumps(Bomb(str(folder))))
    assert folder.exists()
