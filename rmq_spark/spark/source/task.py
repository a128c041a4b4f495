"""The task reader: makes the claims of a task, and yields their messages as Arrow batches."""

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from rmq_spark.client.queue import Queue
from rmq_spark.errors import UnreadableContent
from rmq_spark.process import spare_collections
from rmq_spark.protocol import claiming
from rmq_spark.protocol.bodies import payloads_of
from rmq_spark.protocol.claims import Claim, ClaimRequest
from rmq_spark.redis.server import shared_server
from rmq_spark.spark.compatibility import arrow_schema
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.schemas import first_not_utf8
from rmq_spark.spark.source.columns import MessageColumns
from rmq_spark.spark.source.planning import PlannedClaim
from rmq_spark.topics.definition import TopicDefinition

_log = logging.getLogger(__name__)

# The most messages and claims of the first round trip, and of the others; and the most bytes, as
# soon as the size of the messages is known.
FIRST_MESSAGES, FIRST_CLAIMS = 2048, claiming.CLAIMS_A_PIPELINE
MESSAGES_A_READ, CLAIMS_A_READ = 16384, 64
BYTES_A_READ = 32 * 1024 * 1024


@dataclass(frozen=True)
class Delivery:
    """The terms of a batch, the same for all of its partitions.

    topics: by name. due_before_ms: by Redis' clock; later messages are too late for the query.
    mark: what the plan has left in its slots; empty for a replay, which makes no new claims.
    """

    topics: Mapping[str, TopicDefinition]
    consumer: str
    run: int
    due_before_ms: int | None = None
    mark: str = ""

    @property
    def replays(self) -> bool:
        return not self.mark


class RmqPartition(InputPartition):
    def __init__(self, delivery: Delivery, claims: list[PlannedClaim]) -> None:
        self.delivery = delivery
        self.claims = claims

    def __repr__(self) -> str:
        slots: dict[str, set[int]] = {}
        for claim in self.claims:
            slots.setdefault(claim.topic, set()).add(claim.slot)
        named = "; ".join(f"{name}, slots {sorted(of)}" for name, of in slots.items())
        return f"RmqPartition({named})"


def read_partition(
    options: SourceOptions, schema: StructType, partition: RmqPartition
) -> Iterator[pa.RecordBatch]:
    """Make the claims of a partition, and yield their messages. Can be repeated."""
    spare_collections()
    reading = _Reading(options, partition.delivery)
    columns = arrow_schema(schema)
    ahead = reading.claims_ahead(partition.claims)
    for claims, size in ahead:
        try:
            yield from _batches(partition.delivery.topics[claims[0].topic], columns, claims, size)
        except pa.ArrowInvalid:
            ahead.close()  # wait for the claims under way, so that they are marked as unread, too
            reading.refuse_unreadable(claims)
            raise


