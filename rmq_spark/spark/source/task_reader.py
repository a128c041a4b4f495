"""The task reader: makes the claims of a task, and yields their messages as Arrow batches."""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rmq_spark.client.queue import Queue
from rmq_spark.errors import UnreadableContent
from rmq_spark.protocol import claiming
from rmq_spark.protocol.bodies import payloads_of
from rmq_spark.protocol.claims import Claim, ClaimRequest
from rmq_spark.spark.garbage_collection import freeze_live_objects
from rmq_spark.spark.options import SourceOptions
from rmq_spark.spark.source.message_columns import MessageColumns
from rmq_spark.spark.source.planning import PlannedClaim
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.transport.shared_servers import shared_server

_log = logging.getLogger(__name__)

# The most messages of the first round trip, and of the others; and the most bytes, as soon as the
# size of the messages is known.
FIRST_MESSAGES = 2048
MESSAGES_A_READ = 16384
BYTES_A_READ = 32 * 1024 * 1024


@dataclass(frozen=True)
class Delivery:
    """The terms of a batch, the same for all of its partitions.

    topics: their definitions by name. consumer, run: who makes the claims. due_before_ms: the time
    in ms, by Redis' clock, after which messages become due too late for the query; None for no such
    bound. mark: the text that the plan has left in its slots; empty for a replay, which makes no
    new claims.
    """

    topics: Mapping[str, TopicDefinition]
    consumer: str
    run: int
    due_before_ms: int | None = None
    mark: str = ""

    @property
    def replays(self) -> bool:
        """Whether an earlier run has made the claims, so that this one only reads them again."""
        return not self.mark


class RmqPartition(InputPartition):
    """The claims that one task makes, in this order."""

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
    """Make the claims of a partition, and yield their messages as Arrow batches.

    A second call yields the same messages. Raises Superseded if a newer run has taken over, Settled
    if the batch is already committed, Lost if a lease has ended, UnreadableContent if a content is
    not UTF-8 but the schema asks for STRING, and ServerError.
    """
    freeze_live_objects()
    delivery = partition.delivery
    server = shared_server(options.connection, options.patience_s)
    group = options.subscription.group
    queues = {
        name: Queue(server, topic, key_prefix=options.key_prefix, group=group)
        for name, topic in delivery.topics.items()
    }
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    read = _claims_ahead(queues, options, delivery, partition.claims)
    for seq, claims, size in read:
        queue = queues[claims[0].topic]
        try:
            yield from _batches(queue.definition, arrow_schema, claims, size)
        except pa.ArrowInvalid:
            read.close()  # wait for the claims under way, so that they are marked as unread, too
            _refuse_unreadable(queues.values(), delivery, seq, claims)
            raise


