"""Requests of consumers: plan, claim, commit, and renew or end leases; and the pause."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmq_spark.errors import LeaseLost
from rmq_spark.protocol.bodies import NO_BODIES, PackedBodies
from rmq_spark.protocol.calls import (
    ALL_KINDS,
    Call,
    Conversation,
    Read,
    Request,
    TopicQueues,
    fields_of,
    repeated,
    text_of,
)
from rmq_spark.protocol.claims import Claim, ClaimRequest, CommitResult, ListedClaim, OtherClaims
from rmq_spark.protocol.names import claim_name
from rmq_spark.topics.definition import BURY, SLOT


def open_run(
    key: str,
    topics: str,
    known_run: int,
    earlier: str | None = None,
    replays: int | None = None,
    forget_ms: int = 0,
) -> Request[int]:
    """Begin a run of a consumer. The answer is the number of the run.

    topics: the topics that the consumer reads, as text. known_run: the highest run in any of its
    headers. earlier: the topics that it read when it was last seen, if they may differ. replays:
    the batch that the run replays, if any. forget_ms: forget the consumer if it starts no other run
    for so long; 0: never. Raises CheckpointRefused if the key belongs to a consumer of other
    topics.
    """
    before = topics if earlier is None else earlier
    args = [topics, known_run, before, text_of(replays), forget_ms]
    return Request([Call("begin_run", [key], args)], lambda replies: int(replies[0]))


def replayed_by(key: str, seq: int) -> Request[int | None]:
    """Look up the run that last replayed a batch; None if Redis knows no such run."""

    def read(replies: list[bytes | None]) -> int | None:
        batch, run = map(int, replies[0].split()) if replies[0] else (None, None)
        return run if batch == seq else None

    return Request([("HGET", key, "replayed")], read)


def topics_of(key: str) -> Request[str | None]:
    """Look up the topics that the consumer's last run read; None before its first run."""
    return Request([("HGET", key, "topic")], lambda replies: replies[0] and replies[0].decode())


def note_committed(key: str, seq: int) -> Request[None]:
    """Note that the consumer has committed everything up to batch ``seq``."""
    return Request([Call("note_committed", [key], [seq])], lambda replies: None)


def committed_up_to(key: str) -> Request[int]:
    """Look up the batch up to which everything is noted as committed; 0 at first."""
    return Request([("HGET", key, "settled")], lambda replies: int(replies[0] or 0))


# The value of finished_by that stands for all runs.
EVERY_RUN = 0
# Answers of claim.lua: the plan of the batch is lost; the caller must name more claims of the slot.
_PLAN_FORGOTTEN, _OTHERS_UNNAMED = 2, -1
# Redis runs a pipeline without a break, and a claim of large messages takes it 20 ms.
CLAIMS_A_PIPELINE = 16
# How often a claim is read before its messages count as lost. A rollback by another process, or a
# script that Redis has forgotten, can come between a claim and the command that reads it.
_READS_AT_MOST = 3
_GO_ON_WITHOUT = (
    "Somebody has deleted the missing ones. To go on without them, wait until the lease ends, run "
    "rmq expire TOPIC, and start the reader again."
)


# Instead of a time.
PAUSE_ENDS, HOLD_ENDS = -1, -2


def pause(queues: TopicQueues, for_ms: int | None) -> Request[None]:
    """Let no slot make a new claim for a while, which is a hold; None: without an end, a pause.

    PAUSE_ENDS ends a pause now, but no hold, and HOLD_ENDS a hold, but no pause.
    """
    calls = queues.calls("pause", "consumers store", queues.slots, [text_of(for_ms)])
    return Request(calls, lambda replies: None)


