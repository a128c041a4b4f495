"""Traces in plain Python: which spans there are, and where the context of a message survives."""

import subprocess
import sys

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import rmq_spark
from rmq_spark import Message, Snooze
from rmq_spark.errors import InvalidMessage, InvalidOption

from ..waiting import wait_until

DUE = 1000
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def provide(monkeypatch, **settings):
    """Set a provider of this test alone; the API sets one for good."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, **settings)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def spans(monkeypatch):
    return provide(monkeypatch)


@pytest.fixture
def tracer(spans):
    return trace.get_tracer("test")


@pytest.fixture
def queue(broker):
    broker.create("T", "FixedTime", 1, max_retries=1)
    return broker.queue("T")


def named(spans, name):
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids(span_context):
    return span_context.trace_id, span_context.span_id


def links(span):
    return [ids(link.context) for link in span.links]


def text_of(span):
    """The traceparent that names a span."""
    trace_id, span_id = ids(span.context)
    return f"00-{trace_id:032x}-{span_id:016x}-{span.context.trace_flags:02x}"


def send_traced(queue, tracer, messages, **values):
    """Send messages in a span of their own."""
    with tracer.start_as_current_span("order"):
        queue.send(messages, **{"fixed_time": DUE, **values})


def headers_of(message):
    return {name: value.decode() for name, value in message.headers}


def take(broker, topic="T", **values):
    """Every due message of a topic, committed."""
    with broker.consumer(topic, "c", **values) as consumer:
        found = []
        for batch in consumer.batches(wait=False):
            found += batch
            batch.commit()
        return found


# -- which spans there are


def test_a_batch_is_one_span_and_each_of_its_messages_another(broker, queue, spans, tracer):
    send_traced(queue, tracer, ["a", Message("b", headers={"own": "1"})])
    [order], [sent] = named(spans, "order"), named(spans, "send T")
    assert sent.parent.span_id == order.context.span_id
    assert sent.kind is trace.SpanKind.PRODUCER
    assert dict(sent.attributes) == {
        "messaging.system": "rmq_spark",
        "messaging.destination.name": "T",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 2,
    }
    found = take(broker)
    assert [headers_of(message) for message in found] == [
        {"traceparent": text_of(sent)},
        {"own": "1", "traceparent": text_of(sent)},
    ]
    worked = named(spans, "process T")
    assert [links(span) for span in worked] == 2 * [[ids(sent.context)]]
    assert [span.parent for span in worked] == [None, None]
    assert worked[0].kind is trace.SpanKind.CONSUMER
    assert dict(worked[0].attributes) == {
        "messaging.system": "rmq_spark",
        "messaging.destination.name": "T",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.partition.id": "0",
    }
    assert (sent.instrumentation_scope.name, sent.instrumentation_scope.version) == (
        "rmq_spark",
        rmq_spark.__version__,
    )


def test_what_the_loop_does_is_within_the_span_of_the_message(broker, queue, spans, tracer):
    broker.create("Next", "FixedTime", 1)
    send_traced(queue, tracer, ["a", "b"])
    with broker.consumer("T", "c") as consumer, tracer.start_as_current_span("loop"):
        for batch in consumer.batches(wait=False):
            for message in batch:
                broker.queue("Next").send([message.content], fixed_time=DUE)
            assert trace.get_current_span().name == "loop"
            batch.commit()
    worked, onward = named(spans, "process T"), named(spans, "send Next")
    assert [span.parent.span_id for span in onward] == [span.context.span_id for span in worked]
    [loop] = named(spans, "loop")
    assert {span.parent.span_id for span in worked} == {loop.context.span_id}
    assert [headers_of(m)["traceparent"] for m in take(broker, "Next")] == list(
        map(text_of, onward)
    )


def test_a_loop_that_ends_early_ends_the_span(broker, queue, spans, tracer):
    send_traced(queue, tracer, ["a", "b"])
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll()
        for _ in batch:
            break
        assert len(named(spans, "process T")) == 1
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert [message.content for message in batch] == [b"a", b"b"]
        assert len(named(spans, "process T")) == 2, "a message has two spans"
        batch.commit()


def test_a_group_is_named(broker, spans, tracer):
    broker.create("G", "FixedTime", 1, groups=["audit"])
    send_traced(broker.queue("G", group="audit"), tracer, ["a"])
    take(broker, "G", group="audit")
    [worked] = named(spans, "process G")
    assert worked.attributes["messaging.consumer.group.name"] == "audit"


def test_a_send_that_fails_is_a_failed_span_without_contents(queue, spans, tracer):
    with pytest.raises(InvalidMessage):
        send_traced(queue, tracer, [Message("a", priority="secret", headers="secret")])
    [sent] = named(spans, "send T")
    assert sent.status.status_code is trace.StatusCode.ERROR
    assert sent.attributes["error.type"] == "InvalidMessage"
    assert "secret" not in sent.to_json()


@pytest.mark.parametrize(
    ("reason", "error_type"),
    [
        (KeyError("secret"), "KeyError"),
        ("pkg.BadOrder: secret", "pkg.BadOrder"),
        ("no customer secret", "_OTHER"),
        (None, "_OTHER"),
    ],
)
def test_a_message_rolled_back_in_the_loop_is_a_failed_span(
    broker, queue, spans, tracer, reason, error_type
):
    send_traced(queue, tracer, ["a", "b"])
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll()
        for message in batch:
            if message.content == b"a":
                assert batch.rollback((one for one in [message]), reason=reason) == 1
        batch.commit()
    failed, done = named(spans, "process T")
    assert failed.attributes["error.type"] == error_type
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert "secret" not in failed.to_json()
    assert done.status.status_code is trace.StatusCode.UNSET


def test_a_reason_that_is_refused_fails_no_span(broker, queue, spans, tracer):
    send_traced(queue, tracer, ["a"])
    with broker.consumer("T", "c") as consumer:
        batch = consumer.poll()
        for _ in batch:
            with pytest.raises(InvalidOption):
                batch.rollback(reason=5)
            assert batch.rollback(reason="Whole: batch") == 1
    [span] = named(spans, "process T")
    assert span.attributes["error.type"] == "Whole"


# -- when nothing is traced


def test_outside_of_a_span_nothing_is_added_and_nothing_traced(broker, queue, spans):
    queue.send(["a"], fixed_time=DUE)
    assert [message.headers for message in take(broker)] == [()]
    assert spans.get_finished_spans() == ()


def test_a_trace_that_is_not_sampled_adds_nothing(broker, queue, monkeypatch):
    spans = provide(monkeypatch, sampler=ALWAYS_OFF)
    send_traced(queue, trace.get_tracer("test"), ["a"])
    assert [message.headers for message in take(broker)] == [()]
    assert spans.get_finished_spans() == ()


def test_without_a_provider_nothing_is_added_and_contexts_are_left_alone(broker, queue):
    send_traced(queue, trace.get_tracer("test"), ["a", Message("b", headers={"traceparent": "x"})])
    with broker.consumer("T", "c") as consumer:
        for batch in consumer.batches(wait=False):
            assert [message.headers for message in batch] == [(), (("traceparent", b"x"),)]
            batch.commit()


@pytest.mark.parametrize("value", ["", "00-00-00-00", "é", None, b"\xff"])
def test_a_header_that_is_no_context_has_no_span(broker, queue, spans, value):
    queue.send([Message("a", headers={"traceparent": value})], fixed_time=DUE)
    assert [message.content for message in take(broker)] == [b"a"]
    assert spans.get_finished_spans() == ()


# redis-py, too, imports opentelemetry where it is installed.
PROGRAM = """
import sys
sys.modules["opentelemetry"] = None
import rmq_spark
broker = rmq_spark.connect(sys.argv[1], key_prefix=sys.argv[2])
broker.queue("T").send(["a"], fixed_time=1, headers={"traceparent": "x"})

