"""Values that requests about claims take and return: claims, messages, headers, figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from typing import Any, NamedTuple

from rmq_spark.errors import ScriptFailed
from rmq_spark.protocol.bodies import NO_BODIES, Body, Headers, PackedBodies
from rmq_spark.protocol.names import ClaimId, claim_name, claimed_by
from rmq_spark.topics.definition import TopicDefinition
from rmq_spark.topics.keys import MOST_RETRIES, deliveries_of
from rmq_spark.topics.verdicts import Ending

# Redis is blocked for some 9 ms while it gives back so many messages. The scripts take up to 8192.
MESSAGES_A_CLAIM = 3072
# The claims of one slot and batch have the ordinals 0 to 15.
CLAIMS_A_SLOT = 16
# The most names of other claims that a caller guesses.
_NAMES_AT_MOST = 1024
# The first field of a record: see lua/include/records.lua.
RECORD_VERSION = b"1"


def retries_of(score: int, max_retries: int, charged: int) -> int:
    """Return the retries left of a message that a claim holds.

    score: the one that it had in the store. max_retries, charged: those of its claim.
    """
    left = deliveries_of(score) - 1 if score <= MOST_RETRIES else max_retries
    return max(0, left - charged)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A claim to make, of up to ``limit`` messages of a slot.

    ordinal: the number (0 to 15) of the claim among those of the same slot and batch. rows: the
    most messages to read now; None for all. others: the names of claims that probably hold messages
    of the slot, which saves a round trip. alone: whether the caller holds nothing else, so
    that it can get a message that may end it.
    """

    slot: int
    ordinal: int
    limit: int = MESSAGES_A_CLAIM
    rows: int | None = None
    others: tuple[str, ...] = ()
    alone: bool = False


class Delivered(NamedTuple):
    """A message as its consumer receives it.

    key: in a keyed topic what the message merges by; content is its payload then, which may be
    None. Else key is None. headers: names and values, in order. expires_at_ms: None if it does not.
    due_time_ms or priority, whichever the topic's type has, is set for a first delivery and None
    for a retry. delivery_count counts from 1. claim_id identifies the claim in a rollback.
    claimed_at_ms: when the claim was made, by Redis' clock; reading the claim again does not change
    it. The defaults are for tests of a function that takes a message.
    """

    content: bytes | None
    topic: str = ""
    slot: int = 0
    due_time_ms: int | None = None
    priority: int | None = None
    delivery_count: int = 1
    retries_left: int = MOST_RETRIES
    claim_id: str = ""
    claimed_at_ms: int = 0
    key: bytes | None = None
    headers: Headers = ()
    expires_at_ms: int | None = None

    @property
    def name(self) -> bytes:
        """What operations name the message by: its key in a keyed topic, else its content."""
        return self.key or self.content or b""