class _Reading:
    def __init__(self, options: SourceOptions, delivery: Delivery) -> None:
        server = shared_server(options.connection, options.patience_s)
        prefix, group = options.key_prefix, options.subscription.group
        self._queues = {
            name: Queue(server, topic, key_prefix=prefix, group=group)
            for name, topic in delivery.topics.items()
        }
        self._options = options
        self._delivery = delivery

    def claims_ahead(
        self, planned: list[PlannedClaim]
    ) -> Generator[tuple[list[Claim], int], None, None]:
        """Make the claims in pipelines. Yields the claims and their bytes for each.

        A claim of large messages comes in parts. While the caller works on one pipeline, the next
        one is under way; closing the generator waits for it. Pipelines without a message are left
        out.
        """
        left, messages, most_claims = planned, FIRST_MESSAGES, FIRST_CLAIMS
        claims: list[Claim] = []
        with ThreadPoolExecutor(1, "rmq-read") as reader:

            def submit_next() -> Future[list[Claim]] | None:
                nonlocal left
                if claims and claims[-1].left:
                    return reader.submit(self._read_on, claims[-1], messages)
                part = _leading_claims(left[:most_claims], messages)
                left = left[len(part) :]
                return reader.submit(self._claim, part, messages) if part else None

            under_way = submit_next()
            while under_way is not None:
                claims = under_way.result()
                size, taken = _bytes_of(claims), sum(len(claim.contents) for claim in claims)
                if taken:
                    messages = max(1, min(MESSAGES_A_READ, BYTES_A_READ * taken // max(size, 1)))
                    most_claims = CLAIMS_A_READ
                under_way = submit_next()
                _warn_of_forgotten(claims)
                if taken:
                    yield claims, size

    def _claim(self, part: Sequence[PlannedClaim], messages: int) -> list[Claim]:
        """Make claims of one batch and topic in one pipeline; read up to ``messages`` of each."""
        requests = [
            ClaimRequest(one.slot, one.ordinal, one.limit, messages, one.others, one.alone)
            for one in part
        ]
        terms = self._terms(part[0].seq, {claim.slot: claim.epoch for claim in part})
        return self._queues[part[0].topic].ask(claiming.claim, requests, terms)

    def _read_on(self, part: Claim, messages: int) -> list[Claim]:
        terms = self._terms(part.seq, {})
        return [self._queues[part.topic].ask(claiming.read_on, part, terms, messages)]

    def _terms(self, seq: int, epochs: Mapping[int, int | None]) -> claiming.Claiming:
        delivery = self._delivery
        return claiming.Claiming(
            consumer=delivery.consumer,
            run=delivery.run,
            seq=seq,
            lease_ms=self._options.lease_ms,
            due_before_ms=delivery.due_before_ms,
            epochs=epochs,
            replay_only=delivery.replays,
            mark=delivery.mark,
            claims_a_pipeline=CLAIMS_A_READ,
        )

    def refuse_unreadable(self, claims: list[Claim]) -> None:
        """Name the first content that is not UTF-8. The batch costs no retry then."""
        for claim in claims:
            columns: dict[str, Sequence[bytes | None]] = {"content": claim.contents}
            if self._delivery.topics[claim.topic].keyed:
                columns = {"key": claim.contents, "content": payloads_of(claim.bodies)}
            for name, texts in columns.items():
                if found := first_not_utf8(texts):
                    self._refuse(claim, name, found[1])

    def _refuse(self, claim: Claim, name: str, error: UnicodeDecodeError) -> None:
        terms = self._delivery.consumer, self._delivery.run, claim.seq
        for queue in self._queues.values():
            queue.ask(claiming.unread, queue.slots, *terms)
        raise UnreadableContent(
            f"Topic {claim.topic}, slot {claim.slot}: a {name} is not valid UTF-8 "
            f"(byte {error.start} of {len(error.object)}), but the column {name} is a STRING. "
            f'Read it with .schema("{name} BINARY, ..."). The messages of the batch have lost '
            "no retry."
        )


def _leading_claims(claims: list[PlannedClaim], messages: int) -> list[PlannedClaim]:
    """Return the first claims of one batch and topic, of up to ``messages``, but at least one."""
    size = 0
    for at, claim in enumerate(claims):
        size += claim.limit
        alike = (claim.seq, claim.topic) == (claims[0].seq, claims[0].topic)
        if at and (size > messages or not alike):
            return claims[:at]
    return claims


def _warn_of_forgotten(claims: Sequence[Claim]) -> None:
    slots = sorted({claim.slot for claim in claims if claim.forgotten})
    if slots:
        _log.warning(
            "rmq: topic %s: Redis was restarted, failed over, or has lost the plan of batch %d "
            "(counted from 1), or the topic was paused for a while. The batch takes no more "
            "messages from the slots %s. No messages are lost: they come in the next batch.",
            claims[0].topic,
            claims[0].seq,
            slots,
        )


def _batches(
    topic: TopicDefinition, schema: pa.Schema, claims: list[Claim], size: int
) -> Iterator[pa.RecordBatch]:
    """Yield one Arrow batch of all claims, or several if it would exceed BYTES_A_READ.

    size: the bytes of all contents. An Arrow column holds at most 2 GiB of text, and Spark copies a
    batch as a whole.
    """
    claims = [claim for claim in claims if claim.contents]
    columns = MessageColumns(topic, claims)
    if size > BYTES_A_READ and columns.rows > 1:
        parts = [[claim] for claim in claims] if len(claims) > 1 else _halves(claims[0])
        for part in parts:
            yield from _batches(topic, schema, part, _bytes_of(part))
    elif columns.rows:
        yield pa.RecordBatch.from_arrays([columns.build(f) for f in schema], schema=schema)


def _halves(claim: Claim) -> list[list[Claim]]:
    half = len(claim.contents) // 2
    return [[_part(claim, slice(half))], [_part(claim, slice(half, None))]]


def _part(claim: Claim, rows: slice) -> Claim:
    return replace(
        claim,
        contents=claim.contents[rows],
        score_texts=claim.score_texts[rows],
        bodies=claim.bodies[rows],
    )


def _bytes_of(claims: list[Claim]) -> int:
    return sum(sum(map(len, claim.contents)) + claim.bodies.size for claim in claims)
