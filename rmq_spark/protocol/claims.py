"""Values that requests about claims take and return: claims, messages, headers, figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_spark.protocol.names import ClaimId
from rmq_spark.topics.scores import MOST_RETRIES
from rmq_spark.topics.topic_types import TopicType

# Ranks are kept as fractions of 2048 in the PrepareQueue, so a claim holds no more messages.
MESSAGES_A_CLAIM = 2048
# The ordinal of a claim within its slot and batch is 0 to 15.
CLAIMS_A_BATCH = 16


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One claim to make, of up to ``limit`` messages. ordinal: its place in the slot's batch."""

    slot: int
    ordinal: int
    limit: int = MESSAGES_A_CLAIM


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message as its consumer gets it.

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
    fenced: whether a higher epoch owns the slot, so nothing was taken.
    forgotten: whether Redis has forgotten the batch's plan, so the claim was not made.
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
        """The scores that the messages had in the store."""
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
    """How many messages a claim of one slot could take now, and how many others hold.

    held: due messages that another consumer or epoch holds back. next_ms: the time until a wait or
    a lease ends, which may make more messages due; None where there is none.
    """

    slot: int
    due: int
    held: int
    next_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """A consumer's progress in one slot; zeros where it never was.

    settled: the batch up to which all is committed or given back. last_seq, last_ordinal: the last
    claim it made there.
    """

    run: int = 0
    settled: int = 0
    last_seq: int = 0
    last_ordinal: int = 0
    seen_ms: int = 0

    @staticmethod
    def parse(text: bytes | None) -> "Header":
        """Read what a script wrote, without the notes about plans, which only scripts need."""
        return Header(*map(int, text.split()[:5])) if text else Header()


class ConsumerSeen(NamedTuple):
    """A consumer of a topic.

    slots: how many slots know it. at_work: in how many of them it has claims to commit. ms_ago: the
    time since it last claimed, committed or renewed, by Redis' clock.
    """

    consumer: str
    slots: int
    at_work: int
    ms_ago: int


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A claim that a replay found. count: messages in it."""

    slot: int
    seq: int
    ordinal: int
    count: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Messages of one claim to roll back.

    delay_ms: the wait before they are delivered again; None for the topic's backoff.
    """

    slot: int
    claim_id: str
    contents: Sequence[bytes]
    delay_ms: int | None = None


class RollbackResult(NamedTuple):
    """How many messages were rolled back, and how many their claim no longer held."""

    rolled_back: int = 0
    left_alone: int = 0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit: messages claimed, moved on the way, and committed.

    records: how many claims it removed. held: the slots that had any. again: the slots where the
    batch was committed already, such as by a commit whose reply was lost.
    """

    claimed: int = 0
    moved: int = 0
    committed: int = 0
    records: int = 0
    held: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The size of one queue, how many of its messages are due, and its earliest time in ms.

    Due means that a message may be delivered now (store, retry), or that its lease has run out
    (prepare). oldest_ms: in the store, since when the oldest message is due; in prepare, the next
    deadline; in retry, the next retry; in the DeadQueue, the first death. None where the queue is
    empty or the type has no times.
    """

    count: int = 0
    due: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The queues of a topic, and its counters since it was made.

    Counters: accepted, merged, claimed, committed, rolledBack, dead, cancelled. accepted equals
    merged + committed + cancelled + dead + the messages in all queues except the DeadQueue; a
    message requeued from the DeadQueue is accepted once more.
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
        """The number of messages in all queues, including dead ones."""
        return sum(queue.count for queue in self.queues.values())