def see(message):
    print(message.content, flush=True)
    listener.stop()

if sys.argv[3] == "poll":
    with broker.consumer("T", "c") as consumer:
        print(*[message.content for message in consumer.poll()])
else:
    listener = broker.listen("T", "c", see)
    listener.run()
"""


@pytest.mark.parametrize("reader", ["poll", "listen"])
def test_where_opentelemetry_is_not_installed_all_goes_without(broker, queue, redis_url, reader):
    """Failed before: a listener ended at the first message with headers."""
    command = [sys.executable, "-c", PROGRAM, redis_url, broker.key_prefix, reader]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "b'a'\n", done.stderr


# -- contexts in headers


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_a_context_of_its_own_goes_before_that_of_the_span(broker, queue, spans, tracer, name):
    own = Message("a", headers={"x": "1", name: FOREIGN})
    send_traced(queue, tracer, [own, "b"])
    [sent] = named(spans, "send T")
    foreign = (int(FOREIGN[3:35], 16), int(FOREIGN[36:52], 16))
    assert links(sent) == [foreign]
    first, second = take(broker)
    assert first.headers == (("x", b"1"), (name, FOREIGN.encode()))
    assert headers_of(second) == {"traceparent": text_of(sent)}
    assert [links(span) for span in named(spans, "process T")] == [[foreign], [ids(sent.context)]]


def test_headers_of_the_call_may_be_the_context(broker, queue, spans, tracer):
    send_traced(queue, tracer, ["a"], headers={"traceparent": FOREIGN})
    assert headers_of(take(broker)[0]) == {"traceparent": FOREIGN}


def test_trace_state_and_baggage_travel_along(broker, queue, spans, tracer):
    parent = propagate.extract({"traceparent": FOREIGN, "tracestate": "vendor=1"})
    token = context.attach(baggage.set_baggage("tenant", "shop", parent))
    send_traced(queue, tracer, ["a"])
    context.detach(token)
    with broker.consumer("T", "c") as consumer:
        for batch in consumer.batches(wait=False):
            for message in batch:
                headers = headers_of(message)
                assert (headers["tracestate"], headers["baggage"]) == ("vendor=1", "tenant=shop")
                assert baggage.get_baggage("tenant") == "shop"
            batch.commit()
    assert baggage.get_baggage("tenant") is None
    [worked] = named(spans, "process T")
    assert worked.links[0].context.trace_state == {"vendor": "1"}


# -- where a context survives


def sent_and_worked(spans):
    return [ids(span.context) for span in named(spans, "send T")], named(spans, "process T")


def test_a_merged_message_has_the_last_context(broker, queue, spans, tracer):
    for _ in range(3):
        send_traced(queue, tracer, ["a"])
    take(broker)
    sent, [worked] = sent_and_worked(spans)
    assert links(worked) == [sent[-1]]


def test_a_copy_from_outside_of_a_span_takes_the_context_away(broker, queue, spans, tracer):
    send_traced(queue, tracer, ["a"])
    queue.send(["a"], fixed_time=DUE)
    assert [message.headers for message in take(broker)] == [()]


@pytest.mark.parametrize(("payload", "kept"), [("last", -1), ("first", 0)])
def test_a_key_has_the_context_of_the_payload_that_stays(broker, spans, tracer, payload, kept):
    broker.create("T", "FixedTime", 1, keyed=True, payload=payload)
    for content in "abc":
        send_traced(broker.queue("T"), tracer, [Message(content, key="k")])
    [message] = take(broker)
    sent, [worked] = sent_and_worked(spans)
    assert (message.content, links(worked)) == (b"abc"[kept:][:1], [sent[kept]])


@pytest.mark.parametrize("keyed", [False, True])
def test_retries_death_and_requeue_keep_the_context(broker, spans, tracer, keyed):
    broker.create("T", "FixedTime", 1, max_retries=1, keyed=keyed)
    queue = broker.queue("T")
    send_traced(queue, tracer, [Message("a", key="k" if keyed else None)])

    def work(fails):
        with broker.consumer("T", "c") as consumer:
            batch = consumer.poll()
            for message in batch:
                if fails:
                    batch.rollback([message], delay="0s", reason=ValueError("bad"))
            batch.commit()
            return len(batch)

    assert [work(True), work(True), work(True)] == [1, 1, 0]
    assert queue.figures().dead.count == 1
    assert queue.requeue(["k" if keyed else "a"]) == 1
    assert [work(False), work(False)] == [1, 0]
    [sent], worked = sent_and_worked(spans)
    assert [links(span) for span in worked] == 3 * [[sent]]
    assert [span.attributes.get("error.type") for span in worked] == ["ValueError"] * 2 + [None]


def test_a_lease_that_ran_out_keeps_the_context(broker, queue, spans, tracer):
    send_traced(queue, tracer, ["a"])
    with broker.consumer("T", "dies") as dies:
        dies.poll()
    take(broker)
    [sent], [worked] = sent_and_worked(spans)
    assert links(worked) == [sent]


def test_a_snooze_is_no_error(broker, spans, tracer):
    broker.create("T", "FixedTime", 1)
    send_traced(broker.queue("T"), tracer, [Message("a")])

    def snooze(message):
        raise Snooze("1h")

    with broker.listen("T", "a", snooze) as listener:
        wait_until(lambda: listener.snoozed, "the snooze")
    _, [worked] = sent_and_worked(spans)
    assert "error.type" not in worked.attributes
    assert worked.status.is_unset