# Those of Delivered, each as long as there are messages, or endless.
Columns = tuple[Iterable[Any], ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The messages of one claim, or a part of them, in delivery order, column by column.

    score_texts: the scores that the messages had in the store, as decimal texts. A score of 16 or
    less is a number of retries left. claimed_at_ms: when the claim was made, by Redis' clock.
    max_retries: the topic's, at that time. charged: the number of deliveries to newer runs since
    then. forgotten: whether Redis has lost the plan of the batch, so that no claim was made. held:
    the number of messages of the whole claim. sealed: the number when it was made. first: the index
    of the first message among them. bodies: those of the messages, packed; empty if none has one.
    expired: the messages that making the claim found expired.
    """

    topic: str
    slot: int
    consumer: str
    seq: int
    ordinal: int
    run: int
    contents: Sequence[bytes]
    score_texts: Sequence[bytes]
    claimed_at_ms: int
    max_retries: int
    charged: int = 0
    forgotten: bool = False
    held: int = 0
    sealed: int = 0
    first: int = 0
    bodies: PackedBodies = NO_BODIES
    expired: int = 0

    @property
    def claim_id(self) -> str:
        """The text of the ClaimId, which identifies the claim in a rollback."""
        return str(ClaimId(self.consumer, self.seq, self.ordinal, self.run))

    @property
    def left(self) -> int:
        """The number of messages behind this part of the claim."""
        return self.held - self.first - len(self.contents)

    @property
    def scores(self) -> list[int]:
        """The whole parts of the scores in the store, in delivery order."""
        texts = self.score_texts
        if b"." in b"".join(texts):  # of a Priority topic; others are spared the second step
            return list(map(int, map(float, texts)))
        return list(map(int, texts))

    @property
    def retries_left(self) -> list[int]:
        """The number of retries that each message has left."""
        return self._retries_of(self.scores)

    def _retries_of(self, scores: list[int]) -> list[int]:
        of_first = max(0, self.max_retries - self.charged)
        if min(scores, default=0) > MOST_RETRIES:
            return [of_first] * len(scores)
        return [
            of_first if score > MOST_RETRIES else retries_of(score, self.max_retries, self.charged)
            for score in scores
        ]

    def messages(self, topic: TopicDefinition) -> Iterator[Delivered]:
        """Return the messages in delivery order, with the values that the topic's messages have."""
        return messages_of(self.columns(topic))

    def columns(self, topic: TopicDefinition) -> Columns:
        """Return the messages column by column, for ``messages_of``."""
        scores = self.scores
        lefts = self._retries_of(scores)
        firsts = [score if score > MOST_RETRIES else None for score in scores]
        counts = {left: max(1, self.max_retries - left + 1) for left in set(lefts)}
        packed = list(map(Body.parse, self.bodies))
        if topic.keyed and not packed:
            packed = [Body()] * len(lefts)
        return (
            [body.payload for body in packed] if topic.keyed else self.contents,
            repeat(self.topic),
            repeat(self.slot),
            firsts if topic.type.has_due_times else repeat(None),
            repeat(None) if topic.type.has_due_times else firsts,
            [counts[left] for left in lefts],
            lefts,
            repeat(self.claim_id),
            repeat(self.claimed_at_ms),
            self.contents if topic.keyed else repeat(None),
            [body.headers for body in packed] if packed else repeat(()),
            [body.expires_at_ms for body in packed] if packed else repeat(None),
        )


def messages_of(columns: Columns) -> Iterator[Delivered]:
    """Make messages of their columns, each when it is asked for."""
    # By columns: a message costs a quarter of what a call with twelve arguments does. Not by _make,
    # which is a function of Python.
    return map(partial(tuple.__new__, Delivered), zip(*columns, strict=False))


class OtherClaims:
    """The names of the other claims of a slot that hold messages, as far as they are known.

    While an answer is on its way to a distant caller, other consumers may commit and claim again.
    So that the caller does not come too late every time, it also names the claims that they will
    probably make next, of twice as many batches each time. A name without a claim does no harm.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._last_seqs: dict[str, int] = {}
        self._ahead = 0

    def learn(self, names: Sequence[str]) -> None:
        """Use the names in an answer, from the second answer on with those that may follow."""
        for name in names:
            consumer, seq, _ = name.rsplit(":", 2)
            self._last_seqs[consumer] = max(int(seq), self._last_seqs.get(consumer, 0))
        next_names = (
            claim_name(consumer, seq + ahead, 0)
            for ahead in range(self._ahead + 1)
            for consumer, seq in self._last_seqs.items()
        )
        guessed = islice(next_names, _NAMES_AT_MOST if self._ahead else 0)
        self.names = list(dict.fromkeys([*names, *guessed]))
        self._ahead = min(_NAMES_AT_MOST, max(2, 2 * self._ahead))


@dataclass(frozen=True, slots=True)
class SlotDue:
    """The number of messages in a slot that a claim could take now, and that others hold.

    held: due messages that another consumer, a higher epoch, a pause or a hold holds back. next_ms:
    the time until a message falls due, or a retry's wait, a lease or a hold ends; None if nothing
    of it is pending. expired: the names of claims whose lease has ended. Their messages count,
    but a claim can take them only after they were given back. live: the names of the other claims
    that hold messages. alone: whether a message is due that only a reader gets that has nothing
    else in progress. top: in a Priority topic, the highest priority that waits.
    """

    slot: int
    due: int
    held: int
    next_ms: int | None = None
    expired: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    alone: bool = False
    top: int = 0


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """What Redis notes of a claim, beside its messages; times are in ms.

    name: consumer:seq:ordinal. run: the run that has it, 0 if nobody got its messages. sealed,
    held: the number of messages that it took, and that it still has. moved, max_retries, charged,
    replayed, arrivals, expired: as in lua/include/records.lua.
    """

    name: str
    made_ms: int
    run: int
    deadline_ms: int
    sealed: int
    held: int
    moved: int
    max_retries: int
    charged: int
    replayed: int
    arrivals: int
    expired: int

    @property
    def consumer(self) -> str:
        """The consumer that made the claim."""
        return claimed_by(self.name)

    @staticmethod
    def parse(name: bytes, text: bytes) -> "ClaimRecord":
        """Parse the text that a script wrote. Raises ScriptFailed for that of another version."""
        version, *numbers = text.split()
        if version != RECORD_VERSION:
            raise ScriptFailed(
                f"The record of claim {name.decode()} was written by another version of rmq-spark. "
                "Let that version finish it: pause the topic, and wait until rmq show has 0 in "
                "prepare."
            )
        return ClaimRecord(name.decode(), *map(int, numbers))


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


class SlotHolders(NamedTuple):
    """Who reads a slot: the headers of all consumers that it knows, and its claims."""

    headers: dict[str, Header]
    claims: list[ClaimRecord]


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

    delay_ms: the wait before they are redelivered; None for the topic's backoff, or for none if
    they are uncharged. reasons: none, one for all messages, or one for each. holds: whether the
    claim's consumer group makes no new claim for so long.
    """

    slot: int
    claim_id: str
    contents: Sequence[bytes]
    delay_ms: int | None = None
    reasons: Sequence[str] = ()
    ending: Ending = Ending.RETRY
    holds: bool = False


class RollbackResult(NamedTuple):
    """The number of messages that were rolled back, and that their claim no longer held."""

    rolled_back: int = 0
    left_alone: int = 0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit.

    claimed: messages that the claims took. moved: messages that making the claims took from the
    retry queue. expired: messages that making them found expired. committed: messages that were
    removed. records: the number of claims removed. held: the slots that had such claims. again: the
    slots where the batch was already committed, such as by a commit whose reply was lost. gone: the
    number of claims by slot that the consumer made for the last batch and that were given back, or
    that somebody has deleted. claimed_of: claimed, by slot.
    """

    claimed: int = 0
    moved: int = 0
    committed: int = 0
    records: int = 0
    expired: int = 0
    held: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    gone: Mapping[int, int] = field(default_factory=dict)
    claimed_of: Mapping[int, int] = field(default_factory=dict)


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


# The states of messages, in the order in which they are shown.
STATES = ("due", "delayed", "prepared", "retry", "dead")


@dataclass(frozen=True, slots=True)
class Figures:
    """The sizes of a topic's queues, and its counters since it was created.

    The counters are accepted, merged, claimed, committed, rolledBack, dead, cancelled, expired,
    forgotten and repeated. accepted equals merged + committed + cancelled + dead + expired + the
    messages in all queues except the dead queue. A message requeued from the dead queue is accepted
    once more. forgotten counts dead messages that were deleted when their retention had ended;
    repeated, those that unique_for refused. deaths: the messages that died, by the class of the
    reason: that of an exception, "lease ran out", "given back", "expired", "none" or "other".
    """

    store: QueueFigures
    prepare: QueueFigures
    retry: QueueFigures
    dead: QueueFigures
    counters: dict[str, int] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)

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
    def states(self) -> dict[str, int]:
        """The number of messages in each state, as progress reports name these.

        due: in the store. prepared: claimed. retry: in the retry queue, due or not.
        """
        store, delayed = self.store, self.store.count - self.store.due
        counts = store.due, delayed, self.prepare.count, self.retry.count, self.dead.count
        return dict(zip(STATES, counts, strict=True))

    @property
    def messages(self) -> int:
        """The number of messages in all queues, including dead ones."""
        return sum(queue.count for queue in self.queues.values())


class Overview(NamedTuple):
    """What is in a topic's queues in one consumer group, and the consumers that Redis remembers.

    now_ms: Redis' time when they were counted. consumers: the last seen first. held_until_ms: until
    when a hold or the rate limit keeps back what is due; None if neither does. used: the part of
    its share that waits in the fullest slot, by unit of the limit, "messages" or "bytes".
    """

    now_ms: int
    figures: Figures
    consumers: list[ConsumerSeen]
    held_until_ms: int | None
    used: dict[str, float]
