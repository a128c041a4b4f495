"""Requests of consumers: plan, claim, commit, roll back, and renew or end leases."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol.calls import BoundedRequest, Call, Request, text_of
from rmq_spark.protocol.chunks import chunks
from rmq_spark.protocol.claims import (
    MESSAGES_A_CLAIM,
    Claim,
    ClaimRequest,
    CommitResult,
    ListedClaim,
    Rollback,
    RollbackResult,
)
from rmq_spark.protocol.names import ClaimId, ConsumerName
from rmq_spark.protocol.topic_queues import TopicQueues
from rmq_spark.topics.durations import LONGEST_DURATION_MS

# Stands for whichever run it was.
EVERY_RUN = 0
# After so long, a consumer's checkpoint is taken to be gone for good.
FORGET_CONSUMERS_MS = 30 * 24 * 3600 * 1000
# The keys of a slot that a script needs to give messages back.
_ALL_KINDS = "store prepare retry dead claims first consumers stats"
# The reasons for which claim.lua takes nothing.
_FENCED, _PLAN_FORGOTTEN = 1, 2


def plan(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, mark: str
) -> Request[None]:
    """Leave a batch's mark in the slots that are about to give messages to it.

    mark: a random text. Claims of the batch name it; a slot that has forgotten it makes none.
    Raises Superseded.
    """
    calls = [
        Call("plan", queues.keys_of(slot, "consumers"), [consumer, run, mark]) for slot in slots
    ]
    return Request(calls, lambda replies: None)


def claim(
    queues: TopicQueues,
    requests: Sequence[ClaimRequest],
    *,
    consumer: str,
    run: int,
    seq: int,
    lease_ms: int,
    due_before_ms: int | None = None,
    epochs: Mapping[int, int | None] | None = None,
    replay_only: bool = False,
    mark: str = "",
) -> Request[list[Claim]]:
    """Make claims, or read existing ones again: the first phase of delivery.

    mark: the text that plan left for this batch; empty for a consumer that asks for each batch
    only once. Raises Superseded, Settled, Lost or ExclusiveSlot.
    """
    descending, backoff = queues.descending, queues.backoff
    most_retries = queues.definition.max_retries
    calls = [
        Call(
            "claim",
            queues.keys_of(request.slot, _ALL_KINDS),
            [
                *(consumer, run, seq, request.ordinal, request.limit, lease_ms),
                *(text_of(due_before_ms), text_of((epochs or {}).get(request.slot))),
                *(int(replay_only), descending, most_retries, backoff),
                mark,
            ],
        )
        for request in requests
    ]
    return Request(
        calls,
        lambda replies: [
            _claim_of(queues, consumer, run, seq, request, reply)
            for request, reply in zip(requests, replies, strict=True)
        ],
    )


def _claim_of(
    queues: TopicQueues,
    consumer: str,
    run: int,
    seq: int,
    request: ClaimRequest,
    reply: Sequence[Any],
) -> Claim:
    moved, why_nothing, contents, score_text, retries_left, claimed_at_ms = reply
    definition = queues.definition
    return Claim(
        topic=definition.name,
        slot=request.slot,
        consumer=consumer,
        seq=seq,
        ordinal=request.ordinal,
        run=run,
        contents=contents,
        score_text=score_text,
        retries_left=retries_left or definition.max_retries,
        max_retries=definition.max_retries,
        claimed_at_ms=claimed_at_ms,
        moved=moved,
        fenced=why_nothing == _FENCED,
        forgotten=why_nothing == _PLAN_FORGOTTEN,
    )


def replay(
    queues: TopicQueues, consumer: str, run: int, seq_from: int, seq_to: int, lease_ms: int
) -> Request[list[ListedClaim]]:
    """List the claims of batches seq_from + 1 to seq_to in all slots, and bar older runs."""
    args = [consumer, run, seq_from, seq_to, lease_ms]
    calls = [
        Call("replay", queues.keys_of(slot, "claims consumers"), args) for slot in queues.slots
    ]
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
    seq: int,
    *,
    since: int = 0,
    finished_by: int | None = None,
) -> BoundedRequest[CommitResult]:
    """Commit the claims that this run has made or replayed in these slots: the second phase.

    seq: the last batch to commit. since: the batch after which to begin. finished_by: an earlier
    run whose claims are committed as well, or EVERY_RUN; other claims stay until their lease ends.
    """
    asked = list(slots)
    args = [consumer, run, seq, since, text_of(finished_by)]
    calls = _calls("commit", queues, "prepare claims first consumers stats", asked, args)
    return BoundedRequest(calls, 0, lambda replies: _commit_result(asked, replies))


def _commit_result(
    slots: Sequence[int], replies: Sequence[Sequence[Sequence[int]]]
) -> CommitResult:
    """Sum up the replies to a commit. replies: by slot, those to its first call, its second, ..."""
    single = [reply for of_slot in replies for reply in of_slot]
    by_slot = list(zip(slots, replies, strict=True))
    return CommitResult(
        claimed=sum(reply[1] for reply in single),
        moved=sum(reply[2] for reply in single),
        committed=sum(reply[3] for reply in single),
        records=sum(reply[4] for reply in single),
        held=frozenset(slot for slot, of_slot in by_slot if any(reply[4] for reply in of_slot)),
        # A later call finds the batch committed by the first.
        again=frozenset(slot for slot, of_slot in by_slot if of_slot[0][5]),
    )


def renew(
    queues: TopicQueues,
    slots: Iterable[int],
    consumer: str,
    run: int,
    lease_ms: int,
    *,
    since: int = 0,
) -> Request[dict[int, int]]:
    """Begin anew the leases of the claims that a consumer holds; answer how many, by slot.

    since: the batch after which to begin.
    """
    asked = list(slots)
    calls = _calls("renew", queues, "claims consumers", asked, [consumer, run, lease_ms, since])
    return Request(calls, lambda replies: dict(zip(asked, replies, strict=True)))


def release(queues: TopicQueues, slots: Iterable[int], consumer: str, run: int) -> Request[int]:
    """End the leases of all claims that a consumer holds; answer how many."""
    return Request(_calls("release", queues, "claims consumers", slots, [consumer, run]), sum)


def give_back(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, seq: int = 0
) -> BoundedRequest[int]:
    """Give back the messages that a consumer holds; answer how many.

    They move as if their leases had run out. Bars older runs. seq: the last batch that the run has
    asked for; a claim of it that comes late is refused. Raises Superseded.
    """
    args = [consumer, run, seq, queues.definition.max_retries, queues.backoff]
    calls = _calls("give_back", queues, _ALL_KINDS, slots, args)
    return BoundedRequest(calls, 1, _sum_of_first)


def unread(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, seq: int
) -> Request[int]:
    """Mark the claims of a batch as read by no task; answer how many."""
    return Request(_calls("unread", queues, "claims consumers", slots, [consumer, run, seq]), sum)


def expire(queues: TopicQueues, slots: Iterable[int]) -> BoundedRequest[int]:
    """Give back all claims whose lease has run out; answer how many messages.

    Forgets consumers that were not seen for 30 days.
    """
    args = [queues.definition.max_retries, queues.backoff, FORGET_CONSUMERS_MS]
    return BoundedRequest(_calls("expire", queues, _ALL_KINDS, slots, args), 2, _sum_of_first)


def rollbacks(queues: TopicQueues, wanted: Sequence[Rollback]) -> Request[RollbackResult]:
    """Roll back messages of claims; answer the sums.

    A message that its claim no longer holds is left alone. A claim belongs to the group in its
    consumer's name, else to the group of these queues. Raises InvalidOption for a text that is not
    a claim_id, and for a delay out of bounds.
    """
    each = rollback_each(queues, wanted)
    return Request(each.calls, lambda replies: _sum_of(each.read(replies)))


def rollback_each(queues: TopicQueues, wanted: Sequence[Rollback]) -> Request[list[RollbackResult]]:
    """Roll back messages like rollbacks; answer the result of each claim."""
    calls = [_rollback_calls(queues, one) for one in wanted]

    def read(replies: list[Any]) -> list[RollbackResult]:
        left = iter(replies)
        return [
            _sum_of(RollbackResult(*reply) for reply in islice(left, len(of_one)))
            for of_one in calls
        ]

    return Request([call for of_one in calls for call in of_one], read)


def _rollback_calls(queues: TopicQueues, one: Rollback) -> list[Call]:
    claim = ClaimId.parse(one.claim_id)
    if one.delay_ms is not None and not 0 <= one.delay_ms <= LONGEST_DURATION_MS:
        raise InvalidOption(
            f"The delay {one.delay_ms} ms is not accepted. Accepted: 0 to "
            f"{LONGEST_DURATION_MS} ms (366d); None for the topic's backoff."
        )
    most_retries = queues.definition.max_retries
    fixed = [claim.record, claim.run, text_of(one.delay_ms), most_retries, queues.backoff]
    group = ConsumerName.parse(claim.consumer).group or queues.keys.group
    keys = queues.of_group(group).keys_of(one.slot, _ALL_KINDS)
    return [
        Call("rollback", keys, [*fixed, *part]) for part in chunks(one.contents, MESSAGES_A_CLAIM)
    ]


def _sum_of(results: Iterable[RollbackResult]) -> RollbackResult:
    listed = list(results)
    return RollbackResult(
        sum(result.rolled_back for result in listed), sum(result.left_alone for result in listed)
    )


def _calls(
    script: str, queues: TopicQueues, kinds: str, slots: Iterable[int], args: list[Any]
) -> list[Call]:
    return [Call(script, queues.keys_of(slot, kinds), args) for slot in slots]


def _sum_of_first(replies: list[list[Any]]) -> int:
    return sum(reply[0] for of_slot in replies for reply in of_slot)