def grant(
    queues: TopicQueues, wanted: int, *, slot: int = 0, take: bool = True
) -> Request[tuple[int, int]]:
    """Take permits to claim so many messages of a topic with a rate limit; below 0, return them.

    slot: whose permits, if each slot has its own; else 0. take: whether to take them, or only to
    ask. Returns how many were granted, and if none, the ms until there are enough of them.
    """
    topic = queues.definition
    args = [wanted, repr(topic.interval_ms), topic.most_at_once, int(take), topic.messages_a_claim]
    call = Call("grant", [queues.keys.rate(slot)], args)
    return Request([call], lambda replies: tuple(replies[0]))


def grants(
    queues: TopicQueues, wanted: Mapping[int, int], *, take: bool = True
) -> Request[dict[int, tuple[int, int]]]:
    """Take permits like grant, for messages of several slots. Returns the answers by slot.

    If the slots share a limit, it serves them in order; unless it is only asked, what each could
    get.
    """
    if queues.definition.rate_by == SLOT:
        asked = [grant(queues, limit, slot=slot, take=take) for slot, limit in wanted.items()]
        return Request(
            [call for one in asked for call in one.calls],
            lambda replies: dict(zip(wanted, map(tuple, replies), strict=True)),
        )

    def read(replies: list[Any]) -> dict[int, tuple[int, int]]:
        left, wait_ms = replies[0]
        answers = {}
        for slot, limit in wanted.items():
            answers[slot] = min(limit, left), wait_ms
            left -= answers[slot][0] * take
        return answers

    return Request(grant(queues, sum(wanted.values()), take=take).calls, read)


def plan(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, mark: str
) -> Request[None]:
    """Write the mark of a planned batch into the slots that the batch will claim from.

    mark: a random text. The batch's claims repeat it, and a slot that has lost it makes no claim.
    Raises Fenced if a newer run of the consumer has taken over.
    """
    calls = queues.calls("plan", "consumers stats store retry", slots, [consumer, run, mark])
    return Request(calls, lambda replies: None)


@dataclass(frozen=True)
class Claiming:
    """The terms of claims of one batch.

    run: the run that claims. seq: the number of the batch. due_before_ms: the latest due time to
    claim; None for now. epochs: the epoch of each slot's owner in ZooKeeper. replay_only: read
    existing claims and make no new ones. mark: the text that plan wrote for this batch; empty for a
    consumer that claims each batch only once. claims_a_pipeline: how many are made in one round
    trip, more than CLAIMS_A_PIPELINE if the messages are known to be small.
    """

    consumer: str
    run: int
    seq: int
    lease_ms: int
    due_before_ms: int | None = None
    epochs: Mapping[int, int | None] | None = None
    replay_only: bool = False
    mark: str = ""
    claims_a_pipeline: int = CLAIMS_A_PIPELINE


def claim(
    queues: TopicQueues, requests: Sequence[ClaimRequest], terms: Claiming
) -> Conversation[list[Claim]]:
    """Make claims, or read existing ones again: the first phase of delivery.

    A slot that is paused makes no new claim; the answer is an empty one. Raises Fenced if a
    newer run has taken over, AlreadyCommitted if the batch is committed, LeaseLost if an existing
    claim or some of its messages are gone, and ExclusiveSlot if a slot takes no claim without an
    epoch.
    """
    claims: dict[ClaimRequest, Claim] = {}
    # One claim of a slot at a time: a later one that overtakes an earlier one would bar it.
    for ordinal in sorted({request.ordinal for request in requests}):
        asked = [request for request in requests if request.ordinal == ordinal]
        claims |= yield from _claims_of_slots(queues, asked, terms)
    return [claims[request] for request in requests]


