"""The columns of the source, built from claims."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.protocol.bodies import Body, PackedBodies, bytes_before_payload, payloads_of
from rmq_spark.protocol.claims import Claim
from rmq_spark.spark.schemas import times
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.keys import MOST_RETRIES, SUSPECT_LEVEL


class MessageColumns:
    """The columns of the source. Each is built from the claims only if the schema has it."""

    def __init__(self, topic: TopicDefinition, claims: list[Claim]) -> None:
        self._topic = topic
        self._claims = claims
        self._counts = [len(claim.contents) for claim in claims]
        self.rows = sum(self._counts)

    def build(self, field: pa.Field) -> pa.Array:
        builders: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: self._key(field.type),
            "content": lambda: self._content(field.type),
            "headers": lambda: self._headers(field.type),
            "expiresat": lambda: times([body.expires_at_ms for body in self._bodies], field.type),
            "topic": lambda: pa.repeat(self._topic.name, self.rows),
            "slot": lambda: self._repeated([claim.slot for claim in self._claims], np.int32),
            "duetime": lambda: self._due_time(field.type),
            "priority": self._priority,
            "deliverycount": self._delivery_count,
            "retriesleft": self._retries_left,
            "claimid": self._claim_id,
            "claimedat": lambda: self._claimed_at(field.type),
        }
        return builders[field.name.lower()]()

    def _key(self, of_type: pa.DataType) -> pa.Array:
        return self._names().cast(of_type) if self._topic.keyed else pa.nulls(self.rows, of_type)

    def _content(self, of_type: pa.DataType) -> pa.Array:
        if not self._topic.keyed:
            return self._names().cast(of_type)
        return (
            pa.chunked_array([_payloads(claim.bodies) for claim in self._claims], pa.binary())
            .combine_chunks()
            .cast(of_type)
        )

    def _names(self) -> pa.Array:
        """Return what each message merges by: its key in a keyed topic, else its content."""
        names = [text for claim in self._claims for text in claim.contents]
        return pa.array(names, pa.binary())

    @cached_property
    def _bodies(self) -> list[Body]:
        return [
            Body.parse(text)
            for claim in self._claims
            for text in claim.bodies or [b""] * len(claim.contents)
        ]

    def _headers(self, of_type: pa.DataType) -> pa.Array:
        headers = [
            [{"key": name, "value": value} for name, value in body.headers] or None
            for body in self._bodies
        ]
        return pa.array(headers, of_type)

    def _repeated(self, values: Sequence[int], of_type: Any) -> pa.Array:
        return pa.array(np.repeat(np.array(values, of_type), self._counts))

    @cached_property
    def _scores_and_retries(self) -> Any:
        """Return the scores, and a mask of the retries, whose score is their retries left."""
        texts = pa.array(
            [text for claim in self._claims for text in claim.score_texts], pa.binary()
        )
        # That of a Priority message has a part behind the point (lua/include/priorities.lua).
        scores = texts.cast(pa.string()).cast(pa.float64()).to_numpy().astype(np.int64)
        return scores, scores <= MOST_RETRIES

    def _due_time(self, of_type: pa.DataType) -> pa.Array:
        if not self._topic.type.has_due_times:
            return pa.nulls(self.rows, of_type)
        scores, retried = self._scores_and_retries
        return pa.array(scores * 1000, pa.int64(), mask=retried).cast(of_type)

    def _priority(self) -> pa.Array:
        if self._topic.type.has_due_times:
            return pa.nulls(self.rows, pa.int64())
        scores, retried = self._scores_and_retries
        return pa.array(scores, pa.int64(), mask=retried)

    def _most_retries(self) -> Any:
        """Return what max_retries of the topic was when each message was claimed."""
        return np.repeat([claim.max_retries for claim in self._claims], self._counts)

    def _retries(self) -> Any:
        """Return the retries left of all messages: retries_of, for whole columns."""
        scores, retried = self._scores_and_retries
        charged = np.repeat([claim.charged for claim in self._claims], self._counts)
        deliveries = np.where(scores < 0, -scores % SUSPECT_LEVEL, scores)
        left = np.where(retried, deliveries - 1, self._most_retries()) - charged
        return np.maximum(left, 0).astype(np.int32)

    def _retries_left(self) -> pa.Array:
        return pa.array(self._retries())

    def _delivery_count(self) -> pa.Array:
        return pa.array(np.maximum(1, self._most_retries() + 1 - self._retries()).astype(np.int32))

    def _claim_id(self) -> pa.Array:
        names = pa.array([claim.claim_id for claim in self._claims], pa.string())
        return names.take(pa.array(np.repeat(np.arange(len(self._claims)), self._counts)))

    def _claimed_at(self, of_type: pa.DataType) -> pa.Array:
        times_us = [claim.claimed_at_ms * 1000 for claim in self._claims]
        return self._repeated(times_us, np.int64).cast(of_type)


def _payloads(bodies: PackedBodies) -> pa.Array:
    """Return the payloads of packed bodies; without an object for each if all begin alike."""
    ends = np.array(bodies.ends, np.int32)
    lengths = np.diff(ends)
    if not len(lengths) or not lengths.all():
        return pa.array(payloads_of(bodies), pa.binary())
    kinds = np.frombuffer(bodies.text, np.uint8)[ends[:-1]]
    skipped = bytes_before_payload(int(kinds[0])) if (kinds == kinds[0]).all() else None
    if skipped is None:
        return pa.array(payloads_of(bodies), pa.binary())
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(bodies.text)]
    whole = pa.Array.from_buffers(pa.binary(), len(bodies), buffers)
    return pc.binary_slice(whole, skipped, int(lengths.max()))
