"""OpenTelemetry spans of sending and processing messages, for programs that record traces.

A program has a recording span or a tracer provider only if it has imported opentelemetry itself.
This module therefore never imports it first, and does nothing where it is not imported.

Spans, names and attributes follow OpenTelemetry's semantic conventions for messaging (1.41):
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/. Spans never hold contents,
nor texts of errors, which may quote a content.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rmq_spark.protocol.bodies import Headers
from rmq_spark.protocol.claims import Delivered
from rmq_spark.topics.reasons import exception_class_of
from rmq_spark.topics.verdicts import Ending, failure_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

SYSTEM = "rmq_spark"
# The value of error.type for an error that has no class.
OTHER_ERROR = "_OTHER"
_API = "opentelemetry.trace"
_TRACEPARENT = "traceparent"
_NO_SPAN = nullcontext()


def is_on() -> bool:
    """Return whether this process has a tracer provider, so that its spans can be recorded."""
    if _API not in sys.modules:
        return False
    from opentelemetry import trace

    nothing = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    return not isinstance(trace.get_tracer_provider(), nothing)


class SendSpan:
    """The producer span of messages that are sent together, and the headers that name it."""

    def __init__(self, span: "Span", headers: Headers) -> None:
        self._span = span
        self._headers = tuple(headers)
        self._names = {_TRACEPARENT, *(name.lower() for name, _ in headers)}

    def add_to(self, own: Headers) -> Headers:
        """Return the headers of a message with those of this span.

        A message that has one of these headers already has a context of its own. It stays as it is,
        and the span gets a link to that context.
        """
        if not any(name.lower() in self._names for name, _ in own):
            return (*own, *self._headers)
        from opentelemetry import trace

        received = _context_in(own)
        if received is not None:
            self._span.add_link(trace.get_current_span(received).get_span_context())
        return own

    def count(self, messages: int) -> None:
        """Note how many messages are sent."""
        self._span.set_attribute("messaging.batch.message_count", messages)


def send_span(topic: str) -> AbstractContextManager[SendSpan | None]:
    """Open the producer span of a batch if the current span is recording. Else it is None."""
    return _open_send_span(topic) if is_recording() else _NO_SPAN


def is_recording() -> bool:
    """Return whether OpenTelemetry's current span is recording."""
    api = sys.modules.get(_API)  # an import statement takes longer, and each call of send is here
    # Another thread may be in the middle of importing it.
    get_current_span = getattr(api, "get_current_span", None)
    return get_current_span is not None and get_current_span().is_recording()


@contextmanager
def _open_send_span(topic: str) -> Iterator[SendSpan]:
    from opentelemetry import propagate, trace

    attributes = _attributes("send", topic)
    kind = trace.SpanKind.PRODUCER
    span = _tracer().start_span(f"send {topic}", kind=kind, attributes=attributes)
    with _as_current(span):
        carrier: dict[str, str] = {}
        if span.is_recording():
            propagate.inject(carrier)
        yield SendSpan(span, [(name, text.encode()) for name, text in carrier.items()])


@contextmanager
def process_span(
    topic: str, slot: int, headers: Sequence[Headers], *, group: str = "", batch: bool = False
) -> Iterator["Span | None"]:
    """Open the consumer span of messages, linked to the contexts in their headers.

    Yields None, without a span, if none of them has a context. The baggage of a single message
    becomes current. headers: those of each message. batch: whether they are processed together.
    """
    found = [context for context in map(_context_in, headers) if context is not None]
    if not found:
        yield None
        return
    from opentelemetry import trace

    attributes = _attributes("process", topic)
    attributes["messaging.destination.partition.id"] = str(slot)
    if group:
        attributes["messaging.consumer.group.name"] = group
    if batch:
        attributes["messaging.batch.message_count"] = len(headers)
    span = _tracer().start_span(
        f"process {topic}",
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[trace.Link(trace.get_current_span(one).get_span_context()) for one in found],
    )
    with _as_current(span, None if batch else found[0]):
        yield span


def message_span(message: Delivered, group: str) -> AbstractContextManager["Span | None"]:
    """Open the consumer span of a single message. group: its consumer group."""
    return process_span(message.topic, message.slot, [message.headers], group=group)


def mark_failed(span: "Span | None", error: "str | BaseException | None") -> None:
    """Mark a span as failed. error: an exception, or a reason that may begin with its class."""
    if span is None:
        return
    if isinstance(error, BaseException) and failure_of(error).ending is Ending.UNCHARGED:
        return  # a function that snoozes a message has not failed
    from opentelemetry import trace

    span.set_attribute("error.type", _error_type(error))
    span.set_status(trace.StatusCode.ERROR)


def _error_type(error: str | BaseException | None) -> str:
    if isinstance(error, BaseException):
        return type(error).__name__
    return exception_class_of(error or "") or OTHER_ERROR


class LoopSpans:
    """The consumer spans of a batch that a program loops over: one at a time, one a message.

    The span of a message is the current one in the body of the loop. It ends when the loop asks for
    the next message, or ends. A second loop makes no second span.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._begun = 0
        self._in_work: tuple[Delivered, Span | None] | None = None

    def over(self, messages: Iterator[Delivered]) -> Iterator[Delivered]:
        """Yield all messages of the batch, each within its span if it has headers."""
        return self._in_spans(messages) if is_on() else messages

    def _in_spans(self, messages: Iterator[Delivered]) -> Iterator[Delivered]:
        listed = list(messages)
        if not any(message.headers for message in listed):
            yield from listed
            return
        for at, message in enumerate(listed):
            if at < self._begun:
                yield message
                continue
            self._begun = at + 1
            with message_span(message, self._group) as span:
                self._in_work = message, span
                try:
                    yield message
                finally:
                    self._in_work = None

    def mark_failed(
        self, messages: Sequence[Delivered], reason: str | BaseException | None
    ) -> None:
        """Mark the span in progress as failed if its message is one of ``messages``."""
        if self._in_work is not None:
            message, span = self._in_work
            if message in messages:
                mark_failed(span, reason)


def _context_in(headers: Headers) -> "Context | None":
    """Return the current context with the remote span in the headers; None if there is none."""
    if not headers or _API not in sys.modules:
        return None
    from opentelemetry import context, propagate, trace

    fields = {field.lower(): field for field in propagate.get_global_textmap().fields}
    carrier = {
        fields[name.lower()]: value.decode("utf-8", "replace")
        for name, value in headers
        if value is not None and name.lower() in fields
    }
    if not carrier:
        return None
    received = propagate.extract(carrier, context.get_current())
    span = trace.get_current_span(received)
    is_found = span is not trace.get_current_span() and span.get_span_context().is_valid
    return received if is_found else None


@contextmanager
def _as_current(span: "Span", base: "Context | None" = None) -> Iterator[None]:
    """Make a span the current one, and end it. An error marks it as failed."""
    from opentelemetry import context, trace

    token = context.attach(trace.set_span_in_context(span, base))
    try:
        yield
    except GeneratorExit:  # a loop over messages that has ended early
        raise
    except BaseException as error:
        mark_failed(span, error)
        raise
    finally:
        context.detach(token)
        span.end()


def _tracer() -> "Tracer":
    from opentelemetry import trace

    from rmq_spark import __version__

    return trace.get_tracer(SYSTEM, __version__)


def _attributes(operation: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