def _claims_of_slots(
    queues: TopicQueues, requests: Sequence[ClaimRequest], terms: Claiming
) -> Conversation[dict[ClaimRequest, Claim]]:
    claims: dict[ClaimRequest, Claim] = {}
    others = {
        request: OtherClaims([*request.others, *_earlier_claims(terms, request)])
        for request in requests
    }
    reads = dict.fromkeys(requests, 0)
    left = list(requests)
    while left:
        calls: list[Call | Read] = []
        for request in left:
            calls += claim_calls(queues, request, terms, others[request].names)
            calls.append(("ZCARD", _key_of(queues, request, terms)))
        replies = yield Request(calls, list, len(calls) // len(left) * terms.claims_a_pipeline)
        asked, left = left, []
        for at, request in enumerate(asked):
            reply, bodies, rows, size = replies[4 * at : 4 * at + 4]
            if reply[0] == _OTHERS_UNNAMED:
                others[request].learn([name.decode() for name in reply[1:]])
                left.append(request)
                continue
            made = claim_of(queues, request, terms, reply, rows)
            # Counted behind the read: nothing left the claim between the script and the read, so
            # bodies and messages stand in the same order.
            if size == made.held and len(made.contents) == min(size, request.rows or size):
                claims[request] = with_bodies(queues, made, bodies)
                continue
            reads[request] += 1
            if reads[request] == _READS_AT_MOST:
                name = claim_name(terms.consumer, terms.seq, request.ordinal)
                raise LeaseLost(
                    f"Claim {name} of topic {queues.definition.name}, slot {request.slot}, should "
                    f"hold {made.held} messages, but Redis has {size} of them. {_GO_ON_WITHOUT}"
                )
            left.append(request)
    return claims


def _key_of(queues: TopicQueues, request: ClaimRequest, terms: Claiming) -> str:
    name = claim_name(terms.consumer, terms.seq, request.ordinal)
    return queues.keys.claim(request.slot, name)


def _earlier_claims(terms: Claiming, request: ClaimRequest) -> list[str]:
    """Name the claims that the same batch has probably made in the slot before."""
    return [claim_name(terms.consumer, terms.seq, earlier) for earlier in range(request.ordinal)]


def claim_calls(
    queues: TopicQueues, request: ClaimRequest, terms: Claiming, others: Sequence[str]
) -> tuple[Call, Read, Read]:
    """Return the call that makes a claim, and the commands that read its bodies and messages.

    others: the names of all other claims of the slot that hold messages, as far as they are known.
    """
    keys, slot = queues.keys, request.slot
    name = claim_name(terms.consumer, terms.seq, request.ordinal)
    own, own_bodies = queues.claims_and_bodies(slot, [name])
    call = Call(
        "claim",
        [
            *queues.keys_of(slot, ALL_KINDS),
            *(own, own_bodies, keys.part(slot)),
            *keys.claims_of(slot, others),
        ],
        [
            *(terms.consumer, terms.run, terms.seq, request.ordinal, request.limit, terms.lease_ms),
            *(text_of(terms.due_before_ms), text_of((terms.epochs or {}).get(slot))),
            *(int(terms.replay_only), queues.descending, queues.definition.max_retries),
            *(terms.mark, int(queues.definition.on_expiry == BURY), int(request.alone), *others),
        ],
    )
    return call, ("HGETALL", own_bodies), _read(queues, own, 0, request.rows)


def _read(queues: TopicQueues, own: str, first: int, rows: int | None) -> Read:
    """Return the command that reads messages of a claim. rows: how many; None for all."""
    order = ("REV",) if queues.descending else ()
    return ("ZRANGE", own, first, -1 if rows is None else first + rows - 1, *order, "WITHSCORES")


def claim_of(
    queues: TopicQueues,
    request: ClaimRequest,
    terms: Claiming,
    reply: Sequence[Any],
    rows: Sequence[Any],
) -> Claim:
    """Turn the replies to claim_calls into a claim without its bodies."""
    held, why_nothing, _, claimed_at_ms, max_retries, charged, sealed, expired = reply
    contents, scores = _columns_of(rows) if held else ([], [])
    return Claim(
        topic=queues.definition.name,
        slot=request.slot,
        consumer=terms.consumer,
        seq=terms.seq,
        ordinal=request.ordinal,
        run=terms.run,
        contents=contents,
        score_texts=scores,
        claimed_at_ms=claimed_at_ms,
        max_retries=max_retries,
        charged=charged,
        forgotten=why_nothing == _PLAN_FORGOTTEN,
        held=held,
        sealed=sealed,
        expired=expired,
    )


def read_on(queues: TopicQueues, part: Claim, terms: Claiming, rows: int) -> Conversation[Claim]:
    """Read the next part of a claim. part: the one before it. rows: the most messages to read.

    If messages of the claim were rolled back in the meantime, reads all that is left of it. Raises
    LeaseLost like claim.
    """
    name = claim_name(part.consumer, part.seq, part.ordinal)
    own, own_bodies = queues.claims_and_bodies(part.slot, [name])
    first = part.first + len(part.contents)
    # Counted behind the read: messages only leave a claim, so all were there before.
    reads = [("HGETALL", own_bodies), _read(queues, own, first, rows), ("ZCARD", own)]
    bodies, found, held = yield Request(reads, list)
    if held == part.held:
        contents, scores = _columns_of(found)
        next_part = replace(part, contents=contents, score_texts=scores, first=first)
        return with_bodies(queues, next_part, bodies)
    request = ClaimRequest(part.slot, part.ordinal)
    [whole] = yield from claim(queues, [request], terms)
    start = _rank_behind(part, whole, bool(queues.descending))
    return replace(
        whole,
        contents=whole.contents[start:],
        score_texts=whole.score_texts[start:],
        bodies=whole.bodies[start:],
        first=start,
    )


def _rank_behind(part: Claim, whole: Claim, descending: bool) -> int:
    """Return the index of the first message of a claim behind a part that was read before."""
    last = (float(part.score_texts[-1]), part.contents[-1])
    rows = zip(map(float, whole.score_texts), whole.contents, strict=True)
    return sum(row >= last if descending else row <= last for row in rows)


def _columns_of(rows: Sequence[Any]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return contents and scores of a ZRANGE, from a reply of RESP2 or RESP3 (pairs)."""
    if rows and isinstance(rows[0], list):
        return [content for content, _ in rows], [b"%.17g" % score for _, score in rows]
    return rows[::2], rows[1::2]


def replay(
    queues: TopicQueues, consumer: str, run: int, seq_from: int, seq_to: int, lease_ms: int
) -> Request[list[ListedClaim]]:
    """List the claims of batches seq_from + 1 to seq_to in all slots, and renew their leases.

    Bars older runs from the slots. Raises Fenced.
    """
    args = [consumer, run, seq_from, seq_to, lease_ms]
    calls = queues.calls("replay", "claims consumers stats", queues.slots, args)
    return Request(
        calls,
        lambda replies: [
            ListedClaim(slot, *flat[at : at + 3])
            for slot, flat in zip(queues.slots, replies, strict=True)
            for at in range(0, len(flat), 3)
        ],
    )


def commit(
    queues: TopicQueues,
    slots: Iterable[int],
    consumer: str,
    run: int,
    seq: int | Mapping[int, int],
    *,
    since: int | Mapping[int, int] = 0,
    finished_by: int | None = None,
    expected: Mapping[int, Sequence[str]] | None = None,
) -> Conversation[CommitResult]:
    """Commit the claims that this run made or replayed in some slots: the second phase.

    seq: the last batch to commit. since: the batch before the first one to commit. Both in all
    slots or by slot. finished_by: an earlier run whose claims are committed as well, or EVERY_RUN.
    expected: the names of claims that are probably there, by slot, which saves a round trip. Other
    claims stay until their lease expires. Raises Fenced.
    """
    asked, names_of = list(slots), expected or {}
    seqs, sinces = _by_slot(asked, seq), _by_slot(asked, since)

    def call(slot: int, names: Sequence[str]) -> Call:
        args = [consumer, run, seqs[slot], sinces[slot], text_of(finished_by)]
        return commit_call(queues, slot, args, names)

    def next_call(at: int, reply: Sequence[Any]) -> Call | None:
        names = [name.decode() for name in reply[7:]]
        return call(asked[at], names) if names else None

    calls = [call(slot, names_of.get(slot, ())) for slot in asked]
    return _commit_result(asked, (yield from repeated(calls, next_call)))


def _by_slot(slots: Sequence[int], given: int | Mapping[int, int]) -> Mapping[int, int]:
    return given if isinstance(given, Mapping) else dict.fromkeys(slots, given)


def commit_call(queues: TopicQueues, slot: int, args: Sequence[Any], names: Sequence[str]) -> Call:
    """Return the call that commits claims of a slot. names: those that it may commit."""
    keys = queues.keys_of(slot, "claims consumers stats")
    return Call("commit", [*keys, *queues.claims_and_bodies(slot, names)], [*args, *names])


def _commit_result(
    slots: Sequence[int], replies: Sequence[Sequence[Sequence[Any]]]
) -> CommitResult:
    single = [reply for of_slot in replies for reply in of_slot]
    by_slot = list(zip(slots, replies, strict=True))
    return CommitResult(
        claimed=sum(reply[0] for reply in single),
        moved=sum(reply[1] for reply in single),
        committed=sum(reply[2] for reply in single),
        records=sum(reply[3] for reply in single),
        expired=sum(reply[5] for reply in single),
        held=frozenset(slot for slot, of_slot in by_slot if any(reply[3] for reply in of_slot)),
        # Only the first reply counts: the first call itself settles the batch for the later ones.
        again=frozenset(slot for slot, of_slot in by_slot if of_slot[0][4]),
        gone={slot: of_slot[0][6] for slot, of_slot in by_slot if of_slot[0][6]},
        claimed_of={slot: sum(reply[0] for reply in of_slot) for slot, of_slot in by_slot},
    )


def renew(
    queues: TopicQueues,
    slots: Iterable[int],
    consumer: str,
    run: int,
    lease_ms: int,
    *,
    since: int | Mapping[int, int] = 0,
) -> Request[dict[int, int]]:
    """Renew the leases of the claims that a consumer holds. The answer counts them by slot.

    since: the batch before the first one to renew, in all slots or by slot. Raises Fenced.
    """
    asked = list(slots)
    since_of = _by_slot(asked, since)
    calls = [
        Call(
            "renew",
            queues.keys_of(slot, "claims consumers"),
            [consumer, run, lease_ms, since_of[slot]],
        )
        for slot in asked
    ]
    return Request(calls, lambda replies: dict(zip(asked, replies, strict=True)))


def release(queues: TopicQueues, slots: Iterable[int], consumer: str, run: int) -> Request[int]:
    """End the leases of all claims that a consumer holds. The answer is the number of claims.

    Raises Fenced.
    """
    return Request(queues.calls("release", "claims consumers store", slots, [consumer, run]), sum)


def unread(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, seq: int
) -> Request[int]:
    """Mark the claims of a batch as undelivered. The answer is the number of claims.

    Their next delivery, or giving them back, costs no retry. Raises Fenced.
    """
    return Request(queues.calls("unread", "claims consumers", slots, [consumer, run, seq]), sum)


def with_bodies(queues: TopicQueues, part: Claim, fields: Any) -> Claim:
    """Add the bodies to a claim or a part of it. Raises LeaseLost if somebody has deleted them.

    fields: the hash of the claim's bodies, read while no message left the claim.
    """
    bodies = PackedBodies.of_claim(dict(fields_of(fields)))
    if not part.contents or not (bodies or queues.definition.keyed):
        return replace(part, bodies=NO_BODIES)
    if len(bodies) != part.held:
        raise LeaseLost(
            f"Claim {part.claim_id} of topic {part.topic}, slot {part.slot}, should have "
            f"{part.held} bodies, but Redis has {len(bodies)} of them. "
            f"{_GO_ON_WITHOUT}"
        )
    return replace(part, bodies=bodies[part.first : part.first + len(part.contents)])
