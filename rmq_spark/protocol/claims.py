"""Values that requests about claims take and return: claims, messages, headers, figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_spark.protocol.names import ClaimId
from rmq_spark.topics.scores import MOST_RETRIES
from rmq_spark.topics.topic_types import TopicType

# The PrepareQueue stores a message's rank as a fraction of 2048, so a claim holds no more.
MESSAGES_A_CLAIM = 2048
# The claims of one slot and batch have the ordinals 0 to 15.
CLAIMS_A_SLOT = 16


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A claim to make, of up to ``limit`` messages of a slot.

    ordinal: the number (0 to 15) of the claim among those of the same slot and batch.
    """

    slot: int
    ordinal: int
    limit: int = MESSAGES_A_CLAIM


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as its consumer receives it.

    due_time_ms or priority, whichever the topic's type has, is set for a first delivery and None
    for a retry. delivery_count counts from 1. claim_id identifies the claim in a rollback.
    claimed_at_ms: when the claim was made, by Redis' clock; reading the claim again does not change
    it.
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

    score_text: the scores that the messages had in the store, as decimal texts with spaces between
    them. A score of 16 or less is a number of retries left.
    retries_left: one number for each message, or a single number if all are first deliveries.
    claimed_at_ms: when the claim was made, by Redis' clock.
    moved: the number of messages that making this claim gave back or took from the retry queue.
    fenced: whether a higher epoch owns the slot, so that nothing was taken.
    forgotten: whether Redis has lost the plan of the batch, so that no claim was made.
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
        """The text of the ClaimId, which identifies the claim in a rollback."""
        return str(ClaimId(self.consumer, self.seq, self.ordinal, self.run))

    @property
    def scores(self) -> list[int]:
        """The scores that the messages had in the store, in delivery order."""
        return [int(text) for text in self.score_text.split()]

    def messages(self, topic_type: TopicType) -> Iterator[Delivered]:
        """Yield the messages in delivery order, with the values that the topic's type has."""
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
    """The number of messages in a slot that a claim could take now, and that others hold.

    held: due messages that another consumer, a higher epoch or a pause holds back. next_ms: the
    time until the wait of a retry or a lease ends, when more messages may become due; None if
    neither is pending.
    """

    slot: int
    due: int
    held: int
    next_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """A consumer's progress in a slot; all zeros in a slot that the consumer has not used.

    settled: the batch up to which everything is committed or given back. last_seq, last_ordinal:
    the last claim that it made there. seen_ms: when it last claimed, committed or renewed there.
    """

    run: int = 0
    settled: int = 0
    last_seq: int = 0
    last_ordinal: int = 0
    seen_ms: int = 0

    @staticmethod
    def parse(text: bytes | None) -> "Header":
        """Parse the text that a script wrote; None gives zeros.

        Leaves out the fields about plans, which only scripts need.
        """
        return Header(*map(int, text.split()[:5])) if text else Header()


class ConsumerSeen(NamedTuple):
    """A consumer of a topic, and when Redis last saw it.

    slots: the number of slots that know it. held_slots: the number of slots where it has claims to
    commit. ms_ago: the time since it last claimed, committed or renewed, by Redis' clock.
    """

    consumer: str
    slots: int
    held_slots: int
    ms_ago: int


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A claim that a replay listed. count: the number of messages that the claim took."""

    slot: int
    seq: int
    ordinal: int
    count: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Messages of one claim to roll back.

    delay_ms: the wait before they are redelivered; None for the topic's backoff.
    """

    slot: int
    claim_id: str
    contents: Sequence[bytes]
    delay_ms: int | None = None


class RollbackResult(NamedTuple):
    """The number of messages that were rolled back, and that their claim no longer held."""

    rolled_back: int = 0
    left_alone: int = 0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit.

    claimed: messages that the claims took. moved: messages that making the claims gave back or took
    from the retry queue. committed: messages that were removed. records: the number of claims
    removed. held: the slots that had such claims. again: the slots where the batch was already
    committed, such as by a commit whose reply was lost.
    """

    claimed: int = 0
    moved: int = 0
    committed: int = 0
    records: int = 0
    held: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The size of one queue, its number of due messages, and its earliest time in ms.

    A message is due if it may be delivered now (store, retry), or if its lease has expired
    (prepare). oldest_ms: in the store, the time since which the oldest due message has been due; in
    prepare, the next deadline; in retry, the next retry; in the dead queue, the first death. None
    if there is no such message, or if the type has no times.
    """

    count: int = 0
    due: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The sizes of a topic's queues, and its counters since it was created.

    The counters are accepted, merged, claimed, committed, rolledBack, dead and cancelled. accepted
    equals merged + committed + cancelled + dead + the messages in all queues except the dead queue.
    A message requeued from the dead queue is accepted once more.
    """

    store: QueueFigures
    prepare: QueueFigures
    retry: QueueFigures
    dead: QueueFigures
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def queues(self) -> dict[str, QueueFigures]:
        """The figures of each queue, by its name."""
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
