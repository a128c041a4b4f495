"""The consumer spans of each_message, in the process that calls the function."""

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from rmq_spark.client.tracing import is_on, process_span
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.bodies import Headers
from rmq_spark.protocol.names import ClaimId, ConsumerName
from rmq_spark.spark.schemas import HEADERS

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_HEADERS = HEADERS.simpleString()
_COLUMNS = ("topic", "slot", "claimid", "headers")


class TracedCalls:
    """Spans of calls, for rows of one schema.

    Rows have spans only if they have the column headers, and if this process has a tracer provider.
    """

    def __init__(self, schema: StructType) -> None:
        positions = {name.lower(): at for at, name in enumerate(schema.names)}
        self._at = [positions[name] for name in _COLUMNS if name in positions]
        # Compared as texts, which do not say what may be null.
        at = positions.get("headers")
        is_readable = at is not None and schema[at].dataType.simpleString() == _HEADERS
        self._has_columns = is_readable and len(self._at) == len(_COLUMNS)
        self._wake = threading.Event()
        self._flusher: threading.Thread | None = None

    def is_on(self) -> bool:
        """Return whether calls have spans now."""
        return self._has_columns and is_on()

    def of_message(self, message: Any) -> AbstractContextManager["Span | None"]:
        """Open the span of a call for one message, a row."""
        topic, slot, claim_id, headers = (message[at] for at in self._at)
        return process_span(topic, slot, [_pairs(headers)], group=_group_of(claim_id))

    def of_batch(self, batch: pa.RecordBatch) -> AbstractContextManager["Span | None"]:
        """Open the span of a call for all messages of a batch, which come from one claim."""
        topic, slot, claim_id = (batch.column(at)[0].as_py() for at in self._at[:-1])
        column = batch.column(self._at[-1]).to_pylist()
        headers = [_pairs(one and one.values() for one in found or ()) for found in column]
        return process_span(topic, slot, headers, group=_group_of(claim_id), batch=True)

    def flush_soon(self) -> None:
        """Export ended spans, in a thread that the calls do not wait for.

        Spark kills this process without warning, often as soon as a query has ended.
        """
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._flush, daemon=True)
            self._flusher.start()
        self._wake.set()

    def _flush(self) -> None:
        from opentelemetry import trace

        while self._wake.wait():
            self._wake.clear()
            flush = getattr(trace.get_tracer_provider(), "force_flush", None)
            if flush is not None:  # only the SDK's providers have it
                with suppress(Exception):
                    flush()


def _pairs(headers: Iterable[Iterable[Any]] | None) -> Headers:
    """Convert the headers of a message to pairs, without those that the user has made null."""
    pairs = (tuple(one) for one in headers or () if one is not None)
    return [(name, value) for name, value in pairs if name is not None]


def _group_of(claim_id: str) -> str:
    with suppress(InvalidOption):  # the user may have changed the column
        return ConsumerName.parse(ClaimId.parse(claim_id).consumer).group
    return ""
