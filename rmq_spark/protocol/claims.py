"""What the first phase returns: claims, and the messages in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_spark.protocol.names import ClaimId
from rmq_spark.topics.scores import MOST_RETRIES
from rmq_spark.topics.topic_types import TopicType

# Ranks are kept as fractions of 2048 in the PrepareQueue, so a claim holds no more messages.
MESSAGES_A_CLAIM = 2048
# The number of a claim within slot and batch is 0 to 15.
CLAIMS_A_BATCH = 16


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One claim to make, of up to ``limit`` messages. ordinal: its place in the slot's batch."""

    slot: int
    ordinal: int
    limit: int = MESSAGES_A_CLAIM


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message as its consumer sees it.

    due_time_ms and priority are those of the first delivery, None on a retry. delivery_count
    counts from 1. claim_id names the claim for a rollback. claimed_at_ms is when the claim was
    made, by Redis' clock; a claim that is read again keeps it.
    """

    content: bytes
    topic: str
    slot: int
    due_time_ms: int | None
    priority: int | None
    delivery_count: int
    retries_left: int
    claim_id: str
    claimed_at_ms: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The messages of one claim, in delivery order, column by column.

    score_text: the scores as the store had them, decimal, divided by spaces; one of 16 or less was
    a number of retries left.
    retries_left: of each message; where every one is a first delivery, a single number for all.
    claimed_at_ms: when it was made, by Redis' clock.
    moved: messages that making this claim gave back or took from the retry queue.
    fenced: a higher epoch owns the slot.
    forgotten: Redis has forgotten the batch's plan, so the claim was not made.
    """

    topic: str
    slot: int
    consumer: str
    seq: int
    ordinal: int
    run: int
    contents: list[bytes]
    score_text: bytes
    retries_left: list[int] | int
    max_retries: int
    claimed_at_ms: int
    moved: int = 0
    fenced: bool = False
    forgotten: bool = False

    @property
    def claim_id(self) -> str:
        """The text of its ClaimId, by which a rollback names the claim."""
        return str(ClaimId(self.consumer, self.seq, self.ordinal, self.run))

    @property
    def scores(self) -> list[int]:
        """The scores as the store had them."""
        return [int(text) for text in self.score_text.split()]

    def messages(self, topic_type: TopicType) -> Iterator[Delivered]:
        """Yield the messages one by one."""
        left, claim_id = self.retries_left, self.claim_id
        retries = [left] * len(self.contents) if isinstance(left, int) else left
        for content, score, retries_left in zip(self.contents, self.scores, retries, strict=True):
            first = score if score > MOST_RETRIES else None
            yield Delivered(
                content=content,
                topic=self.topic,
                slot=self.slot,
                due_time_ms=first if topic_type.has_due_times else None,
                priority=None if topic_type.has_due_times else first,
                delivery_count=max(1, self.max_retries - retries_left + 1),
                retries_left=retries_left,
                claim_id=claim_id,
                claimed_at_ms=self.claimed_at_ms,
            )


@dataclass(frozen=True, slots=True)
class SlotDue:
    """What a claim of one slot could take, and what another consumer or epoch holds back.

    next_ms: until time alone may add to it: a wait or a lease ends. None: it will not.
    """

    slot: int
    due: int
    held: int
    next_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """How far a consumer came in one slot; zeros where it never was."""

    run: int = 0
    settled: int = 0
    last_seq: int = 0
    last_ordinal: int = 0
    seen_ms: int = 0

    @staticmethod
    def parse(text: bytes | None) -> "Header":
        """Read what a script wrote; what it notes of plans is for scripts alone."""
        return Header(*map(int, text.split()[:5])) if text else Header()


class ConsumerSeen(NamedTuple):
    """A consumer of a topic: the slots it was in, those where it is at work, when it was seen.

    ms_ago: since it last claimed, committed or renewed, by Redis' clock.
    """

    consumer: str
    slots: int
    at_work: int
    ms_ago: int


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A claim that a replay found."""

    slot: int
    seq: int
    ordinal: int
    count: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Messages of one claim to roll back; delay_ms None takes the topic's backoff."""

    slot: int
    claim_id: str
    contents: Sequence[bytes]
    delay_ms: int | None = None


class RollbackResult(NamedTuple):
    """Messages rolled back, and those left alone because that claim holds them no more."""

    rolled_back: int = 0
    left_alone: int = 0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit removed: messages claimed, moved on the way, and committed.

    records: claims removed. held: the slots that had any.
    again: the slots where the batch was committed before, as by a commit whose reply was lost.
    """

    claimed: int = 0
    moved: int = 0
    committed: int = 0
    records: int = 0
    held: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """One queue: messages in it, how many of them are due, and since when (ms) the oldest is.

    Due means: may be delivered now (store, retry), lease run out (prepare). The DeadQueue's
    oldest is its first death. oldest_ms is None where nothing is, or the type has no times; in
    prepare and retry it is the next deadline and the next retry.
    """

    count: int = 0
    due: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The queues of a topic, and its counters since it was made.

    Counters: accepted, merged, claimed, committed, rolledBack, dead, cancelled. Of everything
    accepted, merged + committed + cancelled + dead + what the queues but the DeadQueue hold is the
    whole: a message requeued from the DeadQueue is accepted once more.
    """

    store: QueueFigures
    prepare: QueueFigures
    retry: QueueFigures
    dead: QueueFigures
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def queues(self) -> dict[str, QueueFigures]:
        """The queues by name."""
        return {
            "store": self.store,
            "prepare": self.prepare,
            "retry": self.retry,
            "dead": self.dead,
        }

    @property
    def messages(self) -> int:
        """How many are in the queues, dead ones too."""
        return sum(queue.count for queue in self.queues.values())
