"""Traces of each_message: spans of its calls, recorded by the SDK in the executors' processes."""

import json
import os

import pyarrow as pa
import pytest
from pyspark.sql.functions import expr
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

from rmq_spark import Message, Snooze
from rmq_spark.spark.listener.child import TracedCalls
from rmq_spark.spark.schemas import HEADERS, WHOLE_SOURCE_SCHEMA

from ...waiting import wait_until
from ..driving import DUE
from .test_each_message import listen, listener, totals  # noqa: F401 - listen is a fixture

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{}-01"


class Recorded:
    """Spans that processes of executors have appended to a file."""

    def __init__(self, path):
        self.path = path

    def function(self, work=None):
        """A function that, when it is loaded, provides an SDK that writes spans to the file."""
        path = self.path

        class Traced:  # a local class, so that it is pickled by value
            def __init__(self, work):
                self.work = work

            def __setstate__(self, state):
                from opentelemetry import trace
                from opentelemetry.sdk.trace import TracerProvider
                from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

                self.__dict__ = state
                out = open(path, "a")  # noqa: SIM115 - as long as the process
                exporter = ConsoleSpanExporter(
                    out=out, formatter=lambda span: span.to_json(indent=None) + "\n"
                )
                # By itself, it exports only after the test.
                processor = BatchSpanProcessor(exporter, schedule_delay_millis=600_000)
                provider = TracerProvider(shutdown_on_exit=False)
                provider.add_span_processor(processor)
                trace.set_tracer_provider(provider)

            def __call__(self, given):
                from opentelemetry import trace

                with trace.get_tracer("test").start_as_current_span("inside"):
                    return self.work(given) if self.work else None

        return Traced(work)

    def read(self, count):
        """Wait for so many spans."""

        def lines():
            if not os.path.exists(self.path):
                return []
            with open(self.path) as file:
                return file.readlines()

        wait_until(lambda: len(lines()) >= count, f"{count} spans are exported")
        return [json.loads(line) for line in lines()]


@pytest.fixture
def recorded(tmp_path):
    return Recorded(str(tmp_path / "spans"))


def send(queue, count, **values):
    messages = [
        Message(f"m{number}", headers={"traceparent": FOREIGN.format(number)}, **values)
        for number in range(count)
    ]
    queue.send(messages, fixed_time=DUE)


def linked(span):
    """The numbers of the messages that a span is linked to."""
    assert {link["context"]["trace_id"] for link in span["links"]} == {f"0x{FOREIGN[3:35]}"}
    return [int(link["context"]["span_id"][-1]) for link in span["links"]]


def test_each_delivery_of_a_message_is_a_span_linked_to_its_sender(rmq, spark, listen, recorded):  # noqa: F811
    queue = rmq.queue(slots=1, max_retries=1, groups=["audit"])
    queue = queue.of_group("audit")
    send(queue, 2)
    queue.send(["no context"], fixed_time=DUE)

    def work(message):
        if message.content == "m1":
            raise ValueError("secret")

    heard = listener(rmq, recorded.function(work), delay="0s")
    frame = rmq.read(spark, queue, includeHeaders="true", group="audit")
    while heard.failed < 2:
        listen(frame, heard)
    assert queue.requeue(["m1"]) == 1
    again = listener(rmq, recorded.function())
    listen(frame, again)
    assert totals(again) == (1, 0, 0)

    spans = recorded.read(9)
    worked = [span for span in spans if span["name"] == f"process {queue.definition.name}"]
    assert sorted(linked(span) for span in worked) == [[0], [1], [1], [1]]
    assert {span["kind"] for span in worked} == {"SpanKind.CONSUMER"}
    failed = [span for span in worked if span["status"]["status_code"] == "ERROR"]
    assert [linked(span) for span in failed] == [[1], [1]]
    assert [span["attributes"].pop("error.type") for span in failed] == ["ValueError"] * 2
    for span in worked:
        assert span["attributes"] == {
            "messaging.system": "rmq_spark",
            "messaging.destination.name": queue.definition.name,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.partition.id": "0",
            "messaging.consumer.group.name": "audit",
        }
        assert span["parent_id"] is None
        assert "secret" not in json.dumps(
            {name: span[name] for name in ("status", "events", "attributes")}
        )
    inside = [span["parent_id"] for span in spans if span["name"] == "inside"]
    assert sorted(filter(None, inside)) == sorted(span["context"]["span_id"] for span in worked)
    assert inside.count(None) == 1, "the message without a context"