def _claims_ahead(
    queues: Mapping[str, Queue],
    options: SourceOptions,
    delivery: Delivery,
    planned: list[PlannedClaim],
) -> Generator[tuple[int, list[Claim], int], None, None]:
    """Make the claims in pipelines. Yields the seq, the claims and their bytes for each pipeline.

    A claim of large messages comes in parts. While the caller works on one pipeline, the next one
    is under way. Closing the generator waits for that one. Pipelines that took no message are left
    out.
    """
    left, messages = planned, FIRST_MESSAGES
    claims: list[Claim] = []
    with ThreadPoolExecutor(1, "rmq-read") as reader:

        def submit_next() -> Future[list[Claim]] | None:
            nonlocal left
            if claims and claims[-1].left:
                return reader.submit(_read_on, queues, options, delivery, claims[-1], messages)
            part = _leading_claims(left, messages)
            left = left[len(part) :]
            if not part:
                return None
            return reader.submit(_claim, queues, options, delivery, part, messages)

        under_way = submit_next()
        while under_way is not None:
            claims = under_way.result()
            size, taken = _bytes_of(claims), sum(len(claim.contents) for claim in claims)
            if taken:
                messages = max(1, min(MESSAGES_A_READ, BYTES_A_READ * taken // max(size, 1)))
            under_way = submit_next()
            _warn_of_forgotten(claims)
            if taken:
                yield claims[0].seq, claims, size


def _leading_claims(claims: list[PlannedClaim], messages: int) -> list[PlannedClaim]:
    """Return the first claims, of one batch and topic and up to ``messages`` messages.

    Returns at least one claim, however large it is.
    """
    size = 0
    for at, claim in enumerate(claims):
        size += claim.limit
        alike = (claim.seq, claim.topic) == (claims[0].seq, claims[0].topic)
        if at and (size > messages or not alike):
            return claims[:at]
    return claims


def _claim(
    queues: Mapping[str, Queue],
    options: SourceOptions,
    delivery: Delivery,
    part: Sequence[PlannedClaim],
    messages: int,
) -> list[Claim]:
    """Make claims of one batch and topic in one pipeline, and read up to ``messages`` of each."""
    requests = [
        ClaimRequest(claim.slot, claim.ordinal, claim.limit, messages, claim.others)
        for claim in part
    ]
    epochs = {claim.slot: claim.epoch for claim in part}
    terms = _terms(options, delivery, part[0].seq, epochs)
    return queues[part[0].topic].ask(claiming.claim, requests, terms)


def _read_on(
    queues: Mapping[str, Queue],
    options: SourceOptions,
    delivery: Delivery,
    part: Claim,
    messages: int,
) -> list[Claim]:
    """Read the next part of a claim, of up to ``messages`` messages."""
    terms = _terms(options, delivery, part.seq, {})
    return [queues[part.topic].ask(claiming.read_on, part, terms, messages)]


def _terms(
    options: SourceOptions, delivery: Delivery, seq: int, epochs: Mapping[int, int | None]
) -> claiming.Claiming:
    return claiming.Claiming(
        consumer=delivery.consumer,
        run=delivery.run,
        seq=seq,
        lease_ms=options.lease_ms,
        due_before_ms=delivery.due_before_ms,
        epochs=epochs,
        replay_only=delivery.replays,
        mark=delivery.mark,
    )


def _warn_of_forgotten(claims: Sequence[Claim]) -> None:
    """Log a warning if Redis has forgotten the plan of a slot, so that no claim was made there."""
    slots = sorted({claim.slot for claim in claims if claim.forgotten})
    if slots:
        _log.warning(
            "rmq: topic %s: Redis was restarted, failed over, or has lost the plan of batch %d, "
            "or the topic was paused for a while. The batch takes no more messages from the "
            "slots %s. No messages are lost: they come in the next batch.",
            claims[0].topic,
            claims[0].seq,
            slots,
        )


def _batches(
    topic: TopicDefinition, schema: pa.Schema, claims: list[Claim], size: int
) -> Iterator[pa.RecordBatch]:
    """Yield one Arrow batch of all claims, or several if it would exceed BYTES_A_READ.

    size: the bytes of all contents. Batches are bounded because an Arrow column holds at most 2 GiB
    of text, and because Spark copies a batch as a whole. Raises pa.ArrowInvalid if a content is not
    UTF-8 but the schema asks for STRING.
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
    """Return a claim with only some of its messages."""
    return replace(
        claim,
        contents=claim.contents[rows],
        score_texts=claim.score_texts[rows],
        bodies=claim.bodies[rows],
    )


def _bytes_of(claims: list[Claim]) -> int:
    """Sum the sizes of all contents and bodies, in bytes."""
    return sum(sum(map(len, claim.contents)) + claim.bodies.size for claim in claims)


def _refuse_unreadable(
    queues: Iterable[Queue], delivery: Delivery, seq: int, claims: list[Claim]
) -> None:
    """Raise UnreadableContent for the first content that is not UTF-8.

    Before that, marks the claims of the batch ``seq`` as unread in all topics, so that its messages
    lose no retry.
    """
    for claim in claims:
        keyed = delivery.topics[claim.topic].keyed
        columns = {"key": claim.contents, "content": payloads_of(claim.bodies)}
        for name, texts in columns.items() if keyed else [("content", claim.contents)]:
            error = _first_not_utf8(texts)
            if error is None:
                continue
            for queue in queues:
                queue.ask(claiming.unread, queue.slots, delivery.consumer, delivery.run, seq)
            raise UnreadableContent(
                f"Topic {claim.topic}, slot {claim.slot}: a {name} is not valid UTF-8 "
                f"(byte {error.start} of {len(error.object)}), but the column {name} is a STRING. "
                f'Read it with .schema("{name} BINARY, ..."). The messages of the batch have lost '
                "no retry."
            )


def _first_not_utf8(texts: Iterable[bytes | None]) -> UnicodeDecodeError | None:
    for text in texts:
        try:
            (text or b"").decode()
        except UnicodeDecodeError as error:
            return error
    return None
