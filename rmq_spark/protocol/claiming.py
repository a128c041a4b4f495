"""Requests of consumers: plan, claim, commit, roll back, and renew or end leases; and the pause."""

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

# The value of finished_by that stands for all runs.
EVERY_RUN = 0
# A consumer that was not seen for this long is forgotten: its checkpoint is probably deleted.
FORGET_CONSUMERS_MS = 30 * 24 * 3600 * 1000
# All keys of a slot, in the order of lua/include/slot.lua.
_ALL_KINDS = "store prepare retry dead claims first consumers stats"
# Reasons why claim.lua took nothing, as it returns them. After a third one, a pause, the claim is
# simply empty.
_FENCED, _PLAN_FORGOTTEN = 1, 2


def pause(queues: TopicQueues, paused: bool) -> Request[None]:
    """Mark all slots as paused, or as not paused. A paused slot makes no new claim."""
    calls = _calls("pause", queues, "consumers", queues.slots, [int(paused)])
    return Request(calls, lambda replies: None)


def plan(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, mark: str
) -> Request[None]:
    """Write the mark of a planned batch into the slots that the batch will claim from.

    mark: a random text. The batch's claims repeat it, and a slot that has lost it makes no claim.
    Raises Superseded if a newer run of the consumer has taken over.
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

    seq: the number of the batch. due_before_ms: the latest due time to claim; None for now. epochs:
    the epoch of each slot's owner in ZooKeeper. replay_only: read existing claims and make no new
    ones. mark: the text that plan wrote for this batch; empty for a consumer that claims each batch
    only once. A slot that is paused makes no new claim; the answer is an empty one.

    Raises Superseded if a newer run has taken over, Settled if the batch is committed, Lost if an
    existing claim is gone, and ExclusiveSlot if a slot takes no claim without an epoch.
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
    """List the claims of batches seq_from + 1 to seq_to in all slots, and renew their leases.

    Bars older runs from the slots. Raises Superseded.
    """
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
    """Commit the claims that this run made or replayed in these slots: the second phase.

    seq: the last batch to commit. since: the batch before the first one to commit. finished_by: an
    earlier run whose claims are committed as well, or EVERY_RUN. Other claims stay until their
    lease expires. Raises Superseded.
    """
    asked = list(slots)
    args = [consumer, run, seq, since, text_of(finished_by)]
    calls = _calls("commit", queues, "prepare claims first consumers stats", asked, args)
    return BoundedRequest(calls, 0, lambda replies: _commit_result(asked, replies))


def _commit_result(
    slots: Sequence[int], replies: Sequence[Sequence[Sequence[int]]]
) -> CommitResult:
    """Sum up the replies to a commit. replies: for each slot, those to its repeated call."""
    single = [reply for of_slot in replies for reply in of_slot]
    by_slot = list(zip(slots, replies, strict=True))
    return CommitResult(
        claimed=sum(reply[1] for reply in single),
        moved=sum(reply[2] for reply in single),
        committed=sum(reply[3] for reply in single),
        records=sum(reply[4] for reply in single),
        held=frozenset(slot for slot, of_slot in by_slot if any(reply[4] for reply in of_slot)),
        # Only the first reply counts: the first call itself settles the batch for the later ones.
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
    """Renew the leases of the claims that a consumer holds. The answer counts them by slot.

    since: the batch before the first one to renew. Raises Superseded.
    """
    asked = list(slots)
    calls = _calls("renew", queues, "claims consumers", asked, [consumer, run, lease_ms, since])
    return Request(calls, lambda replies: dict(zip(asked, replies, strict=True)))


def release(queues: TopicQueues, slots: Iterable[int], consumer: str, run: int) -> Request[int]:
    """End the leases of all claims that a consumer holds. The answer is the number of claims.

    Raises Superseded.
    """
    return Request(_calls("release", queues, "claims consumers", slots, [consumer, run]), sum)


def give_back(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, seq: int = 0
) -> BoundedRequest[int]:
    """Give back all messages that a consumer holds. The answer is the number of messages.

    They move as if their leases had expired. Bars older runs. seq: the last batch that the run
    asked for; a claim of that batch that arrives late is refused. Raises Superseded.
    """
    args = [consumer, run, seq, queues.definition.max_retries, queues.backoff]
    calls = _calls("give_back", queues, _ALL_KINDS, slots, args)
    return BoundedRequest(calls, 1, _sum_of_first)


def unread(
    queues: TopicQueues, slots: Iterable[int], consumer: str, run: int, seq: int
) -> Request[int]:
    """Mark the claims of a batch as undelivered. The answer is the number of claims.

    Their next delivery, or giving them back, costs no retry. Raises Superseded.
    """
    return Request(_calls("unread", queues, "claims consumers", slots, [consumer, run, seq]), sum)


def expire(queues: TopicQueues, slots: Iterable[int]) -> BoundedRequest[int]:
    """Give back all claims whose lease has expired. The answer is the number of messages.

    Forgets consumers that hold nothing and were not seen for 30 days.
    """
    args = [queues.definition.max_retries, queues.backoff, FORGET_CONSUMERS_MS]
    return BoundedRequest(_calls("expire", queues, _ALL_KINDS, slots, args), 2, _sum_of_first)


def rollbacks(queues: TopicQueues, wanted: Sequence[Rollback]) -> Request[RollbackResult]:
    """Roll back messages of claims. The answer sums up the results of all claims.

    A message that its claim no longer holds stays where it is. The consumer group comes from the
    consumer's name in the claim_id, or else from these queues. Raises InvalidOption for a text that
    is not a claim_id, or a delay that is out of bounds.
    """
    each = rollback_each(queues, wanted)
    return Request(each.calls, lambda replies: _sum_of(each.parse(replies)))


def rollback_each(queues: TopicQueues, wanted: Sequence[Rollback]) -> Request[list[RollbackResult]]:
    """Roll back messages like rollbacks. The answer is the result of each claim, in order."""
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