@pytest.mark.parametrize("batch", [True, "pandas"])
def test_many_messages_of_a_call_are_one_span_with_a_link_for_each(
    rmq,
    spark,
    listen,  # noqa: F811
    recorded,
    batch,
):
    queue = rmq.queue(slots=1)
    send(queue, 3)
    queue.send(["no context"], fixed_time=DUE + 1)
    heard = listener(rmq, recorded.function(lambda _: [3]), batch=batch, delay="1h")
    listen(rmq.read(spark, queue, includeHeaders="true"), heard)
    assert totals(heard) == (3, 1, 0)
    _, span = recorded.read(2)
    assert linked(span) == [0, 1, 2]
    assert span["attributes"]["messaging.batch.message_count"] == 4
    assert span["attributes"]["error.type"] == "_OTHER"


@pytest.mark.parametrize("batch", [False, True])
def test_a_snooze_is_no_error(rmq, spark, listen, recorded, batch):  # noqa: F811
    def work(message):
        if batch:
            return {0: Snooze("1h")}
        raise Snooze("1h")

    queue = rmq.queue(slots=1)
    send(queue, 1)
    heard = listener(rmq, recorded.function(work), batch=batch)
    listen(rmq.read(spark, queue, includeHeaders="true"), heard)
    assert (*totals(heard), heard.snoozed) == (0, 0, 0, 1)
    assert "error.type" not in recorded.read(2)[-1]["attributes"]


def test_a_function_that_returns_a_coroutine_fails_in_its_span(rmq, spark, listen, recorded):  # noqa: F811
    queue = rmq.queue(slots=1)
    send(queue, 1)

    def work(message):
        yield message

    heard = listener(rmq, recorded.function(work), delay="1h")
    listen(rmq.read(spark, queue, includeHeaders="true"), heard)
    assert totals(heard) == (0, 1, 0)
    assert recorded.read(2)[-1]["attributes"]["error.type"] == "TypeError"


def test_rows_without_headers_have_no_span(rmq, spark, listen, recorded):  # noqa: F811
    queue = rmq.queue(slots=1)
    send(queue, 2)
    heard = listener(rmq, recorded.function(), batch=True)
    listen(rmq.read(spark, queue), heard)
    assert totals(heard) == (2, 0, 0)
    assert [span["name"] for span in recorded.read(1)] == ["inside"], "or it is not exported"


def test_a_sink_passes_the_context_on(rmq, spark, listen):  # noqa: F811
    queue, onward = rmq.queue(slots=1), rmq.queue(slots=1)
    send(queue, 3)

    def forward(frame, batch_id):
        rows = frame.select("content", "headers", expr("0L AS fixedTime"))
        rmq.write(rows, onward.definition.name)

    listen(rmq.read(spark, queue, includeHeaders="true"), forward)
    with rmq.broker.consumer(onward.definition.name, "c") as consumer:
        batch = consumer.poll()
        found = sorted(value for message in batch for _, value in message.headers)
        batch.commit()
    assert found == [FOREIGN.format(number).encode() for number in range(3)]


# -- which rows can have spans


def row(headers):
    return ["T", 0, "c:1:0:1", headers]


SCHEMA = StructType([WHOLE_SOURCE_SCHEMA[name] for name in ("topic", "slot", "claimId")]).add(
    "headers", HEADERS
)


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        StructType(
            [StructField(field.name.upper(), field.dataType) for field in SCHEMA.fields[:3]]
        ).add("Headers", ArrayType(HEADERS.elementType, False), False),
    ],
)
def test_columns_are_found_by_name_in_any_case(schema, monkeypatch):
    monkeypatch.setattr("rmq_spark.spark.listener.child.is_on", lambda: True)
    assert TracedCalls(schema).is_on()


@pytest.mark.parametrize(
    "schema",
    [
        StructType(SCHEMA.fields[:3]),
        StructType(SCHEMA.fields[1:]),
        StructType(SCHEMA.fields[:3]).add("headers", MapType(StringType(), StringType())),
    ],
)
def test_rows_without_the_columns_have_no_spans(schema, monkeypatch):
    monkeypatch.setattr("rmq_spark.spark.listener.child.is_on", lambda: True)
    assert not TracedCalls(schema).is_on()


@pytest.mark.parametrize("headers", [None, [], [None], [(None, b"x")], [("traceparent", None)]])
def test_headers_that_a_user_has_changed_do_no_harm(headers):
    traced = TracedCalls(SCHEMA)
    with traced.of_message(row(headers)) as span:
        assert span is None
    listed = headers and [one and {"key": one[0], "value": one[1]} for one in headers]
    types = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = [pa.array([value]) for value in row(None)[:3]] + [pa.array([listed], types)]
    batch = pa.RecordBatch.from_arrays(columns, SCHEMA.names)
    with traced.of_batch(batch) as span:
        assert span is None
