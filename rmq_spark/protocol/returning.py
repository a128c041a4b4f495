"""Requests that return messages of claims to their queues, or delete what has ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from rmq_spark.errors import InvalidOption
from rmq_spark.protocol import reading
from rmq_spark.protocol.calls import (
    ALL_KINDS,
    Call,
    Conversation,
    Request,
    TopicQueues,
    repeated,
    text_of,
    while_more,
)
from rmq_spark.protocol.claiming import HOLD_ENDS, grants, pause
from rmq_spark.protocol.claims import Rollback, RollbackResult, SlotDue
from rmq_spark.protocol.names import ClaimId, ConsumerName, claimed_by, rest_name
from rmq_spark.protocol.packing import BYTES_A_CALL, chunks_in_bytes
from rmq_spark.topics.keys import topics_key
from rmq_spark.topics.parsing import LONGEST_DURATION_MS
from rmq_spark.topics.verdicts import Ending, Failure

# A consumer that was not seen for this long is forgotten: its checkpoint is probably deleted.
FORGET_CONSUMERS_MS = 30 * 24 * 3600 * 1000
# A rollback moves messages one by one, and takes 3 to 7 us for each: less than 10 ms
# (bench/stalls.py).
MESSAGES_A_ROLLBACK = 1024
# Redis runs a pipeline of small requests without a break: 8 full calls of forget block it for
# 40 ms, and of give_back for 80 ms.
FORGETS_A_PIPELINE = GIVE_BACKS_A_PIPELINE = 8


def grouped(messages: Iterable[tuple[int, str, bytes, Failure]]) -> list[Rollback]:
    """Group messages into one rollback for each slot, claim, ending and delay, in order.

    messages: the slot, claim id, content and failure of each.
    """
    wanted: dict[tuple[int, str, Ending, int | None, bool], list[tuple[bytes, str]]] = {}
    for slot, claim_id, content, failure in messages:
        together = slot, claim_id, failure.ending, failure.delay_ms, failure.holds
        wanted.setdefault(together, []).append((content, failure.reason))
    rollbacks = []
    for (slot, claim_id, ending, delay_ms, holds), found in wanted.items():
        reasons = [reason for _, reason in found]
        contents = [content for content, _ in found]
        one = reasons[: 1 if len(set(reasons)) == 1 else None]
        rollbacks.append(Rollback(slot, claim_id, contents, delay_ms, one, ending, holds))
    return rollbacks


def rollbacks(queues: TopicQueues, wanted: Sequence[Rollback]) -> Conversation[RollbackResult]:
    """Roll back messages of claims. The answer sums up the results of all claims.

    A message that its claim no longer holds stays where it is. The consumer group comes from the
    consumer's name in the claim_id, or else from these queues. Raises InvalidOption for a text that
    is not a claim_id, or a delay that is out of bounds.
    """
    return _sum_of((yield from rollback_each(queues, wanted)))


def rollback_each(
    queues: TopicQueues, wanted: Sequence[Rollback]
) -> Conversation[list[RollbackResult]]:
    """Roll back messages like rollbacks. The answer is the result of each claim, in order."""
    yield from hold(queues, _holds_of(queues, wanted))
    calls = [_rollback_calls(queues, one) for one in wanted]

    def read(replies: list[Any]) -> list[RollbackResult]:
        left = iter(replies)
        return [
            _sum_of(RollbackResult(*reply) for reply in islice(left, len(of_one)))
            for of_one in calls
        ]

    results: list[RollbackResult] = yield Request(list(chain.from_iterable(calls)), read)
    return results


def hold(queues: TopicQueues, for_ms: Mapping[str, int]) -> Conversation[None]:
    """Hold groups of a topic: let them claim nothing for some ms; HOLD_ENDS ends a hold."""
    for group, ms in for_ms.items():
        yield pause(queues.of_group(group), ms)
    topic, known = queues.definition.name, topics_key(queues.keys.prefix)
    if for_ms and not (yield Request([("HEXISTS", known, topic)], lambda replies: replies[0])):
        for group in for_ms:  # deleted meanwhile: a new topic must not find the marks
            yield pause(queues.of_group(group), HOLD_ENDS)


def _holds_of(queues: TopicQueues, wanted: Iterable[Rollback]) -> dict[str, int]:
    """Return for how long messages hold their groups, if their function has asked for that."""
    longest: dict[str, int] = {}
    for one in wanted:
        if one.holds and one.delay_ms:
            group = _group_of(queues, ClaimId.parse(one.claim_id))
            longest[group] = max(longest.get(group, 0), one.delay_ms)
    return longest


def _group_of(queues: TopicQueues, claim: ClaimId) -> str:
    return ConsumerName.parse(claim.consumer).group or queues.keys.group


def _rollback_calls(queues: TopicQueues, one: Rollback) -> list[Call]:
    claim = ClaimId.parse(one.claim_id)
    if one.delay_ms is not None and not 0 <= one.delay_ms <= LONGEST_DURATION_MS:
        raise InvalidOption(
            f"The delay {one.delay_ms} ms is not accepted. Accepted: 0 to "
            f"{LONGEST_DURATION_MS} ms (366d); None for the topic's backoff."
        )
    most_retries = queues.definition.max_retries
    delay = text_of(one.delay_ms)
    fixed = [claim.name, claim.run, one.ending.value, delay, most_retries, queues.backoff]
    of_group = queues.of_group(_group_of(queues, claim))
    keys = [
        *of_group.keys_of(one.slot, ALL_KINDS),
        *of_group.claims_and_bodies(one.slot, [claim.name]),
    ]
    all_reasons = one.reasons if len(one.reasons) > 1 else [*one.reasons, ""][:1]
    calls = []
    start = 0
    for part in chunks_in_bytes(one.contents, MESSAGES_A_ROLLBACK, BYTES_A_CALL, len):
        reasons = all_reasons[start : start + len(part)] if len(all_reasons) > 1 else all_reasons
        calls.append(Call("rollback", keys, [*fixed, len(part), *part, *reasons]))
        start += len(part)
    return calls


def _sum_of(results: Iterable[RollbackResult]) -> RollbackResult:
    listed = list(results)
    return RollbackResult(
        sum(result.rolled_back for result in listed), sum(result.left_alone for result in listed)
    )


def give_back(
    queues: TopicQueues,
    slots: Iterable[int],
    consumer: str,
    run: int,
    seq: int = 0,
    *,
    failed: bool = False,
) -> Conversation[int]:
    """Give back all messages that a consumer in plain Python holds. Returns their number.

    Each counts as rolled back. Those of older runs are suspect; with ``failed``, so are those of
    this run. Bars older runs. seq: the last batch that the run asked for; a claim of that batch
    that arrives late is refused. Raises Fenced.
    """
    asked = list(slots)
    args = [consumer, run, seq, int(failed)]
    calls = queues.calls("abandon", "claims consumers stats", asked, args)
    left = yield Request(calls, lambda replies: _named(asked, replies))
    return sum((yield from give_back_claims(queues, left)).values())


def give_back_expired(
    queues: TopicQueues, due: Sequence[SlotDue], consumer: str
) -> Conversation[dict[int, int]]:
    """Give back the claims whose lease has ended, of some slots. Returns the messages by slot.

    due: the answer of reading.due. The consumer's own claims come first, in order: a batch that it
    has not finished precedes what others have left.
    """
    named = [(slot.slot, name) for slot in due for name in slot.expired]
    own_first = sorted(named, key=lambda claim: claimed_by(claim[1]) != consumer)
    return (yield from give_back_claims(queues, own_first))


def look(
    queues: TopicQueues,
    slots: Sequence[int],
    consumer: str,
    *,
    due_before_ms: int | None = None,
    epochs: Mapping[int, int | None] | None = None,
) -> Conversation[tuple[list[SlotDue], dict[int, int]]]:
    """Count what claims could take now, as reading.due, but give back expired claims before.

    Returns also the messages that were given back, by slot. While the rate limit of a topic allows
    none, nothing counts as due, until it does again; except for who takes only what was due before.
    """
    request = reading.due(queues, slots, consumer, due_before_ms=due_before_ms, epochs=epochs)
    due = yield request
    given_back = yield from give_back_expired(queues, due, consumer)
    if given_back:
        due = yield request
    wanted = {slot.slot: slot.due for slot in due if slot.due}
    if wanted and due_before_ms is None and queues.definition.rate is not None:
        due = within_permits(due, (yield grants(queues, wanted, take=False)))
    return due, given_back


def within_permits(due: Iterable[SlotDue], granted: Mapping[int, tuple[int, int]]) -> list[SlotDue]:
    """Limit what is due to what the rate limit grants; where that is nothing, until a wait ends.

    granted: by slot, as of claiming.grants.
    """
    limited = []
    for slot in due:
        permits, wait_ms = granted.get(slot.slot, (slot.due, 0))
        if permits:
            limited.append(replace(slot, due=min(slot.due, permits)))
        elif slot.due:
            limited.append(replace(slot, due=0, alone=False, next_ms=wait_ms))
        else:
            limited.append(slot)
    return limited


def give_back_claims(
    queues: TopicQueues, claims: Sequence[tuple[int, str]]
) -> Conversation[dict[int, int]]:
    """Give back claims whose lease has ended. claims: slots and names. Returns messages by slot."""

    def next_call(at: int, reply: Sequence[Any]) -> Call | None:
        name = reply[1].decode()
        return give_back_call(queues, claims[at][0], name) if name else None

    calls = [give_back_call(queues, slot, name) for slot, name in claims]
    replies = yield from repeated(calls, next_call, GIVE_BACKS_A_PIPELINE)
    moved: dict[int, int] = {}
    for (slot, _), of_claim in zip(claims, replies, strict=True):
        moved[slot] = moved.get(slot, 0) + sum(reply[0] for reply in of_claim)
    return moved


def give_back_call(queues: TopicQueues, slot: int, name: str) -> Call:
    """Return the call that gives back one claim whose lease has ended, or a part of it."""
    rest = rest_name(name)
    keys = [
        *queues.keys_of(slot, ALL_KINDS),
        *queues.claims_and_bodies(slot, [name]),
        *queues.claims_and_bodies(slot, [rest]),
    ]
    return Call("give_back", keys, [name, queues.definition.max_retries, queues.backoff, rest])


def expire(queues: TopicQueues, slots: Iterable[int]) -> Conversation[int]:
    """Give back all claims whose lease has expired. Returns the number of messages.

    Forgets consumers that hold nothing and were not seen for 30 days.
    """
    moved, left = 0, list(slots)
    while left:
        calls = queues.calls("expire", "claims consumers", left, [FORGET_CONSUMERS_MS])
        replies = yield Request(calls, list)
        expired = _named(left, [reply[1:] for reply in replies])
        given_back = yield from give_back_claims(queues, expired)
        moved += sum(given_back.values())
        # A consumer whose last messages were just given back can be forgotten only by another call.
        more = {slot for slot, reply in zip(left, replies, strict=True) if reply[0]}
        left = [slot for slot in left if slot in more or given_back.get(slot)]
    return moved


def forget(queues: TopicQueues, slots: Iterable[int]) -> Conversation[int]:
    """Delete the dead messages whose retention has ended. Returns their number.

    Deletes nothing if the topic keeps dead messages forever.
    """
    retention_ms = queues.definition.dead_retention_ms
    if retention_ms is None:
        return 0
    calls = queues.calls("forget", "dead deaths stats", slots, [retention_ms])
    replies = yield from repeated(calls, while_more(calls, 0), FORGETS_A_PIPELINE)
    return sum(reply[1] for of_slot in replies for reply in of_slot)


def _named(slots: Sequence[int], replies: Sequence[Sequence[bytes]]) -> list[tuple[int, str]]:
    """Return slots and names of claims. replies: the names by slot."""
    return [
        (slot, name.decode()) for slot, names in zip(slots, replies, strict=True) for name in names
    ]


def drop(queues: TopicQueues) -> Conversation[None]:
    """Delete everything that a consumer group holds, in all slots."""
    yield from repeated(
        [drop_call(queues, slot, []) for slot in queues.slots],
        lambda slot, reply: (
            None if reply[0] else drop_call(queues, slot, [name.decode() for name in reply[1:]])
        ),
    )


def drop_call(queues: TopicQueues, slot: int, names: Sequence[str]) -> Call:
    """Return the call that deletes a slot. names: all of its claims."""
    keys = queues.keys_of(slot, ALL_KINDS)
    return Call("drop", [*keys, *queues.claims_and_bodies(slot, names)], names)
